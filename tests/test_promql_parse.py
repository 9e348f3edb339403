"""The PromQL parser agrees with Prometheus, and parses Grafana's variables."""

from __future__ import annotations

from typing import Any

import promql_parser as reference
import pytest
from hypothesis import given
from hypothesis import strategies as st

from promql.lexer import InvalidPromQL
from promql.parse import MAX_LENGTH, parse, window_seconds
from promql.token_reader import MAX_PARTS
from promql.tree import (
    Aggregate,
    Binary,
    Call,
    Expr,
    Negative,
    Number,
    Paren,
    String,
    Subquery,
    Vector,
    bare,
    selectors,
    walk,
)

_OPS = {"Equal": "=", "NotEqual": "!=", "Re": "=~", "NotRe": "!~"}


def as_read_by_the_reference(node: Any) -> Any:
    match node:
        case reference.ParenExpr():
            return as_read_by_the_reference(node.expr)
        case reference.VectorSelector():
            matchers = sorted(
                (each.name, _OPS[str(each.op).removeprefix("MatchOp.")], each.value)
                for each in node.matchers.matchers
                if each.name != "__name__"
            )
            shifted = node.offset is not None or node.at is not None
            return "selector", node.name or "", matchers, None, shifted
        case reference.MatrixSelector():
            kind, name, matchers, _, shifted = as_read_by_the_reference(node.vector_selector)
            return kind, name, matchers, node.range.total_seconds(), shifted
        case reference.AggregateExpr():
            modifier = node.modifier
            without = modifier is not None and str(modifier.type).endswith("Without")
            labels = None if modifier is None else (without, sorted(modifier.labels))
            parameter = as_read_by_the_reference(node.param) if node.param else None
            return str(node.op), labels, parameter, as_read_by_the_reference(node.expr)
        case reference.Call():
            return node.func.name, [as_read_by_the_reference(each) for each in node.args]
        case reference.BinaryExpr():
            sides = map(as_read_by_the_reference, (node.lhs, node.rhs))
            return str(node.op), *sides
        case reference.UnaryExpr():
            return "negative", as_read_by_the_reference(node.expr)
        case reference.NumberLiteral():
            return "number", node.val
        case reference.StringLiteral():
            return "text", node.val
        case reference.SubqueryExpr():
            return "subquery", as_read_by_the_reference(node.expr), node.range.total_seconds()
    raise TypeError(node)


def as_read_by_us(node: Expr) -> Any:
    match bare(node):
        case Vector(name=metric, matchers=given_, window=window, shifted=shifted):
            matchers = sorted(
                (each.label, each.op, each.value) for each in given_ if each.label != "__name__"
            )
            return "selector", metric, matchers, window and window_seconds(window), shifted
        case Aggregate(op=op, expr=expr, labels=labels, without=without, parameter=parameter):
            grouping = None if labels is None else (without, sorted(labels))
            return op, grouping, parameter and as_read_by_us(parameter), as_read_by_us(expr)
        case Call(function=function, args=args):
            return function, [as_read_by_us(each) for each in args]
        case Binary(op=op, left=left, right=right):
            return op, as_read_by_us(left), as_read_by_us(right)
        case Negative(expr=expr):
            return "negative", as_read_by_us(expr)
        case Number(value=value):
            return "number", value
        case String(value=value):
            return "text", value
        case Subquery(expr=expr, window=window):
            return "subquery", as_read_by_us(expr), window_seconds(window)
    raise TypeError(node)


NAMES = st.sampled_from(["up", "a:b:rate5m", "x_total", "le", "on", "sum", "offset_of"])
LABELS = st.sampled_from(["le", "job", "by", "on", "_x1"])
DURATIONS = st.sampled_from(["5m", "1h30m", "90s", "500ms", "2d", "1y2w"])
VALUES = st.text(
    st.characters(exclude_characters="$[]", exclude_categories=("Cs", "Cc")), max_size=8
)


def quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


