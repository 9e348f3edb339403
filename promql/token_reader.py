"""Read tokens one after the other, and count the parts of an expression."""

from __future__ import annotations

from typing import NoReturn

from promql.lexer import InvalidPromQL, PromQLTooLarge, Token, has_variable, tokenize
from promql.literals import InvalidLiteral, number_value, unquote
from promql.matchers import Template

MAX_PARTS = 256
"""Operators, calls, aggregations, subqueries and parentheses in one expression."""


class TokenReader:
    """A position in the tokens of ``text[start:end]``."""

    def __init__(
        self, text: str, variables: bool, start: int = 0, end: int | None = None, parts: int = 0
    ) -> None:
        self._text, self._variables = text, variables
        self._tokens = tuple(tokenize(text, start, len(text) if end is None else end, variables))
        self._at = 0
        self._parts = parts

    @property
    def _now(self) -> Token:
        return self._tokens[self._at]

    def _next(self) -> Token:
        token = self._tokens[self._at]
        self._at += token.kind != "end"
        return token

    @property
    def _last_end(self) -> int:
        """Where the last token ended."""
        return self._tokens[self._at - 1].end

    def _word(self) -> str:
        return self._tokens[self._at].word

    def _skip(self, word: str) -> bool:
        if self._tokens[self._at].word != word:
            return False
        self._at += 1
        return True

    def _expect(self, sign: str) -> None:
        if not self._skip(sign):
            self._fail(repr(sign))

    def _fail(self, expected: str) -> NoReturn:
        token = self._now
        found = f"{token.text[:40]!r}" if token.text else "the end"
        raise InvalidPromQL(f"found {found}, expected {expected}", token.start)

    def _count(self) -> None:
        self._parts += 1
        if self._parts > MAX_PARTS:
            raise PromQLTooLarge(f"has more than {MAX_PARTS} parts", self._now.start)

    def _has_variable(self, text: str) -> bool:
        return self._variables and has_variable(text)

    def _since(self, at: int) -> str:
        """Return the text of the tokens from index ``at`` on, without blanks."""
        return "".join(token.text for token in self._tokens[at : self._at])

    def _name(self, token: Token) -> str:
        return Template(token.text) if self._has_variable(token.text) else token.text

    def _string(self, token: Token) -> str:
        if self._has_variable(token.text):
            return Template(token.text)
        try:
            return unquote(token.text)
        except InvalidLiteral as defect:
            start, end = token.start + defect.start, token.start + (defect.end or 0)
            raise InvalidPromQL(defect.message, start, end) from None

    def _name_or_string(self, token: Token) -> str:
        return self._name(token) if token.kind == "name" else self._string(token)


def token_number(token: Token) -> float:
    """Return the value of a number or a duration; raises :class:`InvalidPromQL`."""
    try:
        return number_value(token.text)
    except InvalidLiteral as defect:
        raise InvalidPromQL(defect.message, token.start, token.end) from None
