"""Triton settings that the objectives of SLO files need.

Triton's only latency histogram is that of the first response: off by default, with four bucket
boundaries from 100 ms to 5 s, in whole milliseconds (Triton core, metric_model_reporter.h and
infer_response.cc).  It exists from Triton 2.52 (24.11), with boundaries per model.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from decimal import Decimal
from textwrap import wrap

from slos.durations import format_duration
from slos.errors import InvalidFile, Problem
from slos.indicators import indicator_of
from slos.model import Objective, Service
from slos.signals import FIRST_TOKEN_BUCKETS

FAMILY = "nv_inference_first_response_histogram_ms"
DEFAULT_BOUNDARIES = frozenset(round(boundary * 1000) for boundary in FIRST_TOKEN_BUCKETS)

FLAG = "--metrics-config histogram_latencies=true"
"""The flag of tritonserver that enables the histogram."""

_FLAGS = f"""\
# 1. Start tritonserver with this flag (Triton 2.52, container 24.11, or later).  Do not set
#    counter_latencies=false: it freezes all of Triton's request counters at 0.
{FLAG}
"""

_STANZA = """\
# {step}. Add this to config.pbtxt of {model} and load it again.
#    Boundaries are whole milliseconds.{why}
model_metrics {{
  metric_control: [
    {{
      metric_identifier: {{ family: "{family}" }}
      histogram_options: {{
        buckets: [
          {boundaries}
        ]
      }}
    }}
  ]
}}
"""


def server_config(services: Sequence[Service], version: str) -> str:
    """Return flags and ``config.pbtxt`` stanzas for these files; ``version`` is tokenslo's own.

    Raises InvalidFile if Triton cannot use a threshold as a bucket boundary.
    """
    thresholds = _thresholds(services)
    files = ", ".join(service.file for service in services)
    head = f"# What these SLO files need of Triton: {files} (tokenslo {version})\n"
    if not thresholds:
        return f"{head}# Nothing: no objective depends on a setting of the server.\n"
    everywhere = thresholds.get("", frozenset())
    # The models with a name of their own first, then the rest.
    models = sorted(thresholds, key=lambda model: (not model, model))
    stanzas = [
        _stanza(
            step,
            model or ("every other" if len(models) > 1 else "every") + " model that streams",
            thresholds[model] | everywhere,
        )
        for step, model in enumerate(models, start=2)
    ]
    return "\n".join((head, _FLAGS, *stanzas))


def first_response_settings(services: Sequence[Service], model: str) -> str:
    """Return flags and stanza for one model, with the thresholds of these files for it.

    Raises InvalidFile if Triton cannot use a threshold as a bucket boundary.
    """
    boundaries = first_response_boundaries(services, model)
    return f"{_FLAGS}\n{_stanza(2, model, frozenset(boundaries))}"


def first_response_boundaries(services: Sequence[Service], model: str) -> tuple[int, ...]:
    """Return the bucket boundaries in milliseconds that ``model`` needs for these files.

    Raises InvalidFile if Triton cannot use a threshold as a bucket boundary.
    """
    thresholds = _thresholds(services)
    wanted = thresholds.get(model, frozenset()) | thresholds.get("", frozenset())
    return tuple(sorted(DEFAULT_BOUNDARIES | wanted))


def _thresholds(services: Iterable[Service]) -> dict[str, frozenset[int]]:
    """Return first-token thresholds in milliseconds by model; an empty name means every model."""
    found: dict[str, frozenset[int]] = {}
    problems: list[Problem] = []
    for service in services:
        model = service.selector.get("model", "")
        for position, objective, threshold in _first_token(service):
            if threshold * 1000 % 1:
                problems.append(_not_whole(service, position, objective, threshold))
            found[model] = found.get(model, frozenset()) | {int(threshold * 1000)}
    if problems:
        raise InvalidFile(problems)
    return found


def _first_token(service: Service) -> Iterator[tuple[int, Objective, Decimal]]:
    for position, objective in enumerate(service.objectives):
        is_first_token = "ttft" in indicator_of(objective).signals
        if is_first_token and objective.threshold is not None:
            yield position, objective, objective.threshold


def _not_whole(
    service: Service, position: int, objective: Objective, threshold: Decimal
) -> Problem:
    below = Decimal(int(threshold * 1000)) / 1000
    above = below + Decimal("0.001")
    choices = [format_duration(choice) for choice in (below, above) if choice]
    return Problem(
        service.file,
        objective.line,
        f"objectives[{position}].threshold",
        f"{format_duration(threshold)} is not a whole number of milliseconds, "
        "and Triton measures nothing finer",
        f"write {' or '.join(choices)}",
    )


def _stanza(step: int, model: str, thresholds: frozenset[int]) -> str:
    boundaries = ", ".join(str(boundary) for boundary in sorted(DEFAULT_BOUNDARIES | thresholds))
    added = ", ".join(str(boundary) for boundary in sorted(thresholds - DEFAULT_BOUNDARIES))
    return _STANZA.format(
        step=step,
        model=model,
        why=f"  From the SLO files: {added}." if added else "",
        family=FAMILY,
        boundaries="\n          ".join(wrap(boundaries, 80)),
    )
