"""The status page for people, and the same facts as JSON for tools."""

from __future__ import annotations

import hashlib
import json
from base64 import b64encode
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from html import escape
from math import floor, isfinite

from exporter.background import TaskState
from exporter.methods import METHODS
from exporter.objectives.objective_status import ObjectiveState
from exporter.samples import Distribution, Labels, ModelInfo, Value
from exporter.store.last_minute import label_texts, without_tenants
from exporter.store.view import SignalState, SourceState, View
from exporter.web.readiness import Readiness
from slos.indicators import INDICATORS
from slos.signals import COMPANIONS, LATENCIES, SIGNALS, TENANT_SIGNALS, Signal, slo_events

Json = Mapping[str, object]


@dataclass(frozen=True, slots=True)
class Status:
    """Everything the status page shows; ``time`` is when, in ISO 8601."""

    version: str
    time: str
    view: View
    readiness: Readiness
    objectives: tuple[ObjectiveState, ...]
    tasks: tuple[TaskState, ...] = ()


def readiness_json(readiness: Readiness) -> str:
    """Return ``{"ready": …, "layers": [{"layer", "name", "ready", "reason", "version"}]}``.

    ``layer`` is ``process``, ``source``, ``server``, ``model``, ``backend``, ``decode`` or
    ``probe``; its ``ready`` is null where nobody knows.
    """
    return _dump(_readiness(readiness))


def status_json(status: Status) -> str:
    """Return the status as one JSON object.

    Keys are only ever added.  Durations are seconds; what is not known is null::

        tokenslo, time
        ready, layers[]      layer, name, ready, reason, version
        sources[]            source, up, age_seconds, read_seconds, error, errors{kind: count},
                             server_ready
        objectives[]         file, service, objective, indicator, good, target, model, version,
                             quality, note, fix; of the last minute: met, good_events,
                             bad_events
        tasks[]              task, restarts, running, error
        models[]             model, version, backend, decoupled, ready, reason, excluded,
                             engine_stats_age_seconds
          signals[]          signal, metric, unit, method, quality, note, fix, recent
            samples[]        labels{}, and either value (gauges, counters) or count and sum
    """
    return _dump(
        {
            "tokenslo": status.version,
            "time": status.time,
            **_readiness(status.readiness),
            "sources": [_source(source) for source in status.view.sources],
            "objectives": [
                asdict(state) | {"target": state.target_text} for state in status.objectives
            ],
            "tasks": [asdict(task) for task in status.tasks],
            "models": [
                {
                    **asdict(model),
                    "engine_stats_age_seconds": _engine_age(status.view, model),
                    "signals": [_signal(state) for state in states],
                }
                for model, states in _by_model(status.view)
            ],
        }
    )


def _dump(document: Json) -> str:
    return json.dumps(document, indent=2) + "\n"


def _readiness(readiness: Readiness) -> Json:
    return {
        "ready": readiness.ready,
        "layers": [asdict(layer) for layer in readiness.layers],
    }


def _source(source: SourceState) -> Json:
    return {
        "source": source.source,
        "up": source.up,
        "age_seconds": source.age,
        "read_seconds": source.read_seconds,
        "error": source.error,
        "errors": dict(source.errors),
        "server_ready": source.ready,
    }


def _signal(state: SignalState) -> Json:
    signal = SIGNALS[state.signal]
    return {
        "signal": state.signal,
        "metric": signal.metric,
        "unit": signal.unit,
        "method": state.method,
        "quality": state.quality,
        "note": state.note,
        "fix": state.fix,
        "recent": state.recent,
        "samples": [
            {"labels": {**signal.fixed, **dict(labels)}, **_numbers(value)}
            for labels, value in sorted(state.samples.items())
        ],
    }


def _numbers(value: Value) -> Json:
    if isinstance(value, Distribution):
        return {"count": value.count, "sum": value.sum}
    return {"value": value if isfinite(value) else None}


def _by_model(view: View) -> list[tuple[ModelInfo, list[SignalState]]]:
    """Return every model with its signals, also a model that has only signals left."""
    states = view.by_model()
    infos = {(info.model, info.version): info for info in view.models}
    gone = {key: ModelInfo(*key, ready=False) for key in states if key not in infos}
    shown = sorted({**infos, **gone}.items())
    return [(info, list(states.get(key, {}).values())) for key, info in shown]


