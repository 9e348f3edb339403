"""HTML of tables and of the small texts in them; cells are HTML, all else is escaped."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from html import escape


def table(
    caption: str, names: tuple[str, ...], rows: Iterable[tuple[str, ...]], *, hidden: bool = False
) -> Iterator[str]:
    """Yield a table, or nothing without rows; a ``hidden`` caption is for screen readers only."""
    lines = [
        f'<tr><th scope="row">{first}</th>'
        + "".join(
            f'<td data-name="{escape(name)}">{cell}</td>'
            for name, cell in zip(names[1:], cells, strict=True)
        )
        + "</tr>"
        for first, *cells in rows
    ]
    if lines:
        style = ' class="hidden"' if hidden else ""
        heads = "".join(f'<th scope="col">{escape(name)}</th>' for name in names)
        yield f"<table><caption{style}>{escape(caption)}</caption>"
        yield f"<thead><tr>{heads}</tr></thead><tbody>"
        yield from lines
        yield "</tbody></table>"


def details(key: str, summary: str, lines: Iterable[str]) -> Iterator[str]:
    """Yield a disclosure; the script keeps it open by its ``key``."""
    yield f'<details data-key="{escape(key)}"><summary>{escape(summary)}</summary>'
    yield from lines
    yield "</details>"


def small(text: str) -> str:
    """Return a small line, nothing without text."""
    return f"<small>{escape(text)}</small>" if text else ""


def why(note: str, fix: str) -> str:
    """Return a reason and its fix as small lines."""
    return small(note) + small(f"Fix: {fix}" if fix else "")


def colored(level: str, text: str) -> str:
    """Return a text in the color of a level."""
    return f'<span class="{level}">{escape(text)}</span>'
