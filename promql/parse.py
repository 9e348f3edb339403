"""Parse PromQL text to the tree of :mod:`promql.tree`.

The grammar is that of Prometheus 2 and 3 with its experimental parts: arithmetic on durations,
``anchored`` and ``smoothed``, ``fill``, names in quotes.  Grafana's template variables (``$name``,
``${name:format}``, ``[[name]]``) are accepted as a name, a number, a duration or a label value,
unless they are switched off; the tree has them as :class:`~promql.matchers.Template`.
:mod:`promql.types` checks functions and types.

The length of an expression, its number of parts and so its depth are bounded.
"""

from __future__ import annotations

from dataclasses import replace

from promql.duration_expressions import FUNCTIONS, MAX_SECONDS, seconds
from promql.lexer import (
    InvalidPromQL,
    PromQLTooLarge,
    is_variable,
    range_colon,
    without_comments,
)
from promql.literals import duration
from promql.matchers import NEVER_METRICS, Matcher, Template, known_labels
from promql.token_reader import TokenReader, token_number
from promql.tree import (
    PRECEDENCE,
    SET_OPERATORS,
    Aggregate,
    Binary,
    Call,
    Expr,
    Matching,
    Negative,
    Number,
    Paren,
    String,
    Subquery,
    Vector,
)

MAX_LENGTH = 64 * 1024
AGGREGATIONS = frozenset(
    {
        "avg", "bottomk", "count", "count_values", "group", "limit_ratio", "limitk", "max", "min",
        "quantile", "stddev", "stdvar", "sum", "topk",
    }
)  # fmt: skip
_NEVER_FUNCTIONS = NEVER_METRICS | SET_OPERATORS | {"by", "offset", "without"}
_FILLS = frozenset({"fill", "fill_left", "fill_right"})
_EXTENDED = frozenset({"anchored", "smoothed"})


def parse(text: str, variables: bool = False) -> Expr:
    """Parse an expression, with or without Grafana variables; raises :class:`InvalidPromQL`."""
    if len(text) > MAX_LENGTH:
        raise PromQLTooLarge(f"longer than {MAX_LENGTH >> 10} KiB", 0)
    return _Parser(text, variables).parse_all()


def window_seconds(window: str) -> float | None:
    """Return the seconds of a window as written, None if they depend on a query or variable."""
    length = duration(window)
    if length is None:
        try:
            length = seconds(parse(window))
        except InvalidPromQL:
            return None
    return length if length is not None and length > 0 else None


