"""What is read as PromQL here is what Prometheus itself reads, and nothing else.

Thousands of queries are made from a grammar of our own, and again with a word or two of them
missing, doubled or swapped.  promtool says of each, in one run, whether Prometheus takes it.
"""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

from promql.lexer import InvalidPromQL
from promql.parse import parse
from promql.types import check

NEWEST = "promtool@forky"
NUMBERS = ["0", "1", "0755", "1_000", "0x1F", ".5", "5.", "1e3", "1e999", "Inf", "nan", "5m", "90s"]
METRICS = [
    "up",
    "a:b:rate5m",
    "x_total",
    "sum",
    "by",
    "offset",
    "start",
    '{"a metric"}',
    "{job='a'}",
]
LABELS = ["job", "le", "on", "by", '"a label"']
VALUES = ['"a"', "'b'", "`c\\d`", '"\\n\\u00e9"', '"\\q"', '""', '".*"']
DURATIONS = ["5m", "1h30m", "30m1h", "300", "1.5", "0", "0s", "5x", "1y2w", "5m # why\n"]
OFFSETS = ["", "", "", "", " offset 5m", " offset -1h", " @ 1.7e9", " @ end()", " offset 5m @ 1m"]
MATCHINGS = [
    "",
    "",
    "",
    " bool",
    " on (job)",
    " ignoring (le) group_left (job)",
    " on () group_right",
]
OPERATORS = ["+", "-", "*", "/", "%", "^", "atan2", "==", "!=", ">", "<=", "and", "or", "unless"]
AGGREGATIONS = ["sum", "avg", "count", "topk", "quantile", "count_values", "limitk", "GROUP"]
CALLS = [
    "abs({v})", "rate({r})", "time()", "round({v}, {s})", "round({v})", "clamp({v}, {s}, {s})",
    "label_replace({v}, 'a', '$1', 'b', '(.*)')", "label_join({v}, 'a', ',')", "hour()",
    "histogram_quantile({s}, {v})", "histogram_fraction({s}, {s}, {v})", "absent({v})", "pi()",
    "predict_linear({r}, {s})", "quantile_over_time({s}, {r})", "vector({s})", "scalar({v})",
    "max_over_time({r})", "double_exponential_smoothing({r}, {s}, {s})", "info({v}, {{a='b'}})",
    "sort_by_label({v}, 'a', 'b')", "mad_over_time({r})", "histogram_avg({v})", "rate({v})",
    "abs({s})", "nothing({v})", "abs()", "timestamp({v})", "changes({r},)", "hour({v})",
]  # fmt: skip
# What only later releases take, or only where it is switched on.
LATER = re.compile(r"offset\s*[-+]*\s*\(|\b(start|end|range|step)\(", re.IGNORECASE)
WORDS = re.compile(r"\w+|'[^']*'|\"[^\"]*\"|\S|\s+")


class Grammar:
    """Queries at random; the same ones in every run."""

    def __init__(self, seed: int) -> None:
        self.pick = Random(seed).choice
        self.random = Random(seed + 1)

    def matchers(self) -> str:
        many = [
            f"{self.pick(LABELS)}{self.pick(['=', '!=', '=~', '!~'])}{self.pick(VALUES)}"
            for _ in range(self.random.choice((0, 0, 1, 2)))
        ]
        return f"{{{', '.join(many)}}}" if many else ""

    def selector(self) -> str:
        metric = self.pick(METRICS)
        return metric + ("" if metric[0] == "{" else self.matchers())

    def range(self, depth: int) -> str:
        if depth and self.random.random() < 0.3:
            step = self.pick(["", "1m", "30s"])
            return f"({self.vector(depth - 1)})[{self.pick(DURATIONS)}:{step}]{self.pick(OFFSETS)}"
        return f"{self.selector()}[{self.pick(DURATIONS)}]{self.pick(OFFSETS)}"

    def scalar(self, depth: int) -> str:
        if depth and self.random.random() < 0.3:
            return f"{self.scalar(depth - 1)} {self.pick(OPERATORS)} {self.scalar(depth - 1)}"
        return self.pick(NUMBERS)

    def vector(self, depth: int) -> str:
        kind = self.random.randrange(7) if depth else 0
        inner = depth - 1
        if kind <= 1:
            return self.selector() + self.pick(OFFSETS)
        if kind == 2:
            call = self.pick(CALLS)
            return call.format(v=self.vector(inner), r=self.range(inner), s=self.scalar(0))
        if kind == 3:
            op, grouping = (
                self.pick(AGGREGATIONS),
                f"{self.pick(['by', 'without'])} ({self.labels()})",
            )
            first = {"topk": "3, ", "quantile": "0.9, ", "count_values": "'v', ", "limitk": "1, "}
            body = f"({first.get(op, '')}{self.vector(inner)})"
            return self.pick([f"{op}{body}", f"{op} {grouping} {body}", f"{op}{body} {grouping}"])
        if kind == 4:
            right = self.pick([self.vector(inner), self.scalar(0)])
            return f"{self.vector(inner)} {self.pick(OPERATORS)}{self.pick(MATCHINGS)} {right}"
        if kind == 5:
            return f"-{self.vector(inner)} # why" + "\n"
        return f"({self.vector(inner)})"

    def labels(self) -> str:
        return ", ".join(self.pick(LABELS) for _ in range(self.random.choice((0, 1, 2))))

    def broken(self, text: str) -> str:
        words = WORDS.findall(text)
        at, other = (self.random.randrange(len(words)) for _ in range(2))
        change = self.random.randrange(3)
        if change == 0:
            del words[at]
        elif change == 1:
            words.insert(at, words[other])
        else:
            words[at], words[other] = words[other], words[at]
        return "".join(words)


def queries(seed: int, many: int) -> list[str]:
    grammar = Grammar(seed)
    whole = [grammar.vector(3) for _ in range(many)]
    texts = dict.fromkeys([*whole, *map(grammar.broken, whole)])
    return [text for text in texts if text.strip() and not LATER.search(text)]


def refused_by_prometheus(promtool: Path, texts: list[str], folder: Path) -> set[int]:
    """Return which of the queries promtool refuses."""
    rules = [{"record": f"q{at}", "expr": text} for at, text in enumerate(texts)]
    file = folder / "rules.yaml"
    file.write_text(json.dumps({"groups": [{"name": "g", "rules": rules}]}))
    features = "--enable-feature=promql-experimental-functions"
    command = [promtool, features, "check", "rules", "--lint=none", file]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    output = done.stdout + done.stderr
    refused = {int(at) for at in re.findall(r'"q([0-9]+)": could not parse expression', output)}
    assert refused or done.returncode == 0, output[:2000]
    return refused


def is_refused_here(text: str) -> bool:
    try:
        check(parse(text))
    except InvalidPromQL:
        return True
    return False


@pytest.mark.needs(NEWEST)
def test_parser_accepts_exactly_what_prometheus_accepts(
    part: Callable[[str], Path], tmp_path: Path
) -> None:
    texts = queries(seed=20, many=2000)
    refused = refused_by_prometheus(part(NEWEST), texts, tmp_path)
    assert 1000 < len(refused) < len(texts) - 1000
    here = {at for at, text in enumerate(texts) if is_refused_here(text)}
    assert [texts[at] for at in here - refused] == []
    assert [texts[at] for at in refused - here] == []