MATCHERS = st.lists(
    st.builds(
        lambda label, op, value: label + op + quoted(value),
        LABELS,
        st.sampled_from(["=", "!="]),
        VALUES,
    ),
    max_size=3,
).map(lambda all_: "{" + ", ".join(all_) + "}" if all_ else "")
INSTANT = st.builds(
    lambda name, matchers, shift: name + matchers + shift,
    NAMES.filter(lambda name: name not in ("on", "sum")),
    MATCHERS,
    st.sampled_from(["", " offset 5m", " @ 1700000000", " offset -1h", " @ end()"]),
)
RANGE = st.builds(
    lambda name, matchers, window: f"{name}{matchers}[{window}]",
    st.sampled_from(["up", "x_total"]),
    MATCHERS,
    DURATIONS,
)
GROUPINGS = st.builds(
    lambda word, labels: f"{word} ({', '.join(labels)})",
    st.sampled_from(["by", "without"]),
    st.lists(LABELS, min_size=1, max_size=2, unique=True),
)


def compound(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    return st.one_of(
        st.builds(
            lambda left, op, right: f"{left} {op} {right}",
            inner,
            st.sampled_from(["+", "-", "*", "/", "%", "^", "==", "> bool", "and", "or", "unless"]),
            inner,
        ),
        inner.map(lambda expr: f"({expr})"),
        inner.map(lambda expr: f"-({expr})"),
        inner.map(lambda expr: f"abs({expr})"),
        st.builds(lambda expr, window: f"max_over_time(({expr})[{window}:1m])", inner, DURATIONS),
        st.builds(lambda op, expr: f"{op}({expr})", st.sampled_from(["sum", "count"]), inner),
        st.builds(lambda grouping, expr: f"avg {grouping} ({expr})", GROUPINGS, inner),
        st.builds(lambda grouping, expr: f"max({expr}) {grouping}", GROUPINGS, inner),
        inner.map(lambda expr: f"topk by (job) (3, {expr})"),
    )


EXPRESSIONS = st.recursive(
    st.one_of(INSTANT, RANGE.map(lambda range_: f"rate({range_})")), compound, max_leaves=8
)


@given(EXPRESSIONS)
def test_parser_agrees_with_the_reference(text: str) -> None:
    assert as_read_by_us(parse(text)) == as_read_by_the_reference(reference.parse(text))


@pytest.mark.parametrize(
    "text",
    [
        "-1 ^ 2",
        "2 ^ 3 ^ 2",
        "1 - 2 - 3",
        "-x * y",
        "2 * -x",
        "1e3 + 0x1F + .5 + 5.",
        "Inf > bool 1",
        'x{a="b",}',
        "x{a='b', c=`d\\n`}",
        "sum by () (x)",
        "SUM BY (a) (x) AND y",
        "x # a comment\n + y",
        "histogram_quantile(0.9, sum by (le) (rate(x_bucket[5m])))",
        'label_replace(x, "a", "b", "c", "d")',
        'count_values("v", x)',
        "time()",
        "x[5m:]",
        "x atan2 y",
        "a:b",
    ],
)
def test_parser_agrees_with_the_reference_on_corner_cases(text: str) -> None:
    assert as_read_by_us(parse(text)) == as_read_by_the_reference(reference.parse(text))


@given(st.text("abx_:{}[]()\"'`=~!<>+-*/^%,@$0159.mhs #\\\n", max_size=40))
def test_any_text_is_parsed_or_refused(text: str) -> None:
    try:
        places = [(node.start, node.end - 1) for node, _ in walk(parse(text))]
    except InvalidPromQL as problem:
        places = [(problem.offset, len(text))]
    assert all(0 <= start <= end <= len(text) for start, end in places)


@given(EXPRESSIONS)
def test_printing_a_parsed_expression_keeps_it(text: str) -> None:
    tree = parse(text)
    assert parse(str(tree)) == tree


@pytest.mark.parametrize(
    ("text", "printed"),
    [
        ("SUM  (x)without(b,a)", "sum without (b, a) (x)"),
        ("sum by () (x)", "sum by () (x)"),
        ("x offset - 5m@ end ( )", "x offset -5m @ end()"),
        ("x[5m]  offset 1h anchored", "x[5m] anchored offset 1h"),
        ("(x)[ 1h : 5m ] offset 5m", "(x)[1h:5m] offset 5m"),
        ("x + on(a,b) group_left fill(0) y", "x + on (a, b) group_left fill(0) y"),
        ("a >bool ignoring(c)group_right(d) b", "a > bool ignoring (c) group_right (d) b"),
        ("- (x) ^ 2 # comment", "-(x) ^ 2"),
        ("a*- b", "a * -b"),
        ("- -a ^ 2 % b", "--a ^ 2 % b"),
        ("a ^ -b*c", "a ^ -b * c"),
        ("a ^ (-2)%c", "a ^ (-2) % c"),
        ("a ^ -2%c", "a ^ -2 % c"),
        ('{"a metric", "a b"=\'c\'}', '{"a metric","a b"="c"}'),
        ('{"on"} + {__name__="x"}', '{"on"} + {__name__="x"}'),
        ('x{"inf"="y"}', 'x{"inf"="y"}'),
        ("0x1F + 1h30m + Inf", "0x1F + 1h30m + Inf"),
        (
            "label_replace(x, 'a', `$1`, \"b\", '(\\\\d)')",
            'label_replace(x, "a", "$1", "b", "(\\\\d)")',
        ),
    ],
)
def test_a_parsed_expression_is_printed_as_built_ones(text: str, printed: str) -> None:
    tree = parse(text)
    assert str(tree) == printed
    assert parse(printed) == tree


@pytest.mark.parametrize(
    ("text", "same"),
    [
        ("0755 + 1_000.5 + 08", "493 + 1000.5 + 8"),
        ("x[1m + 30s]", "x[90s]"),
        ("x[2*(1h/4)-1m^1:max_of(1m, 2m)]", "x[1740:2m]"),
        ("x[5m # all: of it\n]", "x[5m]"),
        ('{"x", "a b"="c"}', '{__name__="x", "a b"="c"}'),
        ('x{a="\\x41\\101\\u0041\\U00000041"}', 'x{a="AAAA"}'),
        ("x{a=`\\d`}", 'x{a="\\\\d"}'),
        ("x[5m] smoothed", "x[5m]"),
        ("x + on (a) group_left (b) fill_left(0) fill_right(-1) y", "x + on (a) group_left (b) y"),
        ("x offset (5m * 2) @ 1h", "x offset 10m @ 3600"),
        ("x @ start() offset -step()", "x offset -5m @ start()"),
        ("fill + smoothed / anchored", "(fill) + (smoothed / anchored)"),
        ("by + offset{a='b'} or or", "(by + offset{a='b'}) or (or)"),
        ("x >/ 5 </ 3", "(x >/ 5) </ 3"),
    ],
)
def test_new_and_rare_syntax_is_parsed(text: str, same: str) -> None:
    assert as_read_by_us(parse(text)) == as_read_by_us(parse(same))


def test_range_from_an_expression_has_no_fixed_length() -> None:
    for length in ("step()", "range() / 10", "min_of(step(), 5m)", "0 - 5m"):
        (selector,) = selectors(parse(f"x[{length}]"))
        assert selector.window == length
        assert window_seconds(length) is None


def test_without_variables_there_are_none() -> None:
    (selector,) = selectors(parse('x{a="$b"}'))
    assert [matcher.value for matcher in selector.matchers] == ["$b"]
    for text in ("$x", "x[$__interval]", "x_${y}", "x offset $y", "x[[y]]"):
        with pytest.raises(InvalidPromQL):
            parse(text)


def test_metric_name_may_be_given_by_a_matcher() -> None:
    names = [selector.name for selector in selectors(parse('{__name__="x"} + {"y"} + {a="b"}'))]
    assert names == ["x", "y", ""]


@given(EXPRESSIONS)
def test_every_node_has_its_position(text: str) -> None:
    for node, _ in walk(parse(text)):
        part = parse(text[node.start : node.end]) if not isinstance(node, Paren) else node
        assert type(part) is type(node) or isinstance(node, Number)


@pytest.mark.parametrize(
    ("text", "message", "offset"),
    [
        ("", "found the end, expected a metric, a function, a number or a parenthesis", 0),
        ("sum(x", "found the end, expected ',' or ')'", 5),
        ("x y", "found 'y', expected an operator or the end", 2),
        ('x{a="b}', "found text in quotes that never end", 4),
        ('x{a="b" c="d"}', "found 'c', expected ',' or '}'", 8),
        ("x{a=b}", "found 'b', expected a label value in quotes", 4),
        ("rate(x[5])x", "found 'x', expected an operator or the end", 10),
        ("x[5q]", "found '[5q]', expected a duration in brackets", 1),
        ("x[0s]", "found '[0s]', expected a duration above 0", 1),
        (
            "(x + y)[5m]",
            "found '[5m]', expected a step as well, as in [5m:1m]: this is no metric",
            7,
        ),
        ("sum(x) by", "found the end, expected '('", 9),
        ("x & y", "found '&'", 2),
        ("rate(x[5m],)", "found ')', expected an argument", 11),
        ('x{__name__="y"}', "the metric is named twice", 0),
        ("x{a:b='c'}", "a label is not called a:b without quotes", 2),
        ('x{a="\\q"}', "found \\q, which is no escape", 5),
        ("x offset 1m offset 2m", "found 'offset', expected offset only once", 12),
        ("x + on (a) group_left (a) y", "the label a is both in on() and taken along", 11),
        ("1e999", "the number is too large", 0),
        ("x @ 5m1h", "a duration has its units from the largest to the smallest, each once", 4),
        ("x[5m/0]", "found '[5m/0]', expected a duration in brackets", 1),
        ("on + x", "found 'on', expected a metric, a function, a number or a parenthesis", 0),
        (
            "offset(x)",
            "found 'offset', expected a metric, a function, a number or a parenthesis",
            0,
        ),
        ("(1 + 2) offset 5m", "found '5m', expected a metric or a subquery before that", 15),
    ],
)
def test_errors_have_message_and_position(text: str, message: str, offset: int) -> None:
    with pytest.raises(InvalidPromQL) as raised:
        parse(text)
    assert (raised.value.message, raised.value.offset) == (message, offset)


@pytest.mark.parametrize(
    "text",
    [
        "rate(x[$__rate_interval])",
        "rate(x[${__range_s}s])",
        "rate(x[[[window]]])",
        "rate(x[${window:raw}])",
        "x[5m:$step]",
        'x{model=~"$model",pod=~"${pod:regex}",a="[[a]]"}',
        "x{$filter}",
        "x{model=~$model}",
        'x{$label="a"}',
        "sum by ($grouping) (x)",
        "$aggregation by (job) (x)",
        "$function(x)",
        "x > $threshold",
        "x_$kind",
        "$metric",
        '$metric{a="b"}',
        "$metric[5m]",
        "x offset $shift",
    ],
)
def test_variables_are_allowed_anywhere(text: str) -> None:
    assert str(parse(text, variables=True)) == text


def test_properties_hidden_by_a_variable_are_unknown() -> None:
    text = 'sum by (pod, $more) (rate(x_$kind{a="1", b=~"$b"}[$__rate_interval]))'
    tree = parse(text, variables=True)
    (selector,) = selectors(tree)
    assert isinstance(tree, Aggregate)
    assert tree.keeps("anything")
    assert selector.name == ""
    assert [matcher.known_value for matcher in selector.matchers] == ["1", None]
    assert selector.window == "$__rate_interval"
    assert window_seconds(selector.window) is None


@pytest.mark.parametrize(
    "text",
    [
        "(" * 5000 + "x" + ")" * 5000,
        "-" * 5000 + "x",
        "+".join(["x"] * 5000),
        "^".join(["x"] * 5000),
        "abs(" * 5000 + "x" + ")" * 5000,
        "x" + "[5m:1m]" * 5000,
    ],
)
def test_depth_is_bounded(text: str) -> None:
    with pytest.raises(InvalidPromQL, match=f"more than {MAX_PARTS} parts"):
        parse(text)


def test_length_is_bounded() -> None:
    parse("x" + " " * (MAX_LENGTH - 1))
    with pytest.raises(InvalidPromQL, match="longer than 64 KiB"):
        parse("x" + " " * MAX_LENGTH)
