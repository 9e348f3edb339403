"""The status page: the status as HTML, complete without a script."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape
from urllib.parse import urlencode

from exporter.background import TaskState
from exporter.objectives.objective_status import ObjectiveState
from exporter.samples import Model, ModelInfo
from exporter.store.latency_history import MAX_MODELS
from exporter.store.view import SourceState
from exporter.web.html_table import colored, details, small, table
from exporter.web.model_tiles import TileModel, tiles
from exporter.web.page_assets import SCRIPT, STYLE
from exporter.web.signal_tables import signal_tables
from exporter.web.status import Status, engine_age, models_with_signals
from exporter.web.status_summary import PageAnswer, objective_name, summarize, verdict

MAX_TILED = 24
"""Maximum models with tiles."""
MAX_DETAILED = 12
"""Maximum models whose signals are on one page; with more, each model has a page of its own."""
SHOWN_OBJECTIVES = 8
"""Maximum objectives that are not folded; of more, only those not met or unavailable are shown."""
MAX_FOLDED = 100
"""Maximum folded objectives."""

_PAGE = """\
<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{title} · tokenslo</title>
<style>{style}</style>
</head>
<body>
<header>
<p class="brand"><a href="/">tokenslo</a> <span class="soft">{version}</span></p>
<p id="time" class="soft">{time}</p>
<nav aria-label="Endpoints"><a href="/metrics">metrics</a> <a href="/readyz">readiness</a></nav>
<noscript><p class="soft">Reload the page for current values.</p></noscript>
</header>
<p id="lost" role="alert" hidden>The sidecar does not respond: the values below are outdated.</p>
<main>
<div id="headline" role="status"><h1 class="{level}">{headline}</h1></div>
<div id="content">
{content}
</div>
</main>
<script>{script}</script>
</body>
</html>
"""

_MARKS = {"good": "✓", "fair": "!", "bad": "✕", "none": "·"}


def status_html(status: Status, chosen: Model | None = None) -> str:
    """Return the status as one page without external resources.

    ``chosen`` is a model whose signals the page shows, whatever the number of models.
    """
    headline = summarize(status).headline
    return _PAGE.format(
        title=escape(headline.text),
        style=STYLE,
        script=SCRIPT,
        version=escape(status.version),
        time=escape(status.time),
        level=headline.level,
        headline=escape(headline.text),
        content="\n".join(_content(status, chosen)),
    )


def _content(status: Status, chosen: Model | None) -> Iterator[str]:
    models = _tile_models(status)
    yield from _answers(status)
    yield from _section("objectives", "Objectives", _objectives(status.objectives, chosen))
    yield from _section("models", "Models", _models(status, models, chosen))
    yield from _section("sources", "Sources", _sources(status))
    yield from _section("signals", "Signals", _signals(status, models, chosen))


def _section(key: str, title: str, lines: Iterator[str]) -> Iterator[str]:
    """Yield a section with a heading, or nothing without content."""
    content = [*lines]
    if content:
        yield f'<section aria-labelledby="{key}"><h2 id="{key}">{title}</h2>'
        yield from content
        yield "</section>"


# Answers


def _answers(status: Status) -> Iterator[str]:
    summary = summarize(status)
    yield '<section class="answers" aria-label="Summary">'
    yield from _answer("Health", summary.health)
    yield from _answer("Objectives, last minute", summary.objectives)
    yield from _answer("Limited by", summary.limits)
    yield "</section>"


def _answer(question: str, answer: PageAnswer) -> Iterator[str]:
    mark = f'<span class="mark" aria-hidden="true">{_MARKS[answer.level]}</span>'
    text = answer.text[:1].upper() + answer.text[1:]
    yield f'<div class="answer {answer.level}"><h2>{question}</h2>'
    yield f'<p class="short">{mark} {escape(text)}</p>'
    if answer.details:
        yield "<ul>" + "".join(f"<li>{escape(one)}</li>" for one in answer.details) + "</ul>"
    yield "</div>"


# Objectives


def _objectives(states: Sequence[ObjectiveState], chosen: Model | None) -> Iterator[str]:
    own = [one for one in states if (one.model, one.version) == chosen]
    ordered = sorted(own or states, key=_urgency)
    several = len({(one.model, one.version) for one in ordered}) > 1
    columns: tuple[str, ...] = ("Objective", "Last minute", "Target", "Good event", "Quality")
    if several:
        columns = (*columns, "Model")
    if len(ordered) > SHOWN_OBJECTIVES:
        urgent = sum(one.met is False or one.quality == "unavailable" for one in ordered)
        shown = min(urgent, SHOWN_OBJECTIVES)
    else:
        shown = len(ordered)
    rows = [
        _objective_row(one, several=several) for one in ordered[: SHOWN_OBJECTIVES + MAX_FOLDED]
    ]
    caption = "Objectives in the last minute of this sidecar; budgets are in Prometheus"
    yield from table(caption, columns, rows[:shown])
    if folded := rows[shown:]:
        title = f"{len(ordered) - shown} more objectives" if shown else f"{len(ordered)} objectives"
        if len(rows) < len(ordered):
            title += f", {len(folded)} of them here"
        yield from details("objectives", title, table(title, columns, folded, hidden=True))


def _urgency(state: ObjectiveState) -> int:
    """Return the sort key: not met, unavailable, met, without events."""
    if state.met is not None:
        return 2 if state.met else 0
    return 1 if state.quality == "unavailable" else 3


def _objective_row(state: ObjectiveState, *, several: bool) -> tuple[str, ...]:
    answer = verdict(state)
    level = "soft" if answer.level == "none" else answer.level
    share = "".join(f", {escape(detail)}" for detail in answer.details)
    row = (
        escape(objective_name(state)),
        f'<span class="line">{colored(level, answer.text)}{share}</span>',
        state.target_text,
        escape(state.good),
        _quality(state),
    )
    return (*row, escape(state.model or "none")) if several else row


def _quality(state: ObjectiveState) -> str:
    """Return the quality with its note folded, or the reason why there is no measurement."""
    if state.quality == "unavailable":
        return small(state.note + (f". Fix: {state.fix}" if state.fix else ""))
    if not state.note:
        return state.quality
    key = f"{state.file}/{objective_name(state)}/{state.model}/{state.version}"
    return "".join(details(key, state.quality, [small(state.note)]))


# Models


def _tile_models(status: Status) -> list[TileModel]:
    """Return the models that are not excluded, the most urgent first."""
    by_model = status.view.by_model
    objectives: dict[Model, list[ObjectiveState]] = {}
    for state in status.objectives:
        objectives.setdefault((state.model, state.version), []).append(state)
    models = [
        TileModel(info, by_model.get(key, {}), tuple(objectives.get(key, ())))
        for info, _ in models_with_signals(status.view)
        if not info.excluded
        for key in [(info.model, info.version)]
    ]
    return sorted(models, key=TileModel.rank)


def _models(status: Status, models: list[TileModel], chosen: Model | None) -> Iterator[str]:
    measured = [one for one in models if one.is_measured()] or models
    picked = [one for one in models if one.key == chosen]
    if chosen and not picked:
        yield f"<p>No model {escape(' '.join(chosen).strip())} is reported.</p>"
    shown = picked or measured[:MAX_TILED]
    size = "few" if len(shown) < 3 else "many"
    for model in shown:
        yield f'<article class="model {size}"><h3>{_model_title(status, model)}</h3>'
        yield from tiles(model, status.history)
        yield "</article>"
    if picked:
        yield f'<p><a href="/">All {len(models)} models</a></p>'
        return
    if len(measured) > len(shown):
        title = f"{len(measured) - len(shown)} more models"
        yield from details("more-models", title, [_links(measured[len(shown) :])])
    if rest := [one for one in models if one not in measured]:
        title = f"{_count(rest)} without token metrics"
        yield from details("unmeasured-models", title, [_links(rest)])
    if status.history.skipped:
        yield small(
            f"Charts are kept for {MAX_MODELS} models; {status.history.skipped} more have traffic."
        )


def _model_title(status: Status, model: TileModel) -> str:
    info = model.info
    age = engine_age(status.view, info)
    reported = any((one.model, one.version) == model.key for one in status.view.models)
    facts = (
        info.backend,
        "" if info.ready else "not ready" if reported else "not reported now",
        "" if age is None else f"engine statistics {age:.1f} s old",
    )
    version = f"version {info.version}" if info.version else ""
    about = " · ".join(fact for fact in (version, *facts) if fact)
    return f"{escape(info.model)} <small>{escape(about)}</small>"


def _links(models: Sequence[TileModel]) -> str:
    links = (f'<li><a href="{_address(one.info)}">{escape(one.name)}</a></li>' for one in models)
    return f'<ul class="links">{"".join(links)}</ul>'


def _address(info: ModelInfo) -> str:
    return escape("/?" + urlencode({"model": info.model, "version": info.version}))


def _count(models: Sequence[TileModel]) -> str:
    return "1 model" if len(models) == 1 else f"{len(models)} models"


# Sources and signals


def _sources(status: Status) -> Iterator[str]:
    yield from table(
        "Scraped sources",
        ("Source", "State", "Last successful scrape", "Took", "Failures"),
        # Parts, such as triton/statistics, only if one has failed.
        (_source_row(one) for one in status.view.sources if "/" not in one.source or one.errors),
    )
    yield from table(
        "Failed background tasks",
        ("Task", "State", "Restarts", "Last failure"),
        (_task_row(task) for task in status.tasks if task.restarts),
    )
    yield from table(
        "Excluded models",
        ("Model", "Why"),
        (
            (escape(f"{model.model} {model.version}"), escape(model.excluded))
            for model in status.view.models
            if model.excluded
        ),
    )


def _source_row(source: SourceState) -> tuple[str, ...]:
    state = colored("good", "up") if source.up else colored("bad", "down")
    if source.ready is not None:
        state += small("server ready" if source.ready else "server not ready")
    failures = ", ".join(f"{kind} {count}" for kind, count in source.errors.items())
    return (
        f"<code>{escape(source.source)}</code>",
        state + small(source.error),
        "never" if source.age is None else f"{source.age:.1f} s ago",
        "" if source.read_seconds is None else f"{source.read_seconds * 1000:.0f} ms",
        escape(failures or "none"),
    )


def _task_row(task: TaskState) -> tuple[str, ...]:
    state = colored("good", "running") if task.running else colored("bad", "waiting to restart")
    return f"<code>{escape(task.task)}</code>", state, str(task.restarts), escape(task.error)


def _signals(status: Status, models: list[TileModel], chosen: Model | None) -> Iterator[str]:
    picked = [one for one in models if one.key == chosen]
    if len(models) > MAX_DETAILED and not picked:
        title = f"Signals of {len(models)} models, each on a page of its own"
        yield from details("all-models", title, [_links(models)])
        return
    for model in picked or models:
        lines = signal_tables(model.info, model.signals)
        if len(models) == 1 or picked:
            yield from lines
        else:
            key = f"signals/{model.info.model}/{model.info.version}"
            yield from details(key, model.name, lines)
