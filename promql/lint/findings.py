"""Lint findings, and the table of all checks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from promql.lint.located_query import Path
from promql.lint.located_text import LocatedText
from promql.tree import Expr

Severity = Literal["error", "warning", "note"]


@dataclass(frozen=True, slots=True)
class LintCheck:
    """One kind of defect; its severity is error if the query is certainly wrong."""

    name: str
    severity: Severity
    summary: str


CHECKS: Mapping[str, LintCheck] = {
    "TL001": LintCheck("syntax", "error", "Prometheus would refuse the query"),
    "TL002": LintCheck("unknown-metric", "error", "a metric that the servers do not emit"),
    "TL003": LintCheck("unknown-label", "error", "a label that the metric does not have"),
    "TL004": LintCheck("unknown-value", "error", "a value that the label never takes"),
    "TL005": LintCheck(
        "off-grid", "error", "a threshold that is not a bucket boundary of the histogram"
    ),
    "TL006": LintCheck(
        "boundary-spelling", "warning", 'a whole boundary in one spelling: le="1" or le="1.0"'
    ),
    "TL007": LintCheck("misleading-metric", "warning", "a metric whose name is misleading"),
    "TL008": LintCheck(
        "needless-pattern", "note", "a regular expression that a plain matcher could replace"
    ),
    "TL011": LintCheck("gauge-rate", "error", "the rate of a gauge"),
    "TL012": LintCheck("raw-counter", "warning", "a counter without rate or increase"),
    "TL013": LintCheck(
        "since-boot-average", "error", "a ratio of counters, averaged since the start"
    ),
    "TL014": LintCheck("clamped-average", "error", "a divisor that is clamped at low rates"),
    "TL015": LintCheck("rate-of-sum", "error", "the rate of a sum"),
    "TL016": LintCheck("short-window", "error", "a window that may hold fewer than two samples"),
    "TL017": LintCheck("undivided-sum", "error", "seconds per second shown as a time"),
    "TL021": LintCheck("unlike-sum", "error", "a sum of different quantities"),
    "TL022": LintCheck("ratio-sum", "error", "a sum of ratios or quantiles"),
    "TL023": LintCheck("ratio-average", "warning", "an average of ratios or quantiles"),
    "TL024": LintCheck("broken-quantile", "error", "a quantile over raw buckets, or without le"),
    "TL025": LintCheck("only-averages", "note", "a latency shown only as an average"),
    "TL026": LintCheck(
        "unsummed-buckets", "warning", "a quantile of each series instead of their sum"
    ),
    "TL027": LintCheck("labels-differ", "error", "a binary operator whose sides share no labels"),
    "TL031": LintCheck("cannot-fire", "error", "a threshold that can never be exceeded"),
    "TL032": LintCheck("idle-nan", "error", "a recorded 0/0 that makes sums over time NaN"),
    "TL033": LintCheck(
        "absent-labels", "warning", "an alert on absence without the labels of its series"
    ),
    "TL034": LintCheck("availability-from-up", "warning", "availability taken from `up`"),
    "TL035": LintCheck("many-series", "error", "a scaler's query that may return several series"),
    "TL036": LintCheck("empty-template", "warning", "a template of a label that the result lacks"),
    "TL037": LintCheck("always-fires", "error", "an alert whose expression always has a result"),
    "TL041": LintCheck("unit", "error", "a panel whose unit is not that of its query"),
    "TL042": LintCheck(
        "pinned-label", "warning", "a label fixed in one query and variable in others"
    ),
    "TL043": LintCheck(
        "other-latency", "warning", "a mean per request labelled as inter-token latency"
    ),
    "TL051": LintCheck("null-as-zero", "warning", "a scaler that reads a missing result as 0"),
    "TL052": LintCheck("no-fallback", "warning", "a scaler without replicas to keep on errors"),
    "TL053": LintCheck("queue-ratio", "warning", "scaling on queue time / compute time"),
    "TL054": LintCheck("utilization-scaling", "warning", "scaling on GPU utilization"),
    "TL055": LintCheck(
        "unselective-rule", "error", "an adapter's rule that ignores the requested object"
    ),
    "TL056": LintCheck(
        "unprotected-streams", "warning", "scale-down without a window for open streams"
    ),
}


@dataclass(frozen=True, slots=True)
class Hit:
    """A defect of one query: check, part of the query, reason and fix.

    ``severity`` overrides that of the check.
    """

    check: str
    part: Expr | None
    why: str
    fix: str
    severity: Severity | None = None


@dataclass(frozen=True, slots=True)
class ScalerHit:
    """A defect of a scaler's settings: check, the name in question and its path, reason and fix."""

    check: str
    name: LocatedText
    path: Path
    why: str
    fix: str
    severity: Severity | None = None


@dataclass(frozen=True, slots=True)
class Finding:
    """A defect with its place: ``part`` is text of the query, ``path`` its keys in the file."""

    file: str
    line: int
    place: str
    path: Path
    check: str
    severity: Severity
    part: str
    why: str
    fix: str
