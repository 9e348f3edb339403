"""Parse PromQL text to a tree that knows where each part stands in it.

The grammar is that of Prometheus 2 and 3 with all that is experimental in it: arithmetic on
durations, ``anchored`` and ``smoothed``, ``fill``, names in quotes.  Unless they are switched off,
Grafana's template variables (``$name``, ``${name:format}``, ``[[name]]``) may stand wherever a
name, a number, a duration or a label value may, because dashboards are full of them; what a
variable hides is None in the tree.  Whether functions exist and get what they take is checked by
:mod:`promql.types`.

Nothing in a text can exhaust the reader: its length and the number of its compound parts (and so
the depth of the tree) are bounded.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import fmod, inf, isfinite
from typing import Any, NamedTuple, NoReturn

from promql.expr import PRECEDENCE, MatchOp

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

# Words that are never a metric, and those that never stand before a parenthesis as a function.
_NO_METRICS = frozenset({"atan2", "bool", "group_left", "group_right", "ignoring", "on"})
_NO_FUNCTIONS = _NO_METRICS | SET_OPERATORS | {"by", "offset", "without"}
_FILLS = frozenset({"fill", "fill_left", "fill_right"})
_EXTENDED = frozenset({"anchored", "smoothed"})
_LENGTHS = frozenset({"max_of", "min_of", "range", "step"})
"""Functions of which lengths of time may be made."""

_UNITS = {"y": 31_536_000_000, "w": 604_800_000, "d": 86_400_000, "h": 3_600_000, "m": 60_000,
          "s": 1000, "ms": 1}  # fmt: skip
"""In milliseconds, largest first: so they stand in a duration."""
_LONGEST = 2**63 / 1e9  # seconds; Prometheus counts nanoseconds in 64 bits
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "a": "\a", "b": "\b", "f": "\f", "v": "\v"}
_ESCAPE = re.compile(
    r"\\(?:x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|([0-3][0-7]{2})|(.)|$)", re.DOTALL
)

_VARIABLE = r"(?:\$\w++|\$\{[^{}\n]++\}|\[\[\w++(?::\w++)?\]\])"


_DIGITS = "[0-9]++(?:_[0-9]++)*+"


def _token(variable: str) -> re.Pattern[str]:
    """Return the pattern of a token; ``variable`` is that of a variable."""
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


_TOKENS = {True: _token(_VARIABLE), False: _token(r"(?!)")}
_HAS_VARIABLE = re.compile(_VARIABLE)
_COMMENT = re.compile(r"\#[^\n]*")
_WITH_VARIABLES_OR_COMMENTS = re.compile(rf"{_VARIABLE}|{_COMMENT.pattern}")
_DURATION = re.compile("".join(f"(?:([0-9]+){unit})?" for unit in _UNITS))


class NotPromQL(ValueError):  # noqa: N818  (reads as a statement at the raise)
    """A text that Prometheus would refuse.

    ``offset`` is the character where it goes wrong; ``end`` the one after the part that is wrong,
    if that is known; ``fix`` says what to do.
    """

    def __init__(
        self, message: str, offset: int, end: int | None = None, fix: str = "correct it"
    ) -> None:
        self.message, self.offset, self.end, self.fix = message, offset, end, fix
        super().__init__(message)


class TooLarge(NotPromQL):
    """A text that is too large to be read here, whether or not Prometheus would take it."""


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

    @property
    def picks(self) -> bool:
        """Whether the result is some of the series as they are."""
        return self.op in ("topk", "bottomk", "limitk", "limit_ratio")

    @property
    def is_one(self) -> bool:
        """Whether the result has one element without labels, if any."""
        grouped = self.labels or self.without or self.open_
        return not (grouped or self.picks or self.op in ("count_values", ""))

    def keeps(self, label: str) -> bool:
        """Whether the result still has ``label``, or may have it."""
        if self.picks or self.open_:
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


def parse(text: str, variables: bool = True) -> Node:
    """Parse an expression, with Grafana's variables or without; raises :class:`NotPromQL`."""
    if len(text) > MAX_LENGTH:
        raise TooLarge(f"longer than {MAX_LENGTH >> 10} KiB", 0)
    return _Parser(text, variables).whole()


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
    found = _DURATION.fullmatch(text) if 0 < len(text) <= 40 else None
    if not found:
        return None
    amounts = zip(found.groups("0"), _UNITS.values(), strict=True)
    return sum(int(amount) * unit for amount, unit in amounts) / 1000


