"""Every metric and every method, as a page for people."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from exporter.methods import METHODS
from slos.own_metrics import OWN_METRICS
from slos.signals import MODEL_LABELS, SIGNALS, Signal

_INTRODUCTION = """\
# Signals and metrics

For authors of queries and readers of a number: every metric that the sidecar serves, and every
method that provides it. `tokenslo signals` prints this page.

Every serving metric carries the labels `model` and `version`. Units are seconds, bytes and ratios
from 0 to 1. A signal that cannot be had has no series: `tokenslo_signal_info` says
`quality="unavailable"`, and the status page says why and what would bring it.

Counters and histograms are the sidecar's own: they start at 0 when it starts and only add what came
in since, so neither a model's reload nor a change of method is ever counted twice.
"""

_PROCESS = """\
The sidecar also serves `process_start_time_seconds`, `process_cpu_seconds_total`,
`process_resident_memory_bytes`, `process_open_fds` and the other `process_*` metrics of its own
process, as any exporter does. The taps run in a process of their own, which these do not include.
"""
_ZEROS = """\
### Series at zero

Every series whose labels are known exists from the first scrape, at zero: each outcome, phase,
result, clause and threshold of every model that a source or a tap reports, and of every model that
an SLO file selects. With `--tap-tenant-header`, the label sets of a tenant that a selector names
begin with those of the model, and the label sets of any other tenant when its first request starts;
`reason` begins with its first failure.

- A selected model that no source has seen has the counters that its objectives read, with an empty
  `version`. They give way to the model's own series when a source sees it.
- A selector without `model` names no model: its objectives have series as soon as a source or a tap
  sees any model. Selectors are compared for equality; there are no regular expressions in them. A
  query that the file brings along adds no series.

### SLO events

`llm_slo_events_total` has one event per observation of the signal's histogram, good if it is within
`threshold` (seconds, plain decimals: `0.8`, `1`, `0.06`), otherwise bad. For `ttft` a stream that
ended before its first token is bad too, unless the request itself was invalid.

Taps judge requests in flight. A request becomes a bad event of `ttft`, `e2e` or `max_gap`, and bad
for a goodput objective with such a clause, when it crosses the threshold, not when it ends. The
event is counted at the next scrape of the taps, once: the end of the request does not count it
again. So a hang in which nothing ends is visible. It follows that

- the outcome does not matter once the threshold is crossed: a request that is then cancelled, or
  turns out to be invalid, was late;
- the wait for the next token is a gap, also the wait between the last token and the end of the
  answer; for `itl` such a wait is one bad event while it lasts, and stays one if no token ends it;
- the clause of a bad goodput request is the one that it broke first in time; `tpot` and `queue` are
  judged at the end;
- histograms still have only what was observed, so they have fewer events than these counters;
- a stream whose end may leave no trace on the wire (gRPC without an empty final response) is not
  judged while it waits for a further token.

Start the sidecar with `--slo FILE`; without it there are no thresholds and no such series.

Where the method is an engine's histogram, the threshold must be one of its bucket boundaries;
otherwise the events are unavailable, and `tokenslo_signal_info` and the status page give the
reason. An engine counts requests when they end, so nothing in flight is judged.
"""
_METHODS = """\
One method at a time gives a signal of a model: the one with the lowest rank of those that answer.
Ranks: 10 the bytes on the wire, 20 the engine or server per request, 30 the engine's own metrics,
35 a sample of requests, 40 derived from something else. An *estimate* is near the truth in the way
its note says; *exact* means measured, not derived.
"""


def page() -> str:
    """Return the whole page as Markdown."""
    return "\n".join(
        (
            _INTRODUCTION,
            "## Serving metrics\n",
            _table(("signal", "metric", "type", "labels", "what it is"), map(_signal, _signals())),
            _ZEROS,
            "## The sidecar's own metrics\n",
            _table(("metric", "type", "labels", "what it is"), _own()),
            _PROCESS,
            "## Methods\n",
            _METHODS,
            _table(("method", "rank", "quality", "what it is", "to keep in mind"), _methods()),
        )
    )


def _signals() -> Iterable[Signal]:
    return SIGNALS.values()


def _signal(signal: Signal) -> Sequence[str]:
    fixed = (f'`{label}="{value}"`' for label, value in signal.fixed.items())
    labels = ", ".join((*fixed, *(f"`{label}`" for label in signal.labels)))
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
