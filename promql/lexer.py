"""Split PromQL text into tokens, with or without Grafana's template variables."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

_VARIABLE = r"(?:\$\w++|\$\{[^{}\n]++\}|\[\[\w++(?::\w++)?\]\])"


_DIGITS = "[0-9]++(?:_[0-9]++)*+"


def _token_pattern(variable: str) -> re.Pattern[str]:
    """Return the pattern of a token; ``variable`` is the pattern of a Grafana variable."""
    return re.compile(
        rf"""
        (?P<blank>\s++|\#[^\n]*+)
      | (?P<string>"(?:[^"\\\n]|\\.)*+"|'(?:[^'\\\n]|\\.)*+'|`[^`]*+`)
      | (?P<duration>(?:[0-9]++(?:ms|[smhdwy]))++)(?!\w)
      | (?P<number>
            0[xX]_?[0-9a-fA-F]++(?:_[0-9a-fA-F]++)*+(?![\w$])
          | (?:{_DIGITS}\.?(?:{_DIGITS})?|\.{_DIGITS})(?:[eE][-+]?{_DIGITS})?(?![\w$])
        )
      | (?P<range>\[(?:{variable}|\#[^\n]*+\n|[^\[\]"'`\#])++\])
      | (?P<name>(?:{variable}|[a-zA-Z_:])(?:{variable}|[a-zA-Z0-9_:])*+)
      | (?P<sign>==|!=|=~|!~|>=|<=|</|>/|[-+*/%^<>=(){{}},@])
        """,
        re.VERBOSE,
    )


_TOKENS = {True: _token_pattern(_VARIABLE), False: _token_pattern(r"(?!)")}
_HAS_VARIABLE = re.compile(_VARIABLE)
_COMMENT = re.compile(r"\#[^\n]*")
_VARIABLE_OR_COMMENT = re.compile(rf"{_VARIABLE}|{_COMMENT.pattern}")


class InvalidPromQL(ValueError):  # noqa: N818  (reads as a statement at the raise)
    """A text that Prometheus refuses.

    ``offset`` is the index of the defect, ``end`` the index after it, if that is known.
    """

    def __init__(
        self, message: str, offset: int, end: int | None = None, fix: str = "correct it"
    ) -> None:
        self.message, self.offset, self.end, self.fix = message, offset, end, fix
        super().__init__(message)


class PromQLTooLarge(InvalidPromQL):
    """A text above the limits of this parser, whether or not Prometheus accepts it."""


class Token(NamedTuple):
    """A token; ``word`` is a keyword in lower case or a sign, empty for other tokens."""

    kind: str
    text: str
    start: int
    end: int
    word: str


def tokenize(text: str, start: int, end: int, variables: bool) -> Iterator[Token]:
    """Yield the tokens of ``text[start:end]``, then one of the kind ``end``."""
    match = _TOKENS[variables].match
    at = start
    while at < end:
        found = match(text, at, end)
        if not found:
            what = "text in quotes that never end" if text[at] in "\"'`" else repr(text[at])
            raise InvalidPromQL(f"found {what}", at)
        begin, at = found.span()
        kind, token = found.lastgroup or "", found[0]
        if kind != "blank":
            word = token.lower() if kind == "name" else token if kind == "sign" else ""
            yield Token(kind, token, begin, at, word)
    yield Token("end", "", at, at, "")


def has_variable(text: str) -> bool:
    """Whether a text contains a variable of Grafana."""
    return _HAS_VARIABLE.search(text) is not None


def is_variable(text: str) -> bool:
    """Whether a text is one variable of Grafana."""
    return _HAS_VARIABLE.fullmatch(text) is not None


def without_comments(text: str) -> str:
    """Return a text without comments and surrounding blanks."""
    return _COMMENT.sub("", text).strip()


def range_colon(inside: str, variables: bool) -> int:
    """Return the index of the colon between window and step, -1 without one.

    Comments and variables such as ``${x:raw}`` may contain others.
    """
    hiding = _VARIABLE_OR_COMMENT if variables else _COMMENT
    return hiding.sub(lambda found: "_" * len(found[0]), inside).find(":")