class _Token(NamedTuple):
    """A token; ``word`` is how a keyword or sign is written, "" for other tokens."""

    kind: str
    text: str
    start: int
    end: int
    word: str


def _tokens(text: str, at: int, end: int, variables: bool) -> Iterator[_Token]:
    match = _TOKENS[variables].match
    while at < end:
        found = match(text, at, end)
        if not found:
            what = "text in quotes that never end" if text[at] in "\"'`" else repr(text[at])
            raise NotPromQL(f"found {what}", at)
        start, at = found.span()
        kind, token = found.lastgroup or "", found[0]
        if kind != "blank":
            word = token.lower() if kind == "name" else token if kind == "sign" else ""
            yield _Token(kind, token, start, at, word)
    yield _Token("end", "", at, at, "")


class _Parser:
    """Precedence climbing over the tokens of ``text[start:end]``."""

    def __init__(
        self, text: str, variables: bool, start: int = 0, end: int | None = None, parts: int = 0
    ) -> None:
        self._text, self._variables = text, variables
        self._tokens = tuple(_tokens(text, start, len(text) if end is None else end, variables))
        self._at = 0
        self._parts = parts

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
        raise NotPromQL(f"found {found}, expected {expected}", token.start)

    def _count(self) -> None:
        self._parts += 1
        if self._parts > MAX_PARTS:
            raise TooLarge(f"has more than {MAX_PARTS} parts", self._now.start)

    def _is_variable(self, text: str) -> bool:
        return self._variables and has_variable(text)

    def _unquoted(self, token: _Token) -> str | None:
        """Return what a string literal says; None if a variable stands in it."""
        return None if self._is_variable(token.text) else _unquoted(token)

    def _expression(self, at_least: int = 1) -> Node:
        left = self._unary()
        while (strength := PRECEDENCE.get(op := self._word(), 0)) >= at_least:
            self._count()
            self._next()
            bool_ = self._skip("bool")
            matching, labels, grouped = self._matching()
            self._fill()
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
        start = self._next().start
        if self._word() == "(":
            taken, _ = self._labels()
            if matching == "on" and (twice := sorted(taken & labels)):
                raise NotPromQL(f"the label {twice[0]} is both in on() and taken along", start)
        return matching, labels, True

    def _fill(self) -> None:
        """Read what stands for series that one side lacks."""
        while self._word() in _FILLS and self._tokens[self._at + 1].text == "(":
            self._next()
            self._next()
            self._sign()
            if self._now.kind not in ("number", "duration") and not (
                self._word() in ("inf", "nan") or self._is_variable(self._now.text)
            ):
                self._fail("a number")
            self._next()
            self._expect(")")

    def _sign(self) -> None:
        if self._word() in ("+", "-"):
            self._next()

    def _unary(self) -> Node:
        start = self._now.start
        sign = self._word()
        if sign not in ("-", "+"):
            return self._modified(self._atom())
        self._count()
        self._next()
        # A sign binds as tightly as *, so only ^ comes before it.
        inner = self._expression(PRECEDENCE["^"])
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
                return String(token.start, token.end, self._unquoted(token) or "")
            case "name":
                called = self._tokens[self._at + 1].text == "("
                if token.text.lower() in (_NO_FUNCTIONS if called else _NO_METRICS):
                    self._fail("a metric, a function, a number or a parenthesis")
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
        variable = self._is_variable(token.text)
        if (grouped or after.text == "(") and (word in AGGREGATIONS or (variable and grouped)):
            return self._aggregate("" if variable else word)
        if after.text == "(":
            return self._call("" if variable else token.text)
        if word in ("inf", "nan"):
            self._next()
            return Number(token.start, token.end, float(word))
        alone = self._variables and _HAS_VARIABLE.fullmatch(token.text) is not None
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
            if token.kind not in ("name", "string") or token.text.lower() in ("inf", "nan"):
                self._at -= 1
                self._fail("a label")
            name = token.text if token.kind == "name" else self._unquoted(token)
            if name is None or self._is_variable(name):
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
            if self._skip(","):
                if self._word() == ")":
                    self._fail("an argument")
            elif self._word() != ")":
                self._fail("',' or ')'")
        return args

    def _selector(self) -> Selector:
        start = self._now.start
        metric: str | None = ""
        before = self._now.kind == "name"
        if before:
            metric = self._next().text
            if self._is_variable(metric):
                metric = None
        matchers: list[Matcher] = []
        if self._skip("{"):
            while not self._skip("}"):
                token = self._now
                found = self._matcher()
                if isinstance(found, str):
                    if metric != "":
                        raise NotPromQL("the metric is named twice", token.start)
                    metric = found
                elif found:
                    matchers.append(found)
                elif metric == "":
                    metric = None  # the variable may name it
                if not self._skip(",") and self._word() != "}":
                    self._fail("',' or '}'")
        named = [each for each in matchers if each.label == "__name__"]
        if named and before:
            raise NotPromQL("the metric is named twice", start)
        if named and metric == "":
            metric = named[0].value if named[0].op == "=" else None
        return Selector(start, self._behind, metric, tuple(matchers))

    def _matcher(self) -> Matcher | str | None:
        """Read a matcher; return a metric that is given in quotes, None for a variable alone."""
        token = self._now
        if token.kind not in ("name", "string"):
            self._fail("a label")
        self._next()
        name = token.text if token.kind == "name" else self._unquoted(token)
        op = self._word()
        if op not in ("=", "!=", "=~", "!~"):
            if token.kind == "string":
                return name
            if self._is_variable(token.text):
                return None
            self._fail("=, !=, =~ or !~")
        self._next()
        value = self._next()
        if value.kind == "string":
            text = self._unquoted(value)
        elif value.kind == "name" and self._is_variable(value.text):
            text = None
        else:
            self._at -= 1
            self._fail("a label value in quotes")
        if name is None or self._is_variable(name):
            return None
        if token.kind == "name" and ":" in name:
            raise NotPromQL(f"a label is not called {name} without quotes", token.start)
        return Matcher(name, op, text)  # type: ignore[arg-type]  # checked above

    def _modified(self, node: Node) -> Node:
        """Read the ranges, offsets and times that follow an expression."""
        said = set[str]()
        while True:
            word = self._word()
            if self._now.kind == "range":
                node = self._ranged(node)
                said = set()
                continue
            if word not in ("offset", "@") and (
                word not in _EXTENDED or not isinstance(node, Selector)
            ):
                return node
            if word in said:
                self._fail(f"{word} only once")
            said.add(word)
            self._next()
            if word == "offset":
                while self._word() in ("+", "-"):
                    self._next()
                self._length()
            elif word == "@":
                self._time()
            if word not in _EXTENDED:
                node = self._shifted(node)

    def _length(self) -> None:
        """Read by how much something is shifted."""
        token = self._now
        if token.kind in ("duration", "number") or self._is_variable(token.text):
            self._next()
            if token.kind != "name" and (_number(token) or 0) > _LONGEST:
                raise NotPromQL("the duration is too long", token.start, token.end)
        elif self._word() in {"(", *_LENGTHS}:
            _seconds(self._atom())
        else:
            self._fail("a duration")

    def _time(self) -> None:
        """Read the time at which something is evaluated."""
        signed = self._now.text in ("+", "-")
        self._sign()
        moment = self._next()
        if moment.text.lower() in ("start", "end") and not signed:
            self._expect("(")
            self._expect(")")
        elif moment.kind in ("number", "duration"):
            if _number(moment) * 1000 >= 2**63:
                raise NotPromQL("the time is too late", moment.start, moment.end)
        elif not self._is_variable(moment.text):
            self._at -= 1
            self._fail("a time")

    def _ranged(self, node: Node) -> Node:
        token = self._now
        begin, end = token.start + 1, token.end - 1
        inside = token.text[1:-1]
        # A colon inside of a comment or a variable such as ${x:raw} divides nothing.
        hiding = _WITH_VARIABLES_OR_COMMENTS if self._variables else _COMMENT
        colon = hiding.sub(lambda found: "_" * len(found[0]), inside).find(":")
        window = self._window(begin, end if colon < 0 else begin + colon)
        if colon >= 0:
            if _COMMENT.sub("", inside[colon + 1 :]).strip():
                self._window(begin + colon + 1, end)
            self._count()
            self._next()
            return Subquery(node.start, token.end, node, window)
        if not isinstance(node, Selector) or node.window or node.shifted:
            self._fail("a step as well, as in [5m:1m]: this is no metric")
        self._next()
        return Selector(node.start, token.end, node.metric, node.matchers, window)

    def _window(self, start: int, end: int) -> Window:
        """Read a length of time in brackets; None for its seconds where they are not known."""
        text = _COMMENT.sub("", self._text[start:end]).strip()
        if self._is_variable(text):
            return Window(text, None)
        if (seconds := duration(text)) and seconds <= _LONGEST:
            return Window(text, seconds)
        try:
            length = _Parser(self._text, False, start, end, self._parts).whole()
            seconds = _seconds(length)
        except TooLarge:
            raise
        except NotPromQL:
            self._fail("a duration in brackets")
        if seconds is not None and seconds <= 0:
            if isinstance(length, Number):
                self._fail("a duration above 0")
            seconds = None
        if seconds is not None and seconds > _LONGEST:
            self._fail("a shorter duration")
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


