"""Check vector matching, label matchers and label templates."""

from __future__ import annotations

import re
from collections.abc import Iterator

from promql.lint.context import LintContext
from promql.lint.findings import Hit
from promql.lint.located_query import LocatedQuery
from promql.matchers import Matcher, Template, known_labels
from promql.tree import (
    Aggregate,
    Binary,
    Call,
    Expr,
    Matching,
    Negative,
    Number,
    Vector,
    bare,
    walk,
)

Labels = frozenset[str] | None
"""The labels that the elements of a result may have; None if they are unknown."""

# In a loop over a query, .Labels are those of its results.
_TEMPLATE = re.compile(r"\$labels\.([a-zA-Z_][a-zA-Z0-9_]{0,60})")
_KEEPS = frozenset(
    {"abs", "ceil", "clamp", "clamp_max", "clamp_min", "exp", "floor", "ln", "log2", "log10",
     "round", "sgn", "sort", "sort_desc", "sqrt"}
)  # fmt: skip
_SCALARS = frozenset({"scalar", "time", "pi"})
_NONE = _SCALARS | {"vector"}
_META = re.compile(r"[\\.+*?()\[\]{}^$|]")


def check(query: LocatedQuery, root: Expr, context: LintContext) -> Iterator[Hit]:
    """Yield defects of vector matching, label matchers and the templates of alerts."""
    for node, _ in walk(root):
        match node:
            case Binary():
                yield from _unmatched(node)
            case Vector():
                for matcher in node.matchers:
                    yield from _pattern(node, matcher)
    if query.use == "alert":
        yield from _templates(query, root)


def labels_of(node: Expr) -> Labels:
    """Return the possible labels of an expression's elements, None if unknown."""
    node = bare(node)
    match node:
        case Aggregate() if node.picks:
            return labels_of(node.expr)
        case (
            Aggregate(op="count_values" | Template())
            | Aggregate(templated=True)
            | Aggregate(without=True)
        ):
            return None
        case Aggregate(labels=labels):
            inner = labels_of(node.expr)
            kept = labels or frozenset()
            return kept if inner is None else kept & inner
        case Negative(expr=expr):
            return labels_of(expr)
        case Call(function=function) if function in _NONE:
            return frozenset()
        case Call(function=function, args=(inner, *_)) if function in _KEEPS:
            return labels_of(inner)
        case Call(function="histogram_quantile", args=(_, inner)):
            found = labels_of(inner)
            return None if found is None else found - {"le"}
        case Binary(op="or"):
            one, other = labels_of(node.left), labels_of(node.right)
            return None if one is None or other is None else one | other
        case Binary(op="and" | "unless"):
            return labels_of(node.left)
        case Binary(grouped=True):
            return None
        case Binary(matching=Matching(kind="on", labels=labels)):
            return known_labels(labels)
        case Binary(left=left, right=right):
            return _combined(left, right)
    return None


def _combined(left: Expr, right: Expr) -> Labels:
    """Return the labels of one-to-one matching, where one side may be a scalar."""
    one, other = labels_of(left), labels_of(right)
    if _is_scalar(left):
        return other
    return one


def _is_scalar(node: Expr) -> bool:
    """Whether an expression is a scalar, which matches any labels."""
    node = bare(node)
    match node:
        case Number():
            return True
        case Call(function=function):
            return function in _SCALARS
        case Negative(expr=expr):
            return _is_scalar(expr)
        case Binary(left=left, right=right):
            return _is_scalar(left) and _is_scalar(right)
    return False


def _unmatched(node: Binary) -> Iterator[Hit]:
    """Yield operators whose sides have no labels in common."""
    if node.op == "or" or _is_scalar(node.left) or _is_scalar(node.right):
        return
    one, other = labels_of(node.left), labels_of(node.right)
    matched = known_labels(node.matching.labels) if node.matching else frozenset[str]()
    if node.matching and node.matching.kind == "on":
        for side, labels in (("left", one), ("right", other)):
            if labels is not None and (gone := sorted(matched - labels)):
                why = f"the {side} side has no label {gone[0]}, so nothing matches by it"
                yield Hit("TL027", node, why, f"keep {gone[0]} in the aggregation of that side")
                return
    elif one is None or other is None or node.grouped:
        return
    elif differ := sorted((one ^ other) - matched):
        side = "left" if differ[0] in one else "right"
        why = f"only the {side} side has the label {differ[0]}, so nothing matches"
        fix = "aggregate both sides by the same labels, or write on (…) group_left"
        yield Hit("TL027", node, why, fix)


def _templates(query: LocatedQuery, root: Expr) -> Iterator[Hit]:
    labels = labels_of(root)
    if labels is None:
        return
    wanted = {name for text in query.templates for name in _TEMPLATE.findall(text)}
    for name in sorted(wanted - labels):
        if name in query.labels:
            why = f"$labels.{name} is empty: $labels has no labels that the rule itself sets"
            fix = (
                f"write its value, {query.labels[name]!r}" if "{{" not in query.labels[name] else ""
            )
            yield Hit("TL036", root, why, fix or f"keep {name} in the aggregation")
        else:
            why = f"$labels.{name} is empty, as the result has no label {name}"
            yield Hit("TL036", root, why, f"keep {name} in the aggregation, or leave it out")


def _pattern(node: Vector, matcher: Matcher) -> Iterator[Hit]:
    if "~" not in matcher.op or matcher.known_value is None or matcher.label == "__name__":
        return
    value, label, negative = matcher.value, matcher.label, matcher.op == "!~"
    bare_value = value.removeprefix("^").removesuffix("$")
    if value == ".*":
        what = "selects nothing" if negative else "selects every value, and series without it"
        yield Hit("TL008", node, f'{label}{matcher.op}".*" {what}', "leave it out")
    elif value == ".+":
        fix = f'write {label}=""' if negative else f'write {label}!=""'
        yield Hit(
            "TL008",
            node,
            f'{label}{matcher.op}".+" is a pattern where a plain matcher suffices',
            fix,
        )
    elif not _META.search(value):
        op = "!=" if negative else "="
        why = f'{label}{matcher.op}"{value}" is a pattern without special characters'
        yield Hit("TL008", node, why, f'write {label}{op}"{value}"')
    elif bare_value != value and not re.search(r"[|\\]", value):
        why = f'the anchors of {label}{matcher.op}"{value}" have no effect: a pattern is anchored'
        yield Hit("TL008", node, why, f'write "{bare_value}"')
