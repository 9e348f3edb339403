"""PromQL rendering, checked with an independent parser (promql-parser)."""

from __future__ import annotations

import re
from dataclasses import replace
from decimal import Decimal

import promql_parser as promql
import pytest
from hypothesis import given
from hypothesis import strategies as st

from promql.expr import (
    Aggregate,
    Binary,
    Call,
    Expr,
    Matcher,
    Number,
    Subquery,
    Text,
    Vector,
    aggregate,
    call,
    decimal_text,
    equal,
    for_matchers,
    ignoring,
    number,
    on,
    one_of,
    pretty,
    quote,
    vector,
)
from promql.parse import parse
from promql.tree import bare

ARITHMETIC = ("+", "-", "*", "/", "%", "^")
COMPARISONS = ("==", "!=", ">", "<", ">=", "<=")
SETS = ("and", "or", "unless")

names = st.sampled_from(["up", "slo:bad:rate5m", "llm_requests_total"])
labels = st.sampled_from(["model", "outcome", "le"])
durations = st.sampled_from(["30s", "5m", "28d"])
matchers = st.builds(Matcher, labels, st.sampled_from(["=", "!="]), st.text(max_size=5))
numbers = st.decimals(allow_nan=False, allow_infinity=False, places=4, min_value=-9, max_value=9)
scalars = numbers.map(number)
instants = st.builds(
    Vector,
    names,
    st.lists(matchers, max_size=2).map(tuple),
    st.none(),
    st.none() | durations,
)


groupings = st.lists(labels, unique=True).map(tuple)


def larger(vectors: st.SearchStrategy[Expr]) -> st.SearchStrategy[Expr]:
    ranged = instants.flatmap(lambda v: durations.map(lambda w: replace(v, window=w)))
    spans = ranged | st.builds(Subquery, vectors, durations, durations)
    return st.one_of(
        st.builds(Call, st.sampled_from(["rate", "sum_over_time"]), st.tuples(spans)),
        st.builds(Call, st.just("clamp_min"), st.tuples(vectors, scalars)),
        st.builds(Aggregate, st.just("sum"), vectors, st.none() | groupings),
        st.builds(Aggregate, st.just("max"), vectors, groupings, without=st.just(True)),
        st.builds(Aggregate, st.just("topk"), vectors, st.none(), scalars),
        st.builds(Binary, vectors, st.sampled_from(ARITHMETIC + COMPARISONS), vectors | scalars),
        st.builds(Binary, scalars, st.sampled_from(ARITHMETIC), vectors),
        st.builds(Binary, vectors, st.sampled_from(COMPARISONS), vectors, st.just(True)),
        st.builds(
            Binary,
            vectors,
            st.sampled_from(SETS),
            vectors,
            matching=st.sampled_from([None, ignoring("le"), on("model", "outcome")]),
        ),
    )


def with_text(vectors: st.SearchStrategy[Expr]) -> st.SearchStrategy[Expr]:
    return larger(vectors) | vectors.map(str).map(Text)


parsable = st.recursive(instants, larger, max_leaves=12)
expressions = st.recursive(instants, with_text, max_leaves=12)


def tree(text: str) -> object:
    """Parse ``text`` with Prometheus's grammar; return the tree without parentheses."""
    return _tree(promql.parse(text))


def _tree(node: object) -> object:
    match node:
        case promql.ParenExpr():
            return _tree(node.expr)
        case promql.BinaryExpr():
            return (str(node.op), str(node.modifier), _tree(node.lhs), _tree(node.rhs))
        case promql.UnaryExpr():
            return ("-", _tree(node.expr))
        case promql.AggregateExpr():
            param = _tree(node.param) if node.param else None
            return (str(node.op), str(node.modifier), param, _tree(node.expr))
        case promql.Call():
            return (node.func.name, *map(_tree, node.args))
        case promql.SubqueryExpr():
            return (_tree(node.expr), node.range, node.step)
        case _:
            return repr(node)


def everything_in_parentheses(expr: Expr) -> str:
    """Render with parentheses around every operand."""
    whole = everything_in_parentheses
    match expr:
        case Binary():
            return f"({whole(expr.left)}) {expr.operator} ({whole(expr.right)})"
        case Call() | Aggregate():
            head = expr.function if isinstance(expr, Call) else expr.head
            return f"{head}({', '.join(map(whole, expr.args))})"
        case Subquery():
            return f"({whole(expr.expr)})[{expr.window}:{expr.step}]"
        case _:
            return str(expr)


@given(expressions)
def test_needed_parentheses_are_printed(expr: Expr) -> None:
    assert tree(str(expr)) == tree(everything_in_parentheses(expr))


def without_parentheses(expr: Expr) -> Expr:
    expr = bare(expr)
    match expr:
        case Binary():
            sides = map(without_parentheses, (expr.left, expr.right))
            return replace(expr, **dict(zip(("left", "right"), sides, strict=True)))
        case Call():
            return replace(expr, args=tuple(map(without_parentheses, expr.args)))
        case Aggregate() | Subquery():
            return replace(expr, expr=without_parentheses(expr.expr))
    return expr


