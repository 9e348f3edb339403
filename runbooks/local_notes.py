"""Local notes: Markdown of a team, which the page of the same name includes."""

from __future__ import annotations

import re
from itertools import pairwise

from runbooks.markdown import anchor

FOLDER = "local"
"""The folder of a service's notes; nothing in it is generated."""

_TITLE = "Local notes"
_LEVELS = 2
"""Headings of notes are that much below their own level, so below the heading of their section."""


def with_notes(page: str, notes: str) -> str:
    """Append notes to a page, and link to them below its title."""
    if not notes.strip():
        return page
    link = f"This page has [{_TITLE.lower()}](#{anchor(_TITLE)})."
    linked = re.sub(r"^(# .*)$", lambda title: f"{title[0]}\n\n{link}", page, count=1, flags=re.M)
    return f"{linked}\n## {_TITLE}\n\n{_demoted(notes)}\n"


def _demoted(notes: str) -> str:
    """Move headings two levels down; those that are underlined become the kind with ``#``."""
    from markdown_it import MarkdownIt  # of the extra `generate`, which `diagnose` does not need

    lines = notes.strip("\n").split("\n")
    tokens = MarkdownIt("commonmark").parse("\n".join(lines))
    # From the last, so that the places of those before stay.
    for token, content in reversed([*pairwise(tokens)]):
        if token.type == "heading_open" and token.level == 0 and token.map:
            level = min(int(token.tag[1:]) + _LEVELS, 6)
            text = content.content.replace("\n", " ")
            lines[slice(*token.map)] = [f"{'#' * level} {text}".rstrip()]
    return "\n".join(lines).rstrip()