def _seconds(node: Node) -> float | None:
    """Return a length of time; None where a query decides it, as by its step."""
    node = bare(node)
    match node:
        case Number(value=value):
            return value
        case Negative(expr=expr):
            value = _seconds(expr)
            return None if value is None else -value
        case Call(function=function, args=args) if function.lower() in _LENGTHS:
            wanted = 2 if function.lower().endswith("_of") else 0
            if len(args) != wanted:
                raise NotPromQL(f"{function} takes {wanted} arguments", node.start, node.end)
            lengths = [_seconds(each) for each in args]
            if not lengths or None in lengths:
                return None
            return (max if function.lower() == "max_of" else min)(each or 0.0 for each in lengths)
        case Binary(op=op, left=left, right=right) if op in _ARITHMETIC:
            one, other = _seconds(left), _seconds(right)
            if op in "/%" and isinstance(bare(right), Number) and other == 0:
                raise NotPromQL("this divides by zero", node.start, node.end)
            if one is None or other is None:
                return None
            try:
                result = _ARITHMETIC[op](one, other)
            except (ArithmeticError, ValueError):
                return None
            return result if isinstance(result, float) and isfinite(result) else None
    raise NotPromQL("this is no length of time", node.start, node.end)


_ARITHMETIC: dict[str, Callable[[float, float], Any]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": operator.truediv,
    "%": fmod,
    "^": operator.pow,
}