@given(parsable)
def test_the_parser_yields_the_tree_that_was_printed(expr: Expr) -> None:
    assert without_parentheses(parse(str(expr), variables=False)) == expr


@given(expressions, st.integers(10, 60))
def test_breaking_lines_changes_nothing(expr: Expr, width: int) -> None:
    text = pretty(expr, width)
    assert tree(text) == tree(str(expr))
    assert "\n" in text or len(text) <= width or isinstance(expr, (Vector, Text))
    assert text == str(expr) or len(str(expr)) > width


@pytest.mark.parametrize(
    ("expr", "text"),
    [
        (vector("up") + vector("up") * number(2), "up + up * 2"),
        ((vector("up") + vector("up")) * number(2), "(up + up) * 2"),
        (vector("up") - (vector("up") - vector("up")), "up - (up - up)"),
        (vector("up") - vector("up") - vector("up"), "up - up - up"),
        (Binary(number(-1), "^", vector("up")), "(-1) ^ up"),
        (vector("up").or_(vector("up").and_(vector("up"))), "up or up and up"),
        (vector("up").or_(vector("up")).and_(vector("up")), "(up or up) and up"),
        (vector("up").unless(vector("x"), on("a")), "up unless on (a) x"),
        (Text("a or b") / vector("c"), "(a or b) / c"),
        (vector("x", {"a": "b"}, "5m", "1h"), 'x{a="b"}[5m] offset 1h'),
        (aggregate("sum", vector("x"), ["a", "b"]), "sum by (a, b) (x)"),
        (aggregate("topk", vector("x"), parameter=number(3)), "topk(3, x)"),
        (call("rate", Subquery(vector("x") + vector("y"), "5m", "30s")), "rate((x + y)[5m:30s])"),
    ],
)
def test_no_unneeded_parenthesis_is_printed(expr: Expr, text: str) -> None:
    assert str(expr) == text


def test_long_expressions_break_at_their_outermost_operators() -> None:
    bad, total = (
        aggregate("sum", call("rate", vector(name, {"model": "m"}, "5m")))
        for name in ("bad_total", "requests_total")
    )
    expr = (bad / total).compare(">", number("0.5")).and_(call("absent", bad.unless(total)))
    assert (
        pretty(expr, 40)
        == """\
sum(rate(bad_total{model="m"}[5m]))
/ sum(
  rate(requests_total{model="m"}[5m])
)
> 0.5
and absent(
  sum(rate(bad_total{model="m"}[5m]))
  unless sum(
    rate(requests_total{model="m"}[5m])
  )
)"""
    )


def test_arguments_keep_their_commas_when_broken() -> None:
    expr = call("clamp_min", vector("a" * 20) - vector("b" * 20), number(0))
    assert pretty(expr, 40) == f"clamp_min(\n  {'a' * 20}\n  - {'b' * 20},\n  0\n)"


@given(st.decimals(allow_nan=False, allow_infinity=False, min_value=-1000, max_value=1000))
def test_numbers_keep_their_value_and_have_no_exponent(value: Decimal) -> None:
    text = decimal_text(value)
    assert Decimal(text) == value
    assert re.fullmatch(r"-?[0-9]+(\.[0-9]*[1-9])?", text)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("0.9990", "0.999"),
        ("1E+2", "100"),
        ("100", "100"),
        ("-0", "0"),
        (Decimal(1) - Decimal("0.999"), "0.001"),
        (5, "5"),
    ],
)
def test_numbers_are_printed_in_the_shortest_form(value: Decimal | int | str, text: str) -> None:
    assert number(value) == Number(text)


@given(st.text())
def test_any_label_value_is_matched_literally(text: str) -> None:
    (matcher,) = promql.parse(f"x{{a={quote(text)}}}").matchers.matchers
    assert matcher.value == text


@given(st.lists(st.text(st.characters(codec="ascii"), min_size=1), min_size=1, max_size=3))
def test_one_of_matches_the_given_values_only(values: list[str]) -> None:
    pattern = re.compile(one_of("a", values).value, re.DOTALL)
    assert all(pattern.fullmatch(value) for value in values)
    others = {value + "x" for value in values} | {value[:-1] for value in values}
    assert not any(pattern.fullmatch(other) for other in others - set(values))


def test_matchers_keep_the_order_given() -> None:
    chosen = {"namespace": "prod", "model": 'say "hi"'}
    assert str(vector("up", equal(chosen))) == r'up{namespace="prod",model="say \"hi\""}'


@given(st.lists(st.text("ab-\n\"'\\\0", max_size=40), min_size=2, max_size=4), st.integers(1, 99))
def test_cached_layout_is_that_of_the_matchers_given(slos: list[str], width: int) -> None:
    def ratio(matchers: str, window: str) -> str:
        bad, total = (Text(f"{name}{matchers}[{window}]", whole=True) for name in ("bad", "all"))
        return pretty(call("rate", bad) / call("rate", total).compare(">", number(0)), width)

    cached = for_matchers(ratio)
    for slo in slos:
        matchers = f"{{slo={quote(slo)}}}"
        for window in ("5m", "30d"):
            assert cached(matchers, window) == ratio(matchers, window)