def _engine_age(view: View, model: ModelInfo) -> float | None:
    return view.engine_stats_age.get((model.model, model.version))


# The page


STYLE = """
:root { color-scheme: light dark; --ink: #1b1f24; --soft: #5b6470; --line: #d9dee4; --back: #fff;
  --card: #f6f8fa; --good: #12703a; --fair: #8a5a00; --bad: #b3261e }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e7eaee; --soft: #9aa4b0; --line: #333b45; --back: #14181d; --card: #1c2229;
    --good: #5fce8c; --fair: #e6b455; --bad: #ff8a80 } }
* { box-sizing: border-box }
body { margin: 0 auto; max-width: 76rem; padding: 1rem; background: var(--back); color: var(--ink);
  font: 15px/1.45 system-ui, sans-serif }
header { display: flex; flex-wrap: wrap; gap: .25rem 1rem; align-items: baseline }
h1 { font-size: 1.3rem; margin: 0 }
h2 { font-size: 1.05rem; margin: 2rem 0 .5rem }
h2 small, td small, .soft { color: var(--soft); font-weight: normal }
td small { display: block }
table { border-collapse: collapse; width: 100% }
th { text-align: left; color: var(--soft); font-weight: 600; font-size: .85rem }
th, td { padding: .35rem .8rem .35rem 0; border-bottom: 1px solid var(--line); vertical-align: top }
td:first-child { min-width: 17rem }
td:first-child, td small { overflow-wrap: anywhere }
main { overflow-x: auto }
summary { color: var(--soft); cursor: pointer; padding: .35rem 0 }
code { font: .85em ui-monospace, monospace }
.good { color: var(--good) } .fair { color: var(--fair) } .bad { color: var(--bad) }
#lost { position: sticky; top: 0; padding: .4rem .8rem; background: var(--card);
  border-left: 4px solid var(--bad) }
@media (max-width: 46rem) {
  thead { display: none }
  tr { display: block; padding: .5rem 0; border-bottom: 1px solid var(--line) }
  td { display: block; border: 0; padding: .1rem 0 }
  td:first-child { font-weight: 600 }
  td:empty { display: none }
  td[data-name]:not(:first-child)::before { content: attr(data-name) ": "; color: var(--soft) } }
"""

# Replaces what has changed, and not while somebody is selecting text to copy it.
SCRIPT = """
const lost = document.getElementById("lost");
setInterval(async () => {
  if (document.hidden || !getSelection().isCollapsed) return;
  try {
    const text = await (await fetch("/", {headers: {Accept: "text/html"}})).text();
    const fresh = new DOMParser().parseFromString(text, "text/html").querySelector("main");
    const shown = document.querySelector("main");
    for (const open of shown.querySelectorAll("details[open]"))
      for (const each of fresh.querySelectorAll("details"))
        if (each.dataset.key === open.dataset.key) each.open = true;
    if (fresh.innerHTML !== shown.innerHTML) shown.replaceWith(fresh);
    lost.hidden = true;
  } catch { lost.hidden = false }
}, 2000);
"""


def _hash(text: str) -> str:
    return f"'sha256-{b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


CONTENT_SECURITY_POLICY = "; ".join(
    (
        "default-src 'none'",
        f"style-src {_hash(STYLE)}",
        f"script-src {_hash(SCRIPT)}",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
    )
)
"""Only the page's own style and script run: names a server gives can never become code."""

_PAGE = """\
<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>tokenslo</title>
<noscript><meta http-equiv="refresh" content="5"></noscript>
<style>{style}</style>
</head>
<body>
<p id="lost" role="status" hidden>The sidecar does not answer: what follows is old.</p>
<main>
{main}
</main>
<script>{script}</script>
</body>
</html>
"""

_QUALITY_CLASS = {"exact": "good", "estimate": "fair", "unavailable": "bad"}


def status_html(status: Status) -> str:
    """Return the status as one page without external parts; serve it with the policy above."""
    return _PAGE.format(style=STYLE, script=SCRIPT, main="\n".join(_main(status)))


