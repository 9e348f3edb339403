"""Render the reference page of metrics and methods."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from exporter.methods import METHODS
from slos.own_metrics import OWN_METRICS
from slos.signals import MODEL_LABELS, SIGNALS, Signal

_INTRODUCTION = """\
# Signals and metrics

For authors of queries and readers of a number: every metric that the sidecar serves, and every
method that provides it. `tokenslo signals` prints this page.

Every serving metric has the labels `model` and `version`. Units are seconds, bytes and ratios from
0 to 1. An unavailable signal has no series: `tokenslo_signal_info` has `quality="unavailable"`
and the `reason`, and the status page also the fix.

Counters and histograms belong to the sidecar: they start at 0 with it and add only what it
observes. A reload of a model or a change of method never counts anything twice.
"""

_PROCESS = """\
The sidecar also serves `process_start_time_seconds`, `process_cpu_seconds_total`,
`process_resident_memory_bytes`, `process_open_fds` and the other `process_*` metrics of its own
process; `tokenslo_tap_process_*` are those of the tap process.
"""
_ZEROS = """\
### Series at zero

Every series whose labels are known exists from the first scrape, at zero.

| labels | exist for |
| --- | --- |
| outcome, phase, result, clause, threshold | each model that a source or a tap reports, and each \
model that an SLO file selects |
| `tenant` that a selector names, with `--tap-tenant-header` | each of those models |
| any other `tenant` | from the start of its first request |
| `prompt_class`, with `prompt_classes` in an SLO file | each model that a tap sees, or that the \
file selects |
| `reason` | from its first failure |

| selector of an SLO file | effect |
| --- | --- |
| a model that no source has seen | the counters of its objectives, with an empty `version`, \
until a source sees the model |
| without `model` | series exist as soon as a source or a tap sees a model |
| regular expressions | are not supported: selectors compare for equality |
| queries of your own | add no series |

### Prompt classes

The label `prompt_class`, the signal of that name and the lengths of prompts and responses exist
only with `prompt_classes` in an SLO file, and only where a tap sees the requests. A request has one
class in all of its series, determined at the first event that needs it. `unknown` is a length that
is not known.

### SLO events

`llm_slo_events_total` has one event per observation of the signal's histogram: good within
`threshold` (seconds as plain decimals: `0.8`, `1`, `0.06`), otherwise bad. For `ttft` a stream that
ends before its first token is bad too, unless the request is invalid; a refused one has the result
`shed` or `quota`, and the SLO file decides. The series need `--slo FILE`.

Taps evaluate requests in flight. A request becomes a bad event of `ttft`, `e2e`, `max_gap` or a
goodput objective with such a clause when it *crosses* the threshold. The next scrape of the taps
counts the event; the end of the request does not count it again. So a hang in which nothing ends is
visible.

| subject | rule |
| --- | --- |
| outcome | irrelevant after the threshold is crossed: a request that then is cancelled or \
invalid was late |
| the wait for the next token | is a gap, also between the last token and the end of the \
response. For `itl` it is one bad event, and stays one if no token ends it |
| `clause` of a bad goodput request | the clause that it violated first; `tpot` and `queue` \
are evaluated at the end |
| histograms | contain only observations, so they have fewer events than these counters |
| gRPC without an empty final response | its end may be invisible: not evaluated while it waits \
for a further token |
| an engine's histogram as method | the threshold must be one of its bucket boundaries; otherwise \
the events are unavailable, with the reason. Engines count requests at their end, so nothing in \
flight is evaluated |
"""
_METHODS = """\
One method at a time provides a signal of a model: the available one with the lowest rank.

| rank | measured on |
| --- | --- |
| 10 | bytes on the wire |
| 20 | the engine or server, per request |
| 30 | the engine's own metrics |
| 31 | bytes on the wire, with an unknown number of tokens |
| 35 | a sample of requests |
| 40 and above | derived from other values |

*Exact* means measured, not derived. The error of an *estimate* is in its note.
"""


def page() -> str:
    """Return the page as Markdown."""
    return "\n".join(
        (
            _INTRODUCTION,
            "## Serving metrics\n",
            _table(("signal", "metric", "type", "labels", "meaning"), map(_signal, _signals())),
            _ZEROS,
            "## The sidecar's own metrics\n",
            _table(("metric", "type", "labels", "meaning"), _own()),
            _PROCESS,
            "## Methods\n",
            _METHODS,
            _table(("method", "rank", "quality", "source", "error"), _methods()),
        )
    )


def _signals() -> Iterable[Signal]:
    return SIGNALS.values()


def _signal(signal: Signal) -> Sequence[str]:
    fixed = (f'`{label}="{value}"`' for label, value in signal.fixed.items())
    labels = ", ".join((*fixed, *(f"`{label}`" for label in signal.possible_labels)))
    return f"`{signal.key}`", f"`{signal.metric}`", signal.kind, labels, signal.help


def _own() -> Iterable[Sequence[str]]:
    for name, (kind, text, labels) in OWN_METRICS.items():
        series = f"{name}_total" if kind == "counter" else name
        shown = (f"`{label}`" for label in labels if label not in MODEL_LABELS)
        model = ("model, version",) if set(MODEL_LABELS) <= set(labels) else ()
        yield f"`{series}`", kind, ", ".join((*model, *shown)), text


def _methods() -> Iterable[Sequence[str]]:
    ranked = sorted(METHODS.items(), key=lambda item: (item[1].rank, item[0]))
    for name, method in ranked:
        yield f"`{name}`", str(method.rank), method.quality, method.description, method.note


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = (head, ("---",) * len(head), *rows)
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)
