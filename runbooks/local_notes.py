"""Local notes: Markdown of a team, which the page of the same name includes."""

from __future__ import annotations

import re
from collections.abc import Iterator

from runbooks.markdown import anchor

FOLDER = "local"
"""The folder of a service's notes; nothing in it is generated."""

_TITLE = "Local notes"
_LEVELS = 2
"""Headings of notes are below that of their section."""
_FENCE = re.compile(r" {0,3}(`{3,}|~{3,})(.*)")
_HEADING = re.compile(r" {0,3}(#{1,6})([ \t].*)?")
_UNDERLINE = re.compile(r" {0,3}(=+|-+)[ \t]*")
# Lines after which an underline is a rule or a row of a table, not a heading.
_NO_TITLE = re.compile(r"\s*$| {4}|\t|\s*([>|]|[-*+] |\d+[.)] )")


def with_notes(page: str, notes: str) -> str:
    """Append notes to a page, and link to them below its title."""
    if not (notes := "\n".join(_demoted(notes.splitlines())).strip()):
        return page
    link = f"This page has [{_TITLE.lower()}](#{anchor(_TITLE)})."
    linked = re.sub(r"^(# .*)$", lambda title: f"{title[0]}\n\n{link}", page, count=1, flags=re.M)
    return f"{linked}\n## {_TITLE}\n\n{notes}\n"


def _demoted(lines: list[str]) -> Iterator[str]:
    """Move headings below the level of a section; underlined ones become the kind with ``#``.

    What is in fenced code stays.
    """
    fence = ""
    for index, line in enumerate(lines):
        following = lines[index + 1] if index + 1 < len(lines) else ""
        if fence:
            marks = _FENCE.fullmatch(line)
            if marks and marks[1].startswith(fence) and not marks[2].strip():
                fence = ""
            yield line
        elif opening := _FENCE.fullmatch(line):
            fence = opening[1]
            yield line
        elif heading := _HEADING.fullmatch(line):
            yield f"{'#' * min(len(heading[1]) + _LEVELS, 6)}{heading[2] or ''}"
        elif not _NO_TITLE.match(line) and (under := _UNDERLINE.fullmatch(following)):
            yield f"{'#' * (_LEVELS + (1 if under[1][0] == '=' else 2))} {line.strip()}"
        elif index and _UNDERLINE.fullmatch(line) and not _NO_TITLE.match(lines[index - 1]):
            continue  # the underline of the line before
        else:
            yield line
