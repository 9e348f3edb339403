"""Write a plan: the table of limits, and settings of servers and gateways."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from admission import envoy_gateway, istio
from admission.engine_options import SERVERS
from admission.envoy_gateway import GatewayNames
from admission.limit import MAX_RATE
from admission.plan import AdmissionPlan
from promql.expr import decimal_text
from slos.durations import format_duration
from slos.generated_yaml import document


class AdmissionOutput(NamedTuple):
    """What to write a plan for; ``version`` is tokenslo's own."""

    plan: AdmissionPlan
    names: GatewayNames
    server: str
    version: str


def limits_text(output: AdmissionOutput) -> str:
    """Return the table of limits as comment lines."""
    plan = output.plan
    capacity = plan.capacity
    measured = [
        f"{decimal_text(capacity.rate)} requests/s",
        f"{decimal_text(capacity.in_flight)} in flight",
        f"TTFT without a queue {format_duration(capacity.unqueued_ttft)}",
    ]
    if capacity.input_tokens is not None and capacity.output_tokens is not None:
        tokens = f"{decimal_text(capacity.input_tokens)} + {decimal_text(capacity.output_tokens)}"
        measured.append(f"{tokens} tokens per request")
    lines = [
        f"Limits of {plan.service.service} from {plan.service.file} and the capacity in "
        f"{capacity.file} (tokenslo {output.version})",
        f"Capacity of one server at {capacity.load}: {', '.join(measured)}.",
        "",
    ]
    rows = [("limit", "value", "arithmetic", "follows from")]
    rows += [(row.name, row.value, row.arithmetic, row.follows_from) for row in plan.limits]
    widths = [max(map(len, column)) for column in list(zip(*rows, strict=True))[:-1]]
    for *cells, last in rows:
        padded = (f"{cell:<{width}}" for cell, width in zip(cells, widths, strict=True))
        lines.append("  ".join((*padded, last)))
    if plan.notes:
        lines += ["", *(f"Note: {note}" for note in plan.notes)]
    return "".join(f"# {line}".rstrip() + "\n" for line in lines)


def server_text(output: AdmissionOutput) -> str:
    """Return the settings of the server."""
    return SERVERS[output.server](output.plan)


def envoy_gateway_text(output: AdmissionOutput) -> str:
    """Return the policies of Envoy Gateway."""
    plan, names = output.plan, output.names
    return _documents(
        output,
        (
            "Timeouts, limits and retries of the route, for Envoy Gateway. Circuit breakers and "
            "the local rate limit count in each Envoy.",
            envoy_gateway.backend_traffic_policy(plan, names),
        ),
        (
            "Idle time of streams at the gateway, for all of its routes.",
            envoy_gateway.client_traffic_policy(plan, names),
        ),
    )


def ai_gateway_text(output: AdmissionOutput) -> str:
    """Return the route and the policy of Envoy AI Gateway."""
    plan, names = output.plan, output.names
    about = (
        "Limits of the route with those of tokens, instead of the policy for Envoy Gateway. Tokens "
        "count after a response; the global rate limit needs Envoy Gateway's rate limit service."
    )
    if names.tenant_header and (large := envoy_gateway.unlimited_quotas(plan)):
        about += f" Quotas above {MAX_RATE} tokens are left out: {', '.join(large)}."
    return _documents(
        output,
        (
            "Route with timeouts for Envoy AI Gateway, whose default of 60 s for a request cuts "
            "long streams.",
            envoy_gateway.ai_gateway_route(plan, names),
        ),
        (about, envoy_gateway.token_policy(plan, names)),
    )


def istio_text(output: AdmissionOutput) -> str:
    """Return the objects of Istio."""
    plan, names = output.plan, output.names
    return _documents(
        output,
        (
            "Timeout and retries for Istio. Its default also retries rejected gRPC requests.",
            istio.virtual_service(plan, names),
        ),
        (
            "Requests in flight and retry budget for Istio. They count in each client's proxy.",
            istio.destination_rule(plan, names),
        ),
    )


PARTS: Mapping[str, Callable[[AdmissionOutput], str]] = {
    "limits": limits_text,
    "server": server_text,
    "envoy-gateway": envoy_gateway_text,
    "envoy-ai-gateway": ai_gateway_text,
    "istio": istio_text,
}
"""Parts of the output by name, in their order."""


def _documents(output: AdmissionOutput, *objects: tuple[str, Mapping[str, object]]) -> str:
    source = output.plan.service.file
    return "---\n".join(
        document(about, body, source=source, version=output.version) for about, body in objects
    )
