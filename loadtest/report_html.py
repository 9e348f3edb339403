"""The report of a load test as one HTML page: no script, nothing from elsewhere."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from html import escape

from loadtest.definitions import DEFINITIONS
from loadtest.level_result import LevelResult
from loadtest.line_plot import PlotLine, line_plot
from loadtest.report import LoadReport, as_object, notes
from loadtest.report_text import as_text
from loadtest.session import EndpointRuns, LoadTestResult
from promql.http_client import public

_STYLE = """
:root { color-scheme: light dark; --ink: #1b1f24; --soft: #57606b; --line: #d5dae0; --back: #fff;
  --one: #3f6fb5; --two: #b3541e; --three: #11683a; --four: #7a3fa8; --bad: #b3261e }
@media (prefers-color-scheme: dark) { :root { --ink: #e7eaee; --soft: #a3adb9; --line: #363e49;
  --back: #14181d; --one: #7fa8e6; --two: #ecad60; --three: #66d492; --four: #c9a0f0;
  --bad: #ff9289 } }
body { margin: 0 auto; max-width: 72rem; padding: 1rem; background: var(--back);
  color: var(--ink); font: 15px/1.45 system-ui, sans-serif }
h1 { font-size: 1.4rem } h2 { font-size: 1.1rem; margin: 1.5rem 0 .4rem }
pre { white-space: pre-wrap; font: .8rem/1.5 ui-monospace, monospace }
table { border-collapse: collapse } th, td { padding: .2rem .8rem .2rem 0; text-align: left;
  border-bottom: 1px solid var(--line); vertical-align: top }
td.n { text-align: right; font-variant-numeric: tabular-nums }
.missed { color: var(--bad) } small, figcaption { color: var(--soft) }
.plots { display: flex; flex-wrap: wrap; gap: 1rem } figure { margin: 0; flex: 1 1 30rem }
svg { width: 100%; height: auto } path { fill: none; stroke-width: 1.6 }
.grid { stroke: var(--line); stroke-width: 1 } .limit { stroke: var(--bad);
  stroke-dasharray: 5 4 }
text { fill: var(--soft); font-size: 11px } text.y { text-anchor: end;
  dominant-baseline: middle } text.x { text-anchor: middle }
path.line0 { stroke: var(--one) } path.line1 { stroke: var(--two) }
path.line2 { stroke: var(--three) } path.line3 { stroke: var(--four) }
circle.line0 { fill: var(--one) } circle.line1 { fill: var(--two) }
circle.line2 { fill: var(--three) } circle.line3 { fill: var(--four) }
.key { margin-left: .8rem } .key.line0 { color: var(--one) } .key.line1 { color: var(--two) }
.key.line2 { color: var(--three) } .key.line3 { color: var(--four) }
"""


def as_html(report: LoadReport) -> str:
    """Return the page."""
    return "".join(_page(report))


def _page(report: LoadReport) -> Iterator[str]:
    result = report.result
    servers = " and ".join(public(side.endpoint.url) for side in result.sides)
    yield (
        '<!doctype html><html lang="en"><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width">'
        '<meta http-equiv="Content-Security-Policy" '
        "content=\"default-src 'none'; style-src 'unsafe-inline'\">"
        f"<title>Load test of {escape(servers)}</title><style>{_STYLE}</style>"
        f"<h1>Load test of {escape(servers)}</h1>"
        f"<p>{escape(report.started)}, tokenslo {escape(report.version)}, driver "
        f"{escape(report.driver)}</p>"
    )
    yield f"<h2>Summary</h2><pre>{escape(as_text(report))}</pre>"
    yield f'<h2>Plots</h2><div class="plots">{"".join(_plots(result))}</div>'
    yield "<h2>Objectives</h2>" + _objective_table(result)
    yield "<h2>Definitions</h2><table>"
    for name, text in DEFINITIONS.items():
        yield f"<tr><th>{escape(name)}<td>{escape(text)}"
    yield "</table>"
    found = [f"<li>{escape(note)}" for note in notes(report)]
    if found:
        yield f"<h2>Notes</h2><ul>{''.join(found)}</ul>"
    work = json.dumps(as_object(report)["workload"], indent=2)
    yield f"<h2>Workload</h2><pre>{escape(work)}</pre></html>\n"


def _plots(result: LoadTestResult) -> Iterator[str]:
    kinds = {each.level.kind for side in result.sides for each in side.results}
    x_unit = "requests/s" if kinds == {"rate"} else "concurrent requests"
    limits = {
        each.objective.indicator: each.objective.threshold
        for level in result.sides[0].results[:1]
        for each in level.objectives
    }
    for name, title, limit in (
        ("scheduled_ttft", "TTFT from the scheduled start", "ttft"),
        ("itl", "ITL", "itl"),
        ("tpot", "TPOT", "tpot"),
        ("scheduled_e2e", "Request duration", "e2e"),
    ):
        lines = [
            _line(side, f"{quantile} {_host(result, side)}", _milliseconds(name, quantile))
            for side in result.sides
            for quantile in ("p50", "p99")
        ]
        seconds = limits.get(limit)
        yield line_plot(title, lines, "ms", x_unit, 1000 * seconds if seconds else None)
    rates: Sequence[tuple[str, Callable[[LevelResult], float | None]]] = (
        ("Output tokens/s", lambda level: level.output_tokens),
        ("Goodput, requests/s", lambda level: level.good),
    )
    for title, read in rates:
        lines = [_line(side, _host(result, side) or "all", read) for side in result.sides]
        yield line_plot(title, lines, "per second", x_unit)


def _host(result: LoadTestResult, side: EndpointRuns) -> str:
    return public(side.endpoint.url).partition("://")[2] if len(result.sides) > 1 else ""


def _milliseconds(name: str, quantile: str) -> Callable[[LevelResult], float | None]:
    def read(level: LevelResult) -> float | None:
        found = level.latencies[name]
        return 1000 * float(getattr(found, quantile)) if found else None

    return read


def _line(side: EndpointRuns, name: str, read: Callable[[LevelResult], float | None]) -> PlotLine:
    found = [(level.level.value, read(level)) for level in side.results]
    return PlotLine(name.strip(), [(x, y) for x, y in found if y is not None])


def _objective_table(result: LoadTestResult) -> str:
    rows = [
        f"<tr><td>{escape(public(side.endpoint.url))}<td>{escape(str(level.level))}"
        f"<td>{escape(each.objective.name)}<td>{escape(each.objective.text)}"
        f'<td class="n">{100 * each.objective.target:g} %'
        f'<td class="n">{"-" if each.share is None else f"{100 * each.share:.2f} %"}'
        f'<td class="n">{100 * each.bounds.lower:.2f} to {100 * each.bounds.upper:.2f} %'
        f'<td class="n">{each.count}<td class="{each.verdict}">{each.verdict}'
        for side in result.sides
        for level in side.results
        for each in level.objectives
    ]
    if not rows:
        return "<p>None: give --slo FILE or --preset NAME.</p>"
    confidence = 100 * result.test.confidence
    heads = ("server", "load", "objective", "limit", "target", "share of good events",
             f"bounds, {confidence:g} % each", "events", "verdict")  # fmt: skip
    head = "".join(f"<th>{escape(each)}" for each in heads)
    return f"<table><tr>{head}{''.join(rows)}</table>"