def _main(status: Status) -> Iterator[str]:
    view = status.view
    yield from _header(status)
    yield from _table(
        "Sources",
        ("Source", "State", "Last successful scrape", "Took", "Failures"),
        # Parts, such as triton/statistics, only where one of them has failed.
        (_source_row(one) for one in view.sources if "/" not in one.source or one.errors),
    )
    yield from _table(
        "Objectives",
        ("Objective", "Target", "Last minute", "Model", "Measured"),
        map(_objective_row, status.objectives),
    )
    yield from _table(
        "Failed background tasks",
        ("Task", "State", "Restarts", "Last failure"),
        (_task_row(task) for task in status.tasks if task.restarts),
    )
    models = _by_model(view)
    for model, states in models:
        if not model.excluded:
            yield from _model(view, model, [one for one in states if _is_shown(one)])
    yield from _table(
        "Not reported on",
        ("Model", "Why"),
        (_row(_name(model), escape(model.excluded)) for model, _ in models if model.excluded),
    )


def _model(view: View, model: ModelInfo, states: Sequence[SignalState]) -> Iterator[str]:
    """Yield a model's signals: a table, and those that are unavailable folded below it."""
    measured = [state for state in states if state.samples]
    yield from _table(
        _model_title(view, model),
        ("Signal", "Now", "Since start", "Method", "Quality"),
        map(_signal_row, measured),
        empty="" if measured else '<p class="soft">no signal is measured</p>',
    )
    folded = [state for state in states if not state.samples]
    if folded:
        key = escape(f"{model.model}/{model.version}")
        count = "1 signal" if len(folded) == 1 else f"{len(folded)} signals"
        yield f'<details data-key="{key}"><summary>{count} unavailable</summary>'
        yield from _table("", ("Signal", "Why"), map(_unavailable_row, folded))
        yield "</details>"


def _is_shown(state: SignalState) -> bool:
    """Leave out the events that objectives show, and tenants, who may be many."""
    if state.signal in SHOWN_ELSEWHERE:
        return False
    return bool(state.samples) or state.signal not in COMPANIONS


def _unavailable_row(state: SignalState) -> tuple[str, ...]:
    return _row(_signal_name(SIGNALS[state.signal]), _why(state.note, state.fix))


def _header(status: Status) -> Iterator[str]:
    ready = status.readiness.ready
    state = (
        '<strong class="good">ready</strong>' if ready else '<strong class="bad">not ready</strong>'
    )
    yield (
        f"<header><h1>tokenslo</h1>{state}"
        f'<span class="soft">{escape(status.version)} · {escape(status.time)}</span>'
        '<span class="soft"><a href="/metrics">metrics</a> · <a href="/readyz">readiness</a></span>'
        "</header>"
    )
    for reason in status.readiness.reasons:
        yield f'<p class="bad">{escape(reason)}</p>'


def _table(
    title: str, names: tuple[str, ...], rows: Iterable[tuple[str, ...]], empty: str = ""
) -> Iterator[str]:
    """Yield a table, or ``empty`` under its title if it has no rows, or else nothing.

    ``title`` and cells are HTML.
    """
    lines = [
        "<tr>"
        + "".join(
            f'<td data-name="{name}">{cell}</td>' for name, cell in zip(names, row, strict=True)
        )
        + "</tr>"
        for row in rows
    ]
    heading = f"<h2>{title}</h2>" if title else ""
    if empty and not lines:
        yield f"<section>{heading}{empty}</section>"
    if lines:
        yield f"<section>{heading}"
        yield "<table><thead><tr>" + "".join(f"<th>{name}</th>" for name in names) + "</tr></thead>"
        yield from lines
        yield "</table></section>"


def _row(*cells: str) -> tuple[str, ...]:
    return cells


def _source_row(source: SourceState) -> tuple[str, ...]:
    state = '<span class="good">up</span>' if source.up else '<span class="bad">down</span>'
    if source.ready is not None:
        state += _small("server ready" if source.ready else "server not ready")
    failures = ", ".join(f"{kind} {count}" for kind, count in source.errors.items())
    return _row(
        f"<code>{escape(source.source)}</code>",
        state + _small(source.error),
        "never" if source.age is None else f"{source.age:.1f} s ago",
        "" if source.read_seconds is None else f"{source.read_seconds * 1000:.0f} ms",
        escape(failures or "none"),
    )


