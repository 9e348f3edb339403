"""Parse PromQL text to a tree that knows where each part stands in it.

The grammar is that of Prometheus 2 and 3.  Two things are added, because dashboards are full of
them: Grafana's template variables (``$name``, ``${name:format}``, ``[[name]]``) may stand wherever
a name, a number, a duration or a label value may, and what a variable hides is None in the tree.
Left out is what a reader of queries does not need: whether a function exists and what types its
arguments have, but for :func:`is_range`.

Nothing in a text can exhaust the reader: its length and the number of its compound parts (and so
the depth of the tree) are bounded.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NoReturn

from promql.expr import MatchOp

MAX_LENGTH = 64 * 1024
MAX_PARTS = 256
"""Operators, calls, aggregations, subqueries and parentheses in one expression."""

AGGREGATIONS = frozenset(
    {
        "avg", "bottomk", "count", "count_values", "group", "limit_ratio", "limitk", "max", "min",
        "quantile", "stddev", "stdvar", "sum", "topk",
    }
)  # fmt: skip
SET_OPERATORS = frozenset({"and", "or", "unless"})
COMPARISONS = frozenset({"==", "!=", ">", "<", ">=", "<="})

# Binding strength, weakest first; https://prometheus.io/docs/prometheus/latest/querying/operators/
_PRECEDENCE = {
    "or": 1,
    "and": 2,
    "unless": 2,
    **dict.fromkeys(COMPARISONS, 3),
    **dict.fromkeys(("+", "-"), 4),
    **dict.fromkeys(("*", "/", "%", "atan2"), 5),
    "^": 6,
}
_KEYWORDS = frozenset({"bool", "by", "group_left", "group_right", "ignoring", "offset", "on"})
_UNITS = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800, "y": 31_536_000}
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "a": "\a", "b": "\b", "f": "\f", "v": "\v"}

_VARIABLE = r"(?:\$\w++|\$\{[^{}\n]++\}|\[\[\w++(?::\w++)?\]\])"
_DURATION = r"(?:[0-9]++(?:ms|[smhdwy]))++"
_TOKEN = re.compile(
    rf"""
    (?P<blank>\s++|\#[^\n]*+)
  | (?P<string>"(?:[^"\\\n]|\\.)*+"|'(?:[^'\\\n]|\\.)*+'|`[^`]*+`)
  | (?P<duration>{_DURATION})(?!\w)
  | (?P<number>0[xX][0-9a-fA-F]++|(?:[0-9]++\.?[0-9]*+|\.[0-9]++)(?:[eE][-+]?[0-9]++)?)(?![\w$])
  | (?P<range>\[(?:{_VARIABLE}|[^\[\]"'`])++\])
  | (?P<name>(?:{_VARIABLE}|[a-zA-Z_:])(?:{_VARIABLE}|[a-zA-Z0-9_:])*+)
  | (?P<sign>==|!=|=~|!~|>=|<=|[-+*/%^<>=(){{}},@])
    """,
    re.VERBOSE,
)
_HAS_VARIABLE = re.compile(_VARIABLE)
_WHOLE_DURATION = re.compile(_DURATION)
_DURATION_PART = re.compile(r"([0-9]+)(ms|[smhdwy])")


class NotPromQL(ValueError):  # noqa: N818  (reads as a statement at the raise)
    """A text that Prometheus would refuse; ``offset`` is the character where it goes wrong."""

    def __init__(self, message: str, offset: int) -> None:
        self.message, self.offset = message, offset
        super().__init__(message)


@dataclass(frozen=True, slots=True)
class Node:
    """Any part of an expression; it stands at ``text[start:end]``."""

    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Number(Node):
    """A scalar; durations count in seconds, ``value`` is None for a variable."""

    value: float | None


@dataclass(frozen=True, slots=True)
class String(Node):
    """A string literal."""

    value: str


@dataclass(frozen=True, slots=True)
class Matcher:
    """One label matcher; ``value`` is None if a variable stands in it."""

    label: str
    op: MatchOp
    value: str | None


@dataclass(frozen=True, slots=True)
class Window:
    """The length of a range as written, in seconds if that can be known."""

    text: str
    seconds: float | None


@dataclass(frozen=True, slots=True)
class Selector(Node):
    """An instant vector, or with ``window`` a range vector.

    ``metric`` is "" where only matchers say which, and None where a variable does; ``shifted``
    tells of ``offset`` or ``@``.
    """

    metric: str | None
    matchers: tuple[Matcher, ...] = ()
    window: Window | None = None
    shifted: bool = False


@dataclass(frozen=True, slots=True)
class Subquery(Node):
    """``expr[window:step]``."""

    expr: Node
    window: Window


@dataclass(frozen=True, slots=True)
class Call(Node):
    """A function call; the function is "" where a variable names it."""

    function: str
    args: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Aggregate(Node):
    """An aggregation; ``labels`` is None without a grouping clause.

    ``open_`` tells of a variable among the labels.
    """

    op: str
    expr: Node
    labels: frozenset[str] | None = None
    without: bool = False
    parameter: Node | None = None
    open_: bool = False

    def keeps(self, label: str) -> bool:
        """Whether the result still has ``label``, or may have it."""
        if self.op in ("topk", "bottomk", "limitk", "limit_ratio") or self.open_:
            return True
        return (label in (self.labels or ())) != self.without


@dataclass(frozen=True, slots=True)
class Binary(Node):
    """``left op right``; ``matching`` is "on", "ignoring" or "", ``grouped`` tells of group_*."""

    op: str
    left: Node
    right: Node
    bool_: bool = False
    matching: str = ""
    labels: frozenset[str] = frozenset()
    grouped: bool = False


@dataclass(frozen=True, slots=True)
class Negative(Node):
    """``-expr``."""

    expr: Node


@dataclass(frozen=True, slots=True)
class Paren(Node):
    """``(expr)``."""

    expr: Node


def parse(text: str) -> Node:
    """Parse an expression; raises :class:`NotPromQL`."""
    if len(text) > MAX_LENGTH:
        raise NotPromQL(f"longer than {MAX_LENGTH >> 10} KiB", 0)
    return _Parser(text).whole()


def children(node: Node) -> tuple[Node, ...]:
    """Return the expressions directly inside another, in the order of the text."""
    match node:
        case Subquery() | Negative() | Paren():
            return (node.expr,)
        case Call():
            return node.args
        case Aggregate(parameter=None):
            return (node.expr,)
        case Aggregate(parameter=Node() as parameter):
            return (parameter, node.expr)
        case Binary():
            return (node.left, node.right)
    return ()


def walk(node: Node, around: tuple[Node, ...] = ()) -> Iterator[tuple[Node, tuple[Node, ...]]]:
    """Yield every part with what is around it, outermost first."""
    yield node, around
    for child in children(node):
        yield from walk(child, (*around, node))


def bare(node: Node) -> Node:
    """Return what stands inside any parentheses."""
    while isinstance(node, Paren):
        node = node.expr
    return node


def selectors(node: Node) -> Iterator[Selector]:
    """Yield the selectors of an expression."""
    return (part for part, _ in walk(node) if isinstance(part, Selector))


def is_range(node: Node) -> bool:
    """Whether an expression is a range vector."""
    node = bare(node)
    return isinstance(node, Subquery) or (isinstance(node, Selector) and node.window is not None)


def has_variable(text: str) -> bool:
    """Whether a text holds anything that Grafana would replace."""
    return _HAS_VARIABLE.search(text) is not None


def duration(text: str) -> float | None:
    """Return the seconds of a duration such as ``1h30m``; None if it is none."""
    if not _WHOLE_DURATION.fullmatch(text) or len(text) > 40:
        return None
    return sum(int(amount) * _UNITS[unit] for amount, unit in _DURATION_PART.findall(text))


@dataclass(frozen=True, slots=True)
class _Token:
    kind: str
    text: str
    start: int
    end: int


def _tokens(text: str) -> Iterator[_Token]:
    at = 0
    while at < len(text):
        found = _TOKEN.match(text, at)
        if not found:
            what = "text in quotes that never end" if text[at] in "\"'`" else repr(text[at])
            raise NotPromQL(f"found {what}", at)
        at = found.end()
        if found.lastgroup != "blank":
            yield _Token(found.lastgroup or "", found[0], found.start(), at)
    yield _Token("end", "", at, at)


class _Parser:
    """Precedence climbing over the tokens."""

    def __init__(self, text: str) -> None:
        self._tokens = tuple(_tokens(text))
        self._at = 0
        self._parts = 0

    def whole(self) -> Node:
        node = self._expression()
        if self._now.kind != "end":
            self._fail("an operator or the end")
        return node

    @property
    def _now(self) -> _Token:
        return self._tokens[self._at]

    def _next(self) -> _Token:
        token = self._tokens[self._at]
        self._at += token.kind != "end"
        return token

    @property
    def _behind(self) -> int:
        """Where the last token ended."""
        return self._tokens[self._at - 1].end

    def _word(self) -> str:
        """Return the token as a keyword or sign is written, "" for other tokens."""
        token = self._now
        if token.kind == "name":
            return token.text.lower()
        return token.text if token.kind == "sign" else ""

    def _skip(self, word: str) -> bool:
        if self._word() != word:
            return False
        self._next()
        return True

    def _expect(self, sign: str) -> None:
        if not self._skip(sign):
            self._fail(repr(sign))

    def _fail(self, expected: str) -> NoReturn:
        token = self._now
        found = f"{token.text[:40]!r}" if token.text else "the end"
        raise NotPromQL(f"found {found}, expected {expected}", token.start)

    def _count(self) -> None:
        self._parts += 1
        if self._parts > MAX_PARTS:
            raise NotPromQL(f"has more than {MAX_PARTS} parts", self._now.start)

    def _expression(self, at_least: int = 1) -> Node:
        left = self._unary()
        while (strength := _PRECEDENCE.get(op := self._word(), 0)) >= at_least:
            self._count()
            self._next()
            bool_ = self._skip("bool")
            matching, labels, grouped = self._matching()
            right = self._expression(strength + (op != "^"))
            left = Binary(left.start, right.end, op, left, right, bool_, matching, labels, grouped)
        return left

    def _matching(self) -> tuple[str, frozenset[str], bool]:
        matching = self._word()
        if matching not in ("on", "ignoring"):
            return "", frozenset(), False
        self._next()
        labels, _ = self._labels()
        if self._word() not in ("group_left", "group_right"):
            return matching, labels, False
        self._next()
        if self._word() == "(":
            self._labels()
        return matching, labels, True

    def _unary(self) -> Node:
        start = self._now.start
        sign = self._word()
        if sign not in ("-", "+"):
            return self._modified(self._atom())
        self._count()
        self._next()
        # A sign binds as tightly as *, so only ^ comes before it.
        inner = self._expression(_PRECEDENCE["^"])
        if sign == "+":
            return inner
        if isinstance(inner, Number) and inner.value is not None:
            return Number(start, inner.end, -inner.value)
        return Negative(start, inner.end, inner)

    def _atom(self) -> Node:
        token = self._now
        match token.kind:
            case "number" | "duration":
                self._next()
                return Number(token.start, token.end, _number(token))
            case "string":
                self._next()
                return String(token.start, token.end, _unquoted(token.text) or "")
            case "name" if token.text.lower() in _KEYWORDS | _PRECEDENCE.keys():
                if self._tokens[self._at + 1].text in ("(", ""):
                    self._fail("a metric, a function, a number or a parenthesis")
                return self._named()
            case "name":
                return self._named()
        if self._word() == "{":
            return self._selector()
        if not self._skip("("):
            self._fail("a metric, a function, a number or a parenthesis")
        self._count()
        inner = self._expression()
        self._expect(")")
        return Paren(token.start, self._behind, inner)

    def _named(self) -> Node:
        """Read what begins with a name: an aggregation, a call, a number, a variable, a metric."""
        token = self._now
        word, after = token.text.lower(), self._tokens[self._at + 1]
        grouped = after.text.lower() in ("by", "without") and after.kind == "name"
        variable = has_variable(token.text)
        if (grouped or after.text == "(") and (word in AGGREGATIONS or (variable and grouped)):
            return self._aggregate("" if variable else word)
        if after.text == "(":
            return self._call("" if variable else token.text)
        if word in ("inf", "nan") and after.text != "{":
            self._next()
            return Number(token.start, token.end, float(word))
        alone = _HAS_VARIABLE.fullmatch(token.text) is not None
        if alone and after.text != "{" and after.kind != "range":
            self._next()
            return Number(token.start, token.end, None)
        return self._selector()

    def _aggregate(self, op: str) -> Aggregate:
        self._count()
        start = self._next().start
        grouping = self._grouping()
        args = self._arguments()
        if grouping is None:
            grouping = self._grouping()
        if not 1 <= len(args) <= 2:
            self._fail(f"one or two arguments of {op}")
        labels, without, open_ = grouping or (None, False, False)
        parameter = args[0] if len(args) == 2 else None
        return Aggregate(start, self._behind, op, args[-1], labels, without, parameter, open_)

    def _grouping(self) -> tuple[frozenset[str], bool, bool] | None:
        word = self._word()
        if word not in ("by", "without"):
            return None
        self._next()
        labels, open_ = self._labels()
        return labels, word == "without", open_

    def _labels(self) -> tuple[frozenset[str], bool]:
        """Read a list of label names; also whether variables stand in it."""
        self._expect("(")
        labels = set[str]()
        open_ = False
        while not self._skip(")"):
            token = self._next()
            if token.kind not in ("name", "string"):
                self._at -= 1
                self._fail("a label")
            name = token.text if token.kind == "name" else _unquoted(token.text)
            if name is None or has_variable(name):
                open_ = True
            else:
                labels.add(name)
            if not self._skip(",") and self._word() != ")":
                self._fail("',' or ')'")
        return frozenset(labels), open_

    def _call(self, function: str) -> Call:
        self._count()
        start = self._next().start
        args = self._arguments()
        return Call(start, self._behind, function, tuple(args))

    def _arguments(self) -> list[Node]:
        self._expect("(")
        args: list[Node] = []
        while not self._skip(")"):
            self._count()
            args.append(self._expression())
            if not self._skip(",") and self._word() != ")":
                self._fail("',' or ')'")
        return args

    def _selector(self) -> Selector:
        start = self._now.start
        metric: str | None = ""
        if self._now.kind == "name":
            metric = self._next().text
            if has_variable(metric):
                metric = None
        matchers: list[Matcher] = []
        if self._skip("{"):
            while not self._skip("}"):
                found = self._matcher()
                if isinstance(found, str):
                    metric = found
                elif found:
                    matchers.append(found)
                if not self._skip(",") and self._word() != "}":
                    self._fail("',' or '}'")
        for each in matchers:
            if each.label == "__name__" and not metric:
                metric = each.value if each.op == "=" else None
        return Selector(start, self._behind, metric, tuple(matchers))

    def _matcher(self) -> Matcher | str | None:
        """Read a matcher; return a metric that is given in quotes, None for a variable alone."""
        token = self._now
        if token.kind not in ("name", "string"):
            self._fail("a label")
        self._next()
        name = token.text if token.kind == "name" else _unquoted(token.text)
        op = self._word()
        if op not in ("=", "!=", "=~", "!~"):
            if token.kind == "string":
                return name
            if has_variable(token.text):
                return None
            self._fail("=, !=, =~ or !~")
        self._next()
        value = self._next()
        if value.kind == "string":
            text = _unquoted(value.text)
        elif value.kind == "name" and has_variable(value.text):
            text = None
        else:
            self._at -= 1
            self._fail("a label value in quotes")
        if name is None or has_variable(name):
            return None
        return Matcher(name, op, text)  # type: ignore[arg-type]  # checked above

    def _modified(self, node: Node) -> Node:
        """Read the ranges, offsets and times that follow an expression."""
        while True:
            token = self._now
            if token.kind == "range":
                node = self._ranged(node)
            elif self._word() == "offset":
                self._next()
                self._skip("-")
                if self._now.kind not in ("duration", "number") and not has_variable(
                    self._now.text
                ):
                    self._fail("a duration")
                self._next()
                node = self._shifted(node)
            elif self._word() == "@":
                self._next()
                self._skip("-")
                moment = self._next()
                if moment.text.lower() in ("start", "end"):
                    self._expect("(")
                    self._expect(")")
                elif moment.kind != "number" and not has_variable(moment.text):
                    self._at -= 1
                    self._fail("a time")
                node = self._shifted(node)
            else:
                return node

    def _ranged(self, node: Node) -> Node:
        token = self._now
        inside = token.text[1:-1]
        # A colon inside of a variable such as ${x:raw} divides nothing.
        colon = _HAS_VARIABLE.sub(lambda found: "_" * len(found[0]), inside).find(":")
        window = self._window((inside if colon < 0 else inside[:colon]).strip())
        if colon >= 0:
            if step := inside[colon + 1 :].strip():
                self._window(step)
            self._count()
            self._next()
            return Subquery(node.start, token.end, node, window)
        if not isinstance(node, Selector) or node.window or node.shifted:
            self._fail("a step as well, as in [5m:1m]: this is no metric")
        self._next()
        return Selector(node.start, token.end, node.metric, node.matchers, window)

    def _window(self, text: str) -> Window:
        """Read a length of time; Prometheus 3 also computes with them, which is not followed."""
        seconds = duration(text)
        if seconds is None and re.fullmatch(r"[0-9]{1,12}(?:\.[0-9]{1,12})?", text):
            seconds = float(text)
        if seconds is None and not has_variable(text) and not set(text) & set("+-*/%^("):
            self._fail("a duration in brackets")
        if seconds is not None and seconds <= 0:
            self._fail("a duration above 0")
        return Window(text, seconds)

    def _shifted(self, node: Node) -> Node:
        if isinstance(node, Selector):
            return Selector(
                node.start, self._behind, node.metric, node.matchers, node.window, shifted=True
            )
        if not isinstance(node, Subquery):
            self._at -= 1
            self._fail("a metric or a subquery before that")
        return Subquery(node.start, self._behind, node.expr, node.window)


def _number(token: _Token) -> float | None:
    if token.kind == "duration":
        return duration(token.text)
    text = token.text.lower()
    return float(int(text, 16)) if text.startswith("0x") and len(text) < 20 else _float(text)


def _float(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def _unquoted(text: str) -> str | None:
    """Return what a string literal says; None if a variable stands in it."""
    if has_variable(text):
        return None
    inside = text[1:-1]
    if text[0] == "`" or "\\" not in inside:
        return inside
    return re.sub(
        r"\\(?:x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|U(0010[0-9a-fA-F]{4}|000[0-9a-fA-F]{5})|([0-7]{3})|(.))",
        _unescaped,
        inside,
    )


def _unescaped(found: re.Match[str]) -> str:
    byte, short, long, octal, letter = found.groups()
    if letter:
        return _ESCAPES.get(letter, letter)
    return chr(int(octal, 8) if octal else int(byte or short or long, 16))
