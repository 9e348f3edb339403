"""Options of commands that compute or check admission limits."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, TypeVar

import click

from admission.capacity import MeasuredCapacity
from admission.capacity_file import load_capacity
from admission.limit import AdmissionSettings
from admission.plan import AdmissionPlan, admission_plan
from slos.durations import parse_duration, parse_share
from slos.model import Service
from tokenslo.file_name import FILE_NAME
from tokenslo.load_options import MAX_TOKENS, LoadValue

Command = TypeVar("Command", bound=Callable[..., Any])

_MAX_RATE, _MAX_NUMBER = 1_000_000, 1_000_000
_NAME = re.compile(r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?")
_HEADER = re.compile(r"[A-Za-z0-9][A-Za-z0-9-]{0,99}")
MISSING = "give --capacity FILE, or --rate, --concurrency and --unqueued-ttft"


def _read_rate(text: str) -> Decimal:
    return _positive(text, Decimal("0.001"), "a rate such as 7.5")


def _read_tokens(text: str) -> Decimal:
    return _positive(text, Decimal("0.1"), "a number of tokens such as 512")


def _positive(text: str, step: Decimal, wanted: str) -> Decimal:
    if not re.fullmatch(r"[0-9]{1,7}(\.[0-9]{1,9})?", text) or not (
        step <= (value := Decimal(text)) <= _MAX_RATE
    ):
        raise ValueError(f"{text!r} is not {wanted}, from {step} to {_MAX_RATE:,}")
    return value.quantize(step)


def _read_ttft(text: str) -> Decimal:
    seconds = parse_duration(text)
    if not 0 < seconds <= 3600:
        raise ValueError(f"{text!r} is not a time above 0s and up to 1h")
    return seconds


def _read_priorities(text: str) -> tuple[Decimal, ...]:
    return tuple(_read_ttft(part.strip()) for part in text.split(","))


def _read_retries(text: str) -> Decimal:
    share = parse_share(text)
    if share > Decimal("0.5"):
        raise ValueError(f"{text!r} is above 50%")
    return share


def _read_name(text: str) -> str:
    if not _NAME.fullmatch(text):
        raise ValueError(f"{text!r} is not the name of a Kubernetes object or host")
    return text


def _read_header(text: str) -> str:
    if not _HEADER.fullmatch(text):
        raise ValueError(f"{text!r} is not the name of a header, such as x-tenant-id")
    return text


capacity_option = click.option(
    "--capacity",
    metavar="FILE",
    type=FILE_NAME,
    help="load.json of `tokenslo load --slo`: the capacity of one server.",
)
input_tokens_option = click.option(
    "--input-tokens",
    type=click.IntRange(1, MAX_TOKENS),
    default=None,
    metavar="N",
    help="Input tokens of the longest prompt.",
)
output_tokens_option = click.option(
    "--output-tokens",
    type=click.IntRange(1, MAX_TOKENS),
    default=None,
    metavar="N",
    help="Output tokens of the longest answer.",
)

_NUMBER = click.IntRange(1, _MAX_NUMBER)
_OBJECT = LoadValue("NAME", _read_name)
_ADMISSION = (
    capacity_option,
    click.option(
        "--rate",
        metavar="R",
        type=LoadValue("R", _read_rate),
        help="Instead of --capacity: requests per second at which one server keeps every "
        "objective.",
    ),
    click.option(
        "--concurrency",
        metavar="N",
        type=LoadValue("N", _read_tokens),
        help="With --rate: mean number of requests in the server at that rate.",
    ),
    click.option(
        "--unqueued-ttft",
        metavar="TIME",
        type=LoadValue("TIME", _read_ttft),
        help="With --rate: TTFT of a request that does not wait.",
    ),
    click.option(
        "--mean-input-tokens",
        metavar="N",
        type=LoadValue("N", _read_tokens),
        help="With --rate: mean input tokens of a request.",
    ),
    click.option(
        "--mean-output-tokens",
        metavar="N",
        type=LoadValue("N", _read_tokens),
        help="With --rate: mean output tokens of a request.",
    ),
    input_tokens_option,
    output_tokens_option,
    click.option(
        "--lower-priorities",
        metavar="TIMES",
        type=LoadValue("TIMES", _read_priorities),
        default=None,
        help="TTFT thresholds of the priorities below the first, such as 5s,30s.",
    ),
    click.option(
        "--replicas", type=_NUMBER, default=1, show_default=True, help="Number of servers."
    ),
    click.option(
        "--gateways",
        type=_NUMBER,
        default=1,
        show_default=True,
        help="Number of gateway processes; each counts its own requests.",
    ),
    click.option(
        "--retries",
        metavar="SHARE",
        type=LoadValue("SHARE", _read_retries),
        default="10%",
        show_default=True,
        help="Retry budget of the gateway as a share of its requests, at most 50%.",
    ),
)
_NAMES = (
    click.option(
        "--route",
        metavar="NAME",
        type=_OBJECT,
        help="Name of the HTTPRoute or AIGatewayRoute; the service by default.",
    ),
    click.option(
        "--gateway",
        metavar="NAME",
        type=_OBJECT,
        help="Name of the Gateway; the service by default.",
    ),
    click.option(
        "--host",
        metavar="HOST",
        type=_OBJECT,
        help="Host of the servers for Istio; its first label is the backend of the AIGatewayRoute. "
        "The service by default.",
    ),
    click.option("--namespace", metavar="NAME", type=_OBJECT, help="Namespace of the objects."),
    click.option(
        "--tenant-header",
        metavar="NAME",
        type=LoadValue("NAME", _read_header),
        help="Request header with the tenant: limits the quotas of the SLO file at Envoy AI "
        "Gateway.",
    ),
)


@dataclass(frozen=True, slots=True)
class CapacityOptions:
    """The values of the options that give a capacity and its settings."""

    capacity: str | None = None
    rate: Decimal | None = None
    concurrency: Decimal | None = None
    unqueued_ttft: Decimal | None = None
    mean_input_tokens: Decimal | None = None
    mean_output_tokens: Decimal | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None
    lower_priorities: tuple[Decimal, ...] | None = None
    replicas: int = 1
    gateways: int = 1
    retries: Decimal = Decimal("0.1")

    def optional_plan(self, services: Sequence[Service]) -> AdmissionPlan | None:
        """Return the plan of the one service, None without --capacity."""
        return None if self.capacity is None else self.plan(services)

    def plan(self, services: Sequence[Service]) -> AdmissionPlan:
        """Return the plan of the one service; raises UsageError and InvalidFile."""
        if len(services) != 1:
            raise click.UsageError(
                f"A capacity is that of one service, and {len(services)} were given. Fix: give "
                "one SLO file."
            )
        settings = AdmissionSettings(
            self.input_tokens,
            self.output_tokens,
            self.lower_priorities or (),
            self.replicas,
            self.gateways,
            self.retries,
        )
        return admission_plan(services[0], self._measured(), settings)

    def _measured(self) -> MeasuredCapacity:
        flags = {
            "--rate": self.rate,
            "--concurrency": self.concurrency,
            "--unqueued-ttft": self.unqueued_ttft,
            "--mean-input-tokens": self.mean_input_tokens,
            "--mean-output-tokens": self.mean_output_tokens,
        }
        given = [name for name, value in flags.items() if value is not None]
        if self.capacity is not None:
            if given:
                raise click.UsageError(f"Give --capacity or {', '.join(given)}, not both.")
            return load_capacity(self.capacity)
        if self.rate is None or self.concurrency is None or self.unqueued_ttft is None:
            raise click.UsageError(f"The capacity is missing. Fix: {MISSING}.")
        prefill_rate = None
        if self.mean_input_tokens is not None:
            prefill_rate = (self.mean_input_tokens / self.unqueued_ttft).quantize(Decimal(1))
        return MeasuredCapacity(
            "the options",
            f"rate {self.rate.normalize():f}",
            self.rate,
            self.concurrency,
            self.unqueued_ttft,
            self.mean_input_tokens,
            self.mean_output_tokens,
            prefill_rate or None,
        )


def admission_options(command: Command) -> Command:
    """Add the options of a capacity, of the work of requests and of gateways."""
    for option in reversed((*_ADMISSION, *_NAMES)):
        command = option(command)
    return command