def _task_row(task: TaskState) -> tuple[str, ...]:
    state = '<span class="good">running</span>' if task.running else "waits to restart"
    return _row(
        f"<code>{escape(task.task)}</code>",
        state if task.running else f'<span class="bad">{state}</span>',
        str(task.restarts),
        escape(task.error),
    )


def _objective_row(state: ObjectiveState) -> tuple[str, ...]:
    return _row(
        f"{escape(state.service)}/{escape(state.objective)}{_small(state.file)}",
        f"{state.target_text}: {escape(state.good)}",
        _met(state),
        escape(state.model or "none"),
        _quality(state.quality) + _why(state.note, state.fix),
    )


def _signal_row(state: SignalState) -> tuple[str, ...]:
    signal = SIGNALS[state.signal]
    method = METHODS[state.method].description if state.method else ""
    return _row(
        _signal_name(signal),
        escape(_now(signal, state)),
        escape("" if signal.kind == "gauge" else _amounts(signal, state.samples)),
        escape(method) + _why(state.note, state.fix),
        _quality(state.quality),
    )


def _model_title(view: View, model: ModelInfo) -> str:
    age = _engine_age(view, model)
    facts = (
        model.backend,
        "streams" if model.decoupled else "",
        "" if model.ready else "not ready",
        "" if age is None else f"engine statistics {age:.1f} s old",
    )
    details = "".join(f" · {fact}" for fact in facts if fact)
    return f"{_name(model)}<small>{escape(details)}</small>"


def _name(model: ModelInfo) -> str:
    version = f" <small>version {escape(model.version)}</small>" if model.version else ""
    return escape(model.model) + version


def _signal_name(signal: Signal) -> str:
    return f"{escape(signal.title)}<small><code>{escape(_series(signal))}</code></small>"


def _series(signal: Signal) -> str:
    labels = ",".join(f'{name}="{value}"' for name, value in signal.fixed.items())
    return f"{signal.metric}{{{labels}}}" if labels else signal.metric


def _quality(quality: str) -> str:
    return f'<span class="{_QUALITY_CLASS[quality]}">{quality}</span>'


def _why(note: str, fix: str) -> str:
    return _small(note) + _small(f"Fix: {fix}" if fix else "")


def _small(text: str) -> str:
    return f"<small>{escape(text)}</small>" if text else ""


def _met(state: ObjectiveState) -> str:
    """Say whether an objective was met: ``met, 98.5% of 200``."""
    if state.good_events is None or state.bad_events is None:
        return ""
    total = state.good_events + state.bad_events
    if not total:
        return '<span class="soft">no events</span>'
    word = '<span class="good">met</span>' if state.met else '<span class="bad">not met</span>'
    if state.indicator in GAUGED:
        return word
    # Rounded down: 99.96% is not the 100% that it would look like.
    share = floor(1000 * state.good_events / total) / 10
    return f"{word}, {share:g}% of {total:,.0f} good"


SHOWN_ELSEWHERE = frozenset({*map(slo_events, LATENCIES), *TENANT_SIGNALS.values()})
GAUGED = tuple(key for key, indicator in INDICATORS.items() if indicator.in_slices)


def _now(signal: Signal, state: SignalState) -> str:
    """Say what a signal is now: a gauge's value, and the last minute of all else."""
    if signal.kind == "gauge":
        return _amounts(signal, state.samples)
    return state.recent or ("no history yet" if state.samples else "")


def _amounts(signal: Signal, samples: Mapping[Labels, Value]) -> str:
    """Write samples for people: ``ok 120, error 3`` or ``0.62``; zeros only where all are."""
    shown = without_tenants(samples)
    if len(shown) > 1 and signal.kind != "gauge":
        shown = {labels: value for labels, value in shown.items() if value}
        if not shown:
            return "0"
    return ", ".join(
        " ".join([*label_texts(labels), _amount(signal, value)])
        for labels, value in sorted(shown.items())
    )


_PREFIXES = ((2**40, "TiB"), (2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB"), (1, "B"))


def _amount(signal: Signal, value: Value) -> str:
    if isinstance(value, Distribution):
        return f"{value.count:,.0f} observed"
    if signal.unit == "ratio":
        return f"{value:.1%}"
    if signal.unit == "B":
        size, name = next((one for one in _PREFIXES if value >= one[0]), _PREFIXES[-1])
        return f"{value / size:.3g} {name}"
    return f"{value:,.15g}"
