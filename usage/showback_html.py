"""The showback report as one HTML page: no script, nothing from elsewhere."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape

from usage.showback import Showback, notes, unavailable
from usage.showback_text import HEADINGS, reconciliation, summary, table

_STYLE = """
:root { color-scheme: light dark; --ink: #1b1f24; --soft: #57606b; --line: #d5dae0; --back: #fff }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e7eaee; --soft: #a3adb9; --line: #363e49; --back: #14181d } }
body { margin: 0 auto; max-width: 80rem; padding: 1rem; background: var(--back);
  color: var(--ink); font: 15px/1.45 system-ui, sans-serif }
h1 { font-size: 1.4rem } p, li { color: var(--soft) } div { overflow-x: auto }
table { border-collapse: collapse } th, td { padding: .2rem .8rem .2rem 0; text-align: right;
  border-bottom: 1px solid var(--line); font-variant-numeric: tabular-nums }
th:nth-child(-n+2), td:nth-child(-n+2) { text-align: left }
"""


def as_html(report: Showback) -> str:
    """Return the page."""
    return "".join(_page(report))


def _page(report: Showback) -> Iterator[str]:
    yield (
        '<!doctype html><html lang="en"><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width">'
        '<meta http-equiv="Content-Security-Policy" '
        "content=\"default-src 'none'; style-src 'unsafe-inline'\">"
        f"<title>Showback by tenant</title><style>{_STYLE}</style><h1>Showback by tenant</h1>"
        f"<p>{escape(summary(report))}<p>{escape(report.rules.sentence)}"
    )
    head = "".join(f"<th>{escape(each)}" for each in HEADINGS)
    yield f"<div><table><tr>{head}"
    for row in table(report):
        yield "<tr>" + "".join(f"<td>{escape(cell)}" for cell in row)
    yield f"</table></div><p>{escape(reconciliation(report))}<ul>"
    for name, why in unavailable(report):
        yield f"<li>Unavailable: {escape(name)}: {escape(why)}."
    for note in notes(report):
        yield f"<li>{escape(note)}"
    yield f"</ul><p>tokenslo {escape(report.version)}</html>\n"
