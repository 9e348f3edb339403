"""The status page: the status as HTML."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from html import escape
from math import floor

from exporter.background import TaskState
from exporter.methods import METHODS
from exporter.objectives.objective_status import ObjectiveState
from exporter.samples import Distribution, Labels, ModelInfo, Value
from exporter.store.last_minute import label_texts, without_tenants
from exporter.store.view import SignalState, SourceState, View
from exporter.web.page_assets import SCRIPT, STYLE
from exporter.web.status import Status, engine_age, models_with_signals
from slos.indicators import INDICATORS
from slos.signals import COMPANIONS, LATENCIES, SIGNALS, TENANT_SIGNALS, Signal, slo_events

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
<p id="lost" role="status" hidden>The sidecar does not respond: the values below are outdated.</p>
<main>
{main}
</main>
<script>{script}</script>
</body>
</html>
"""

_QUALITY_CLASS = {"exact": "good", "estimate": "fair", "unavailable": "bad"}


def status_html(status: Status) -> str:
    """Return the status as one page without external resources."""
    return _PAGE.format(style=STYLE, script=SCRIPT, main="\n".join(_main(status)))


def _main(status: Status) -> Iterator[str]:
    view = status.view
    yield from _header(status)
    yield from _table(
        "Sources",
        ("Source", "State", "Last successful scrape", "Took", "Failures"),
        # Parts, such as triton/statistics, only if one has failed.
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
    models = models_with_signals(view)
    for model, states in models:
        if not model.excluded:
            yield from _model(view, model, [one for one in states if _is_shown(one)])
    yield from _table(
        "Excluded models",
        ("Model", "Why"),
        (_row(_name(model), escape(model.excluded)) for model, _ in models if model.excluded),
    )


def _model(view: View, model: ModelInfo, states: Sequence[SignalState]) -> Iterator[str]:
    """Yield a table of a model's signals, with the unavailable ones folded below it."""
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
    """Whether to show a signal: not SLO events, and not tenants, of which there may be many."""
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
    """Yield a table; without rows, ``empty`` under its title, or nothing.

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
    state = '<span class="good">running</span>' if task.running else "waiting to restart"
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
    age = engine_age(view, model)
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
    """Return the compliance as HTML: ``met, 98.5% of 200 good``."""
    if state.good_events is None or state.bad_events is None:
        return ""
    total = state.good_events + state.bad_events
    if not total:
        return '<span class="soft">no events</span>'
    compliance = (
        '<span class="good">met</span>' if state.met else '<span class="bad">not met</span>'
    )
    if state.indicator in GAUGED:
        return compliance
    # Rounded down: 99.96% must not appear as 100%.
    share = floor(1000 * state.good_events / total) / 10
    return f"{compliance}, {share:g}% of {total:,.0f} good"


SHOWN_ELSEWHERE = frozenset({*map(slo_events, LATENCIES), *TENANT_SIGNALS.values()})
GAUGED = tuple(key for key, indicator in INDICATORS.items() if indicator.in_slices)


def _now(signal: Signal, state: SignalState) -> str:
    """Return the current value of a gauge, or the last minute of any other signal."""
    if signal.kind == "gauge":
        return _amounts(signal, state.samples)
    return state.recent or ("no history yet" if state.samples else "")


def _amounts(signal: Signal, samples: Mapping[Labels, Value]) -> str:
    """Format samples: ``ok 120, error 3`` or ``0.62``; zeros are left out unless all are 0."""
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