def _number(token: _Token) -> float:
    text = token.text.lower()
    if token.kind == "duration":
        value = duration(text)
        if value is None:
            message = "a duration has its units from the largest to the smallest, each once"
            raise NotPromQL(message, token.start, token.end)
        return value
    try:
        value = _value(text.replace("_", ""))
    except OverflowError:
        value = inf
    if value == inf:
        raise NotPromQL("the number is too large", token.start, token.end)
    return value


def _value(digits: str) -> float:
    """Return a number as Go reads it: 0755 is octal, 0855 is not."""
    if digits.startswith("0x"):
        return float(int(digits, 16)) if len(digits) <= 18 else inf
    if re.fullmatch(r"0[0-7]{1,21}", digits):
        return float(int(digits, 8))
    return float(digits)


def _unquoted(token: _Token) -> str:
    """Return what a string literal says, as Go reads it."""
    quote, inside = token.text[0], token.text[1:-1]
    if quote == "`" or "\\" not in inside:
        return inside

    def unescape(found: re.Match[str]) -> str:
        byte, short, long, octal, letter = found.groups()
        if letter is not None and (letter in _ESCAPES or letter in ("\\", quote)):
            return _ESCAPES.get(letter, letter)
        if code := short or long:
            point = int(code, 16)
            if point <= 0x10FFFF and not 0xD800 <= point < 0xE000:
                return chr(point)
        elif byte or octal:
            value = int(byte, 16) if byte else int(octal, 8)
            return chr(value) if value < 0x80 else chr(0xDC00 + value)  # a part of UTF-8
        at = token.start + 1 + found.start()
        raise NotPromQL(f"found {found[0]}, which is no escape", at, at + len(found[0]))

    text = _ESCAPE.sub(unescape, inside)
    try:
        return text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
    except UnicodeEncodeError:  # half a character, from JSON
        return text
