"""What Prometheus refuses although it could be parsed."""

from __future__ import annotations

import re

import pytest

from promql.lexer import InvalidPromQL
from promql.parse import parse
from promql.query import read_query
from promql.types import Type, check


@pytest.mark.parametrize(
    ("text", "gives"),
    [
        ("1 + 2 * -3", "scalar"),
        ("1 == bool 2", "scalar"),
        ("scalar(x) + time()", "scalar"),
        ("max_of(1, start())", "scalar"),
        ("x > 1", "vector"),
        ("x and on (a) y", "vector"),
        ("sum by (a) (x)", "vector"),
        ("limit_ratio(-0.5, x)", "vector"),
        ("x[5m:1m]", "range"),
        ("rate(x[5m])", "vector"),
        ("rate(x[5m:])", "vector"),
        ("hour()", "vector"),
        ("round(x, 0.1)", "vector"),
        ('label_join(x, "a", ",")', "vector"),
        ('label_join(x, "a", ",", "b", "c", "d")', "vector"),
        ('sort_by_label(x, "a", "b")', "vector"),
        ('histogram_quantiles(x, "q", 0.5, 0.9, 0.99)', "vector"),
        ("histogram_count(x) / histogram_fraction(0, 0.2, x)", "vector"),
        ('info(x, {a=~".*"})', "vector"),
        ('info(x, {__name__="target_info"})', "vector"),
        ('{a="b"}', "vector"),
        ('{"a metric", a=""}', "vector"),
        ('{__name__=~"a.+"}', "vector"),
        ('x{a=~"(?i)a|\\\\pN"}', "vector"),
        ("'text'", "text"),
        ("holt_winters(x[5m], 0.1, 0.1)", "vector"),
        ("$x", None),
        ("$x + $y", None),
        ("$f(x)", None),
        ("$x + y", "vector"),
        ("rate($x)", "vector"),
        ("{$filter}", "vector"),
        ('{job=~"$job"}', "vector"),
        ("$op by (a) (x)", "vector"),
    ],
)  # fmt: skip
def test_expression_has_its_value_type(text: str, gives: Type | None) -> None:
    assert check(parse(text, variables="$" in text)) == gives


@pytest.mark.parametrize(
    ("text", "message", "part"),
    [
        ("foo(x)", "there is no function foo", "foo(x)"),
        ("1 + RATE(x[5m])", "there is no function RATE", "RATE(x[5m])"),
        ("rate(x)", "rate needs a range such as x[5m], not an instant vector", "rate(x)"),
        ("sum(x[5m])", "sum needs an instant vector, not a range such as x[5m]", "sum(x[5m])"),
        ("abs(1)", "abs needs an instant vector, not a number", "abs(1)"),
        ("floor()", "floor takes 1 argument, not 0", "floor()"),
        ("hour(x, y)", "hour takes 0 or more arguments, not 2", "hour(x, y)"),
        ("time(x)", "time takes 0 arguments, not 1", "time(x)"),
        ("topk(x)", "topk takes two arguments", "topk(x)"),
        ("sum(1, x)", "sum takes one argument", "sum(1, x)"),
        ("topk(x, y)", "the first argument of topk needs a number, not an instant vector", "x"),
        ("count_values(5, x)", "the first argument of count_values needs text in quotes", "5"),
        ("1 > 2", "> between two numbers needs bool", "1 > 2"),
        ("x + bool 1", "+ takes no bool: only comparisons do", "x + bool 1"),
        ("x and 1", "and needs an instant vector on both sides", "x and 1"),
        ("x == on (a) 1", "on needs an instant vector on both sides", "x == on (a) 1"),
        ("x or on (a) group_left () y", "or takes no group_left", "x or on (a) group_left () y"),
        ("x + y[5m]", "+ needs a number or an instant vector, not a range", "y[5m]"),
        ("-'a'", "a sign needs a number or an instant vector, not text", "'a'"),
        ("x[5m][5m:1m]", "a subquery needs an instant vector, not a range", "x[5m]"),
        ("{}", "this selects all series", "{}"),
        ('{a=~".*"}', "this selects all series", '{a=~".*"}'),
        ('{__name__=~".*"}', "this selects all series", '{__name__=~".*"}'),
        ('x{a=~"(b"}', "the pattern of a is wrong: missing ), unterminated", 'x{a=~"(b"}'),
        ("info(x, y)", "info needs labels only", "y"),
    ],
)  # fmt: skip
def test_type_errors_have_message_and_position(text: str, message: str, part: str) -> None:
    with pytest.raises(InvalidPromQL) as raised:
        check(parse(text))
    assert message in raised.value.message
    assert text[raised.value.offset : raised.value.end] == part


@pytest.mark.parametrize(
    ("query", "selected"),
    [
        ('x{a="b"}', 'x{a="b"}'),
        ('(x{a=~"b"})', 'x{a=~"b"}'),
        ('{"a metric"}', None),
        ('x{"a label"="b"}', None),
        ('{__name__="x"}', None),
        ('x{a="b"} offset 1m', None),
        ("x > 0", None),
    ],
)
def test_only_printable_selectors_are_selectors(query: str, selected: str | None) -> None:
    found = read_query(query).selector
    assert (found and str(found)) == selected


@pytest.mark.parametrize(
    "text",
    [
        "-" * 250 + "x",
        "(" * 200 + "x" + ")" * 200,
        "abs(" * 120 + "x" + ")" * 120,
        "x" + " or x" * 250,
        "x" + "^x" * 250,
        "sum(" * 100 + "x" + ")" * 100,
    ],
)
def test_the_deepest_expressions_are_checked(text: str) -> None:
    assert check(parse(text)) == "vector"


@pytest.mark.parametrize("groups", [1, 90, 500, 999])
@pytest.mark.parametrize("group", ["(", "(?:"])
def test_nested_groups_of_a_pattern_are_taken(groups: int, group: str) -> None:
    text = f'x{{a=~"{group * groups}b{")" * groups}"}}'
    assert check(parse(text)) == "vector"


@pytest.mark.parametrize(
    ("pattern", "message"),
    [
        ("(" * 1001 + "b" + ")" * 1001, "more than 1000 nested groups"),
        ("(" * 20_000 + "b" + ")" * 20_000, "more than 1000 nested groups"),
        ("b{1001}", "a repetition of more than 1000"),
        ("b{99999999999}", "a repetition of more than 1000"),
        ("b{2,99999999999}", "a repetition of more than 1000"),
        ("(b", "missing )"),
    ],
)
def test_a_pattern_that_re2_refuses(pattern: str, message: str) -> None:
    with pytest.raises(InvalidPromQL, match=re.escape(message)):
        check(parse(f'x{{a=~"{pattern}"}}'))


def test_brackets_in_a_class_are_no_groups() -> None:
    text = "[(]" * 1001 + "[{9999}]" + "[](]" * 1001
    assert check(parse(f'x{{a=~"{text}"}}')) == "vector"