class _Parser(TokenReader):
    """A precedence climbing parser of ``text[start:end]``."""

    def parse_all(self) -> Expr:
        node = self._expression()
        if self._now.kind != "end":
            self._fail("an operator or the end")
        return node

    def _expression(self, at_least: int = 1) -> Expr:
        left = self._unary()
        while (strength := PRECEDENCE.get(op := self._word(), 0)) >= at_least:
            self._count()
            self._next()
            bool_ = self._skip("bool")
            matching, fill = self._matching(), self._fill()
            right = self._expression(strength + (op != "^"))
            place = {"start": left.start, "end": right.end}
            left = Binary(left, op, right, bool_, matching, fill, **place)
        return left

    def _matching(self) -> Matching | None:
        kind = self._word()
        if kind not in ("on", "ignoring"):
            return None
        self._next()
        labels = self._labels()
        group = self._word()
        if group not in ("group_left", "group_right"):
            return Matching(kind, labels)  # type: ignore[arg-type]  # checked above
        start = self._next().start
        include = self._labels() if self._word() == "(" else None
        twice = known_labels(include or ()) & known_labels(labels)
        if kind == "on" and twice:
            raise InvalidPromQL(f"the label {min(twice)} is both in on() and taken along", start)
        return Matching(kind, labels, group, include)  # type: ignore[arg-type]  # likewise

    def _fill(self) -> str:
        """Read the values for series that one side lacks."""
        fills = []
        while self._word() in _FILLS and self._tokens[self._at + 1].text == "(":
            at = self._at
            self._next()
            self._next()
            self._sign()
            if self._now.kind not in ("number", "duration") and not (
                self._word() in ("inf", "nan") or self._has_variable(self._now.text)
            ):
                self._fail("a number")
            self._next()
            self._expect(")")
            fills.append(self._since(at))
        return " ".join(fills)

    def _sign(self) -> None:
        if self._word() in ("+", "-"):
            self._next()

    def _unary(self) -> Expr:
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
            text = inner.text
            negated = text[1:] if text.startswith("-") else f"-{text}"
            return Number(negated, start=start, end=inner.end)
        return Negative(inner, start=start, end=inner.end)

    def _atom(self) -> Expr:
        token = self._now
        match token.kind:
            case "number" | "duration":
                self._next()
                token_number(token)
                return Number(token.text, start=token.start, end=token.end)
            case "string":
                self._next()
                return String(self._string(token), start=token.start, end=token.end)
            case "name":
                called = self._tokens[self._at + 1].text == "("
                if token.text.lower() in (_NEVER_FUNCTIONS if called else NEVER_METRICS):
                    self._fail("a metric, a function, a number or a parenthesis")
                return self._named()
        if self._word() == "{":
            return self._selector()
        if not self._skip("("):
            self._fail("a metric, a function, a number or a parenthesis")
        self._count()
        inner = self._expression()
        self._expect(")")
        return Paren(inner, start=token.start, end=self._last_end)

    def _named(self) -> Expr:
        """Read an aggregation, a call, a number, a variable or a metric."""
        token = self._now
        word, after = token.text.lower(), self._tokens[self._at + 1]
        grouped = after.text.lower() in ("by", "without") and after.kind == "name"
        variable = self._has_variable(token.text)
        if (grouped or after.text == "(") and (word in AGGREGATIONS or (variable and grouped)):
            return self._aggregate(self._name(token) if variable else word)
        if after.text == "(":
            return self._call()
        if word in ("inf", "nan"):
            self._next()
            return Number(token.text, start=token.start, end=token.end)
        alone = self._variables and is_variable(token.text)
        if alone and after.text != "{" and after.kind != "range":
            self._next()
            return Number(self._name(token), start=token.start, end=token.end)
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
        labels, without = grouping or (None, False)
        parameter = args[0] if len(args) == 2 else None
        place = {"start": start, "end": self._last_end}
        return Aggregate(op, args[-1], labels, parameter, without, **place)

    def _grouping(self) -> tuple[tuple[str, ...], bool] | None:
        word = self._word()
        if word not in ("by", "without"):
            return None
        self._next()
        return self._labels(), word == "without"

    def _labels(self) -> tuple[str, ...]:
        """Read a list of label names."""
        self._expect("(")
        labels: list[str] = []
        while not self._skip(")"):
            token = self._next()
            if token.kind not in ("name", "string") or token.text.lower() in ("inf", "nan"):
                self._at -= 1
                self._fail("a label")
            labels.append(self._name_or_string(token))
            if not self._skip(",") and self._word() != ")":
                self._fail("',' or ')'")
        return tuple(labels)

    def _call(self) -> Call:
        self._count()
        token = self._next()
        args = tuple(self._arguments())
        return Call(self._name(token), args, start=token.start, end=self._last_end)

    def _arguments(self) -> list[Expr]:
        self._expect("(")
        args: list[Expr] = []
        while not self._skip(")"):
            self._count()
            args.append(self._expression())
            if self._skip(","):
                if self._word() == ")":
                    self._fail("an argument")
            elif self._word() != ")":
                self._fail("',' or ')'")
        return args

    def _selector(self) -> Vector:
        start = self._now.start
        before = self._now.kind == "name"
        metric = self._name(self._next()) if before else ""
        matchers: list[Matcher] = []
        templates: list[Template] = []
        if self._skip("{"):
            while not self._skip("}"):
                token = self._now
                match self._matcher():
                    case Matcher() as matcher:
                        matchers.append(matcher)
                    case Template() as template:
                        templates.append(template)
                    case quoted:
                        if metric or templates:
                            raise InvalidPromQL("the metric is named twice", token.start)
                        metric = quoted
                if not self._skip(",") and self._word() != "}":
                    self._fail("',' or '}'")
        if before and any(each.label == "__name__" for each in matchers):
            raise InvalidPromQL("the metric is named twice", start)
        parts = (tuple(matchers), None, None, None, "", tuple(templates))
        return Vector(metric, *parts, start=start, end=self._last_end)

    def _matcher(self) -> Matcher | Template | str:
        """Read a matcher, a quoted metric, or a template if a variable hides the label."""
        token = self._now
        if token.kind not in ("name", "string"):
            self._fail("a label")
        self._next()
        name = self._name_or_string(token)
        op = self._word()
        if op not in ("=", "!=", "=~", "!~"):
            if token.kind == "string" or isinstance(name, Template):
                return name
            self._fail("=, !=, =~ or !~")
        self._next()
        value = self._next()
        if value.kind == "string":
            text = self._string(value)
        elif value.kind == "name" and self._has_variable(value.text):
            text = Template(value.text)
        else:
            self._at -= 1
            self._fail("a label value in quotes")
        if isinstance(name, Template):
            return Template(self._text[token.start : self._last_end])
        if token.kind == "name" and ":" in name:
            raise InvalidPromQL(f"a label is not called {name} without quotes", token.start)
        return Matcher(name, op, text)  # type: ignore[arg-type]  # checked above

    def _modified(self, node: Expr) -> Expr:
        """Read the ranges, offsets and times that follow an expression."""
        seen = set[str]()
        while True:
            word = self._word()
            if self._now.kind == "range":
                node = self._ranged(node)
                seen = set()
                continue
            if word not in ("offset", "@") and (
                word not in _EXTENDED or not isinstance(node, Vector)
            ):
                return node
            if word in seen:
                self._fail(f"{word} only once")
            seen.add(word)
            self._next()
            at = self._at
            if word == "offset":
                while self._word() in ("+", "-"):
                    self._next()
                self._length()
            elif word == "@":
                self._time()
            if isinstance(node, Vector) and word in _EXTENDED:
                node = replace(node, extended=word, end=self._last_end)
            elif not isinstance(node, Vector | Subquery):
                self._at -= 1
                self._fail("a metric or a subquery before that")
            elif word == "offset":
                node = replace(node, offset=self._since(at), end=self._last_end)
            else:
                node = replace(node, at=self._since(at), end=self._last_end)

    def _length(self) -> None:
        """Read the duration of an offset."""
        token = self._now
        if token.kind in ("duration", "number") or self._has_variable(token.text):
            self._next()
            if token.kind != "name" and token_number(token) > MAX_SECONDS:
                raise InvalidPromQL("the duration is too long", token.start, token.end)
        elif self._word() in {"(", *FUNCTIONS}:
            seconds(self._atom())
        else:
            self._fail("a duration")

    def _time(self) -> None:
        """Read the evaluation time after ``@``."""
        signed = self._now.text in ("+", "-")
        self._sign()
        moment = self._next()
        if moment.text.lower() in ("start", "end") and not signed:
            self._expect("(")
            self._expect(")")
        elif moment.kind in ("number", "duration"):
            if token_number(moment) * 1000 >= 2**63:
                raise InvalidPromQL("the time is too late", moment.start, moment.end)
        elif not self._has_variable(moment.text):
            self._at -= 1
            self._fail("a time")

    def _ranged(self, node: Expr) -> Expr:
        token = self._now
        begin, end = token.start + 1, token.end - 1
        colon = range_colon(token.text[1:-1], self._variables)
        window = self._window(begin, end if colon < 0 else begin + colon)
        if colon >= 0:
            step = ""
            if without_comments(self._text[begin + colon + 1 : end]):
                step = self._window(begin + colon + 1, end)
            self._count()
            self._next()
            return Subquery(node, window, step, start=node.start, end=token.end)
        if not isinstance(node, Vector) or node.window or node.shifted:
            self._fail("a step as well, as in [5m:1m]: this is no metric")
        self._next()
        return replace(node, window=window, end=token.end)

    def _window(self, start: int, end: int) -> str:
        """Read a duration in brackets."""
        text = without_comments(self._text[start:end])
        if self._has_variable(text) or 0 < (duration(text) or 0) <= MAX_SECONDS:
            return text
        try:
            length = _Parser(self._text, False, start, end, self._parts).parse_all()
            length_seconds = seconds(length)
        except PromQLTooLarge:
            raise
        except InvalidPromQL:
            self._fail("a duration in brackets")
        if length_seconds is not None and length_seconds <= 0 and isinstance(length, Number):
            self._fail("a duration above 0")
        if length_seconds is not None and length_seconds > MAX_SECONDS:
            self._fail("a shorter duration")
        return text
