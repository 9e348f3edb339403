"""The mutants of the generated rules: faults that a rule's author could make.

A row is a name, an edit of the rule and, for a mutant that survives, the reason.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

Rule = dict[str, Any]
Edit = Callable[[Rule], Rule | None]
Row = tuple[str, Edit] | tuple[str, Edit, str]


@dataclass(frozen=True, slots=True)
class Mutant:
    """An edit of the rule ``rule`` in the group ``group``.

    A rule is named by what it records, or by the end of the alert's name and a label's value.
    ``survives`` is the reason why the generated tests do not kill it.
    """

    group: str
    rule: str
    fault: str
    edit: Edit
    survives: str = ""

    @property
    def name(self) -> str:
        """The name in reports and on the command line."""
        return f"{self.group} {self.rule}: {self.fault}"


def expr(old: str, new: str, count: int = -1) -> Edit:
    """Replace a part of the expression, everywhere or in the first ``count`` places."""
    return lambda rule: {**rule, "expr": rule["expr"].replace(old, new, count)}


def unmatched(label_name: str) -> Edit:
    """Remove the matchers of a label from all selectors."""
    matcher = re.compile(rf',?\b{label_name}=~?"[^"]*"')
    return lambda rule: {**rule, "expr": matcher.sub("", rule["expr"]).replace("{,", "{")}


def last(old: str, new: str) -> Edit:
    """Replace the last place of a part of the expression."""
    return lambda rule: {**rule, "expr": new.join(rule["expr"].rsplit(old, 1))}


def without(start: str) -> Edit:
    """Remove the lines of the expression that begin like this."""

    def edit(rule: Rule) -> Rule:
        kept = (line for line in rule["expr"].splitlines() if not line.strip().startswith(start))
        return {**rule, "expr": "\n".join(kept)}

    return edit


def label(name: str, value: str = "") -> Edit:
    """Set a label, or remove it."""

    def edit(rule: Rule) -> Rule:
        others = {key: text for key, text in rule["labels"].items() if key != name}
        return {**rule, "labels": others | ({name: value} if value else {})}

    return edit


def lasting(duration: str) -> Edit:
    """Set how long an alert is pending."""
    return lambda rule: {**rule, "for": duration}


def annotation(name: str) -> Edit:
    """Empty an annotation."""
    return lambda rule: {**rule, "annotations": {**rule["annotations"], name: ""}}


def missing(_: Rule) -> None:
    """Remove the rule."""


MISSING: Row = ("is missing", missing)
_INHERITED = "equivalent: the series that the alert reads has the same label"
_BORN = "equivalent: the sidecar serves all outcomes from its start, so none is absent alone"
_JOB = "the tests have no series that a user's own queries do not select"
_SERVED_FROM_START = "the tests serve counters of the user's own queries from the start"
_TEXT = "the tests expect labels, not annotations, which are text of the rule file itself"
_OTHERS = {"1h": "6h", "6h": "1h", "1d": "3d", "3d": "1d", "5m": "30m", "30m": "5m", "2h": "6h"}
AVAILABILITY = 'slo="availability"'


def _counter() -> tuple[Row, ...]:
    return (
        MISSING,
        ("drops the model", unmatched("model")),
        ("keeps falls of a counter", expr(">= 0", "")),
        ("inverts the comparison", expr(">= 0", "<= 0")),
        ("subtracts the value 2m before", expr("offset 1m", "offset 2m")),
        ("subtracts the value 5m before", expr("offset 1m", "offset 5m")),
        ("subtracts the same value", expr(" offset 1m", "")),
        ("loses the increase in a gap", expr("[30m]", "[5m]")),
        ("range of 1h in place of 30m", expr("[30m]", "[1h]")),
        ("is an average", expr("sum(", "avg(")),
        ("has another slo", label("slo", "other")),
        ("has no service", label("service")),
    )


def _ratio(window: str) -> tuple[Row, ...]:
    other = _OTHERS[window]
    return (
        MISSING,
        (f"reads {other}", expr(f"[{window}]", f"[{other}]")),
        (f"counts bad events of {other}", expr(f"[{window}]", f"[{other}]", 1)),
        ("swaps bad and total", expr("slo:bad:", "slo:total:")),
        ("reads another objective", expr(AVAILABILITY, 'slo="completion"')),
        ("is not a number without traffic", expr("> 0", ">= 0")),
        ("has another slo", label("slo", "other")),
    )


def _pair(long: str, short: str, threshold: str) -> tuple[Row, ...]:
    other = _OTHERS[long]
    low, high = (f"{float(threshold) * factor:.6f}" for factor in (0.9, 1.1))
    ratios = f"rate{long}", f"rate{short}"
    return (
        MISSING,
        ("has a threshold 10 % higher", expr(threshold, high)),
        ("has a threshold 10 % lower", expr(threshold, low)),
        ("has a higher threshold over the short window", last(threshold, high)),
        ("includes the threshold", expr(f"> {threshold}", f">= {threshold}")),
        ("inverts the comparison", expr(f"> {threshold}", f"< {threshold}")),
        ("ignores the short window", without("and slo:error_ratio")),
        ("fires for either window", expr("and slo:error_ratio", "or slo:error_ratio")),
        (f"reads {other} in place of {long}", expr(ratios[0], f"rate{other}")),
        (f"reads {_OTHERS[short]} in place of {short}", expr(ratios[1], f"rate{_OTHERS[short]}")),
        ("guards with 11", expr(">= 10", ">= 11")),
        ("guards with 9", expr(">= 10", ">= 9")),
        ("has no guard", without("and sum_over_time")),
        ("guards with the total", expr("(slo:bad:", "(slo:total:")),
        (f"guards over {other}", expr(f"[{long}]", f"[{other}]")),
        (f"guards over {short}", expr(f"[{long}]", f"[{short}]")),
        ("guards by or", expr("and sum_over_time", "or sum_over_time")),
        ("reads another objective", expr(AVAILABILITY, 'slo="completion"')),
        *_labels(),
    )


def _labels() -> tuple[Row, ...]:
    return (
        ("has the other severity", _other_severity),
        ("has another burn_rate", label("burn_rate", "2")),
        ("has another window", label("window", "2h")),
        ("has no slo", label("slo"), _INHERITED),
        ("is pending for 10m", lasting("10m")),
        ("is pending for 1m", lasting("1m")),
        ("has no summary", annotation("summary"), _TEXT),
    )


def _other_severity(rule: Rule) -> Rule:
    other = "warning" if rule["labels"]["severity"] == "critical" else "critical"
    return {**rule, "labels": {**rule["labels"], "severity": other}}


_BUDGET: dict[str, Sequence[Row]] = {
    "slo:target:ratio": (
        MISSING,
        ("is another target", expr("0.999", "0.99")),
        ("has no indicator", label("indicator")),
        ("has another window", label("window", "30d")),
    ),
    "slo:period_bad:increase": (
        MISSING,
        ("sums 7d", expr("28d", "7d")),
        ("sums 30d", expr("28d", "30d")),
        ("counts all events", expr("slo:bad", "slo:total")),
        ("reads another objective", expr(AVAILABILITY, 'slo="completion"')),
    ),
    "slo:period_error_ratio:ratio": (
        MISSING,
        ("reads a total of 7d", expr("28d", "7d", 1)),
        ("counts the minutes of 7d", last("28d", "7d")),
        ("divides by the minutes of 7d", expr("40320", "10080")),
        ("divides by the minutes of 30d", expr("40320", "43200")),
        ("is not a number without traffic", expr("> 0", ">= 0")),
    ),
    "slo:error_budget_remaining:ratio": (
        MISSING,
        ("has another budget", expr("/ 0.001", "/ 0.002")),
        ("is what is spent", expr("1 - ", "0 + ", 1)),
        ("is missing without traffic", expr("== 0", "== -1")),
        ("is 0 without traffic", expr("+ 1", "+ 0")),
    ),
    "LowTrafficErrors": (
        MISSING,
        ("needs 4 bad events", expr("> 2", "> 3")),
        ("needs 2 bad events", expr("> 2", "> 1")),
        ("takes 10 bad events", expr("< 10", "<= 10")),
        ("has no upper bound", expr("< 10", "< 1000000000")),
        ("has a threshold 10 % higher", expr("0.5005", "0.55")),
        ("has a threshold 10 % lower", expr("0.5005", "0.45")),
        ("reads the error ratio of 1d", expr("rate3d", "rate1d")),
        ("counts bad events of 1d", expr("[3d]", "[1d]")),
        ("counts all events", expr("slo:bad", "slo:total")),
        ("pages", label("severity", "critical")),
    ),
    "ErrorBudgetExhausted": (
        MISSING,
        ("fires at half of the budget", expr("<= 0", "<= 0.5")),
        ("fires only beyond the budget", expr("<= 0", "<= -0.1")),
        ("inverts the comparison", expr("<= 0", ">= 0")),
        ("guards with 11", expr(">= 10", ">= 11")),
        ("guards with 9", expr(">= 10", ">= 9")),
        ("fires for either condition", expr("and slo:", "or slo:")),
        ("reads another objective", expr(AVAILABILITY, 'slo="completion"')),
        ("pages", label("severity", "critical")),
        ("is pending for 10m", lasting("10m")),
    ),
    "MetricAbsent": (
        MISSING,
        ("drops the model", expr('model="tensorrt_llm",', "")),
        ("reads another model", expr('model="tensorrt_llm",', 'model="other",')),
        ("reads fewer outcomes", expr("|timeout", ""), _BORN),
        ("fires while metrics are there", expr("absent(", "(")),
        ("fires for unavailable signals", without("unless on ()")),
        ("reads another signal", expr('signal="requests"', 'signal="streams"')),
        ("is pending for 1m", lasting("1m")),
        ("is pending for 1h", lasting("1h")),
        ("has no slo", label("slo")),
        ("has the other severity", _other_severity),
    ),
}
_TTFT = 'signal="ttft",threshold="0.8"'
TABLE: dict[tuple[str, str], Sequence[Row]] = {
    ("chat/availability", "slo:total:increase1m"): (
        *_counter(),
        ("forgets time-outs", expr("|timeout", "")),
        ("forgets successes", expr('"ok|', '"')),
        ("counts cancellations", expr('"ok|', '"ok|cancelled|')),
        ("counts invalid requests", expr('"ok|', '"ok|invalid|')),
    ),
    ("chat/availability", "slo:bad:increase1m"): (
        *_counter(),
        ("forgets time-outs", expr("|timeout", "")),
        ("counts successes", expr('"error|', '"ok|error|')),
        ("counts client disconnects", expr('"error|', '"error|client_disconnected|')),
    ),
    **{("chat/availability", f"slo:error_ratio:rate{each}"): _ratio(each) for each in _OTHERS},
    **{("chat/availability", rule): rows for rule, rows in _BUDGET.items()},
    ("chat/availability", "ErrorBudgetBurn 1h"): _pair("1h", "5m", "0.01344"),
    ("chat/availability", "ErrorBudgetBurn 6h"): (MISSING, *_labels()),
    ("chat/availability", "ErrorBudgetBurn 1d"): (MISSING, *_labels()),
    ("chat/availability", "ErrorBudgetBurn 3d"): _pair("3d", "6h", "0.001"),
    ("chat/signals", "slo:unavailable_signal:count"): (
        MISSING,
        ("drops the model", expr('model="tensorrt_llm",', "")),
        ("reads other qualities", expr("unavailable", "estimated")),
        ("counts servers that are down", expr(" unless on (instance) tokenslo_source_up == 0", "")),
        ("counts only servers that are down", expr("== 0", "== 1")),
        ("has another service", label("service", "other")),
    ),
    ("chat/first-token", "slo:total:increase1m"): (
        ("forgets good events", expr('threshold="0.8"', 'threshold="0.8",result="bad"')),
        ("drops the threshold", expr(_TTFT, 'signal="ttft"')),
        ("drops the signal", expr(_TTFT, 'threshold="0.8"')),
        ("reads a shorter threshold", expr('"0.8"', '"0.4"')),
    ),
    ("chat/first-token", "slo:bad:increase1m"): (
        ("forgets requests that died", expr("bad|shed", "slow|shed")),
        ("forgets shed requests", expr("bad|shed", "bad")),
        ("counts quotas", expr("bad|shed", "bad|shed|quota")),
        ("counts good events", expr(',result=~"bad|shed"', "")),
        ("drops the threshold", expr(_TTFT, 'signal="ttft"')),
    ),
    ("chat/first-token", "ErrorBudgetBurn 10m"): (MISSING, *_labels()),
    ("chat/completion", "slo:total:increase1m"): (
        ("counts streams that never began", expr("mid_stream|", "before_first_token|mid_stream|")),
        ("forgets streams that ended early", expr("mid_stream|", "")),
    ),
    ("chat/completion", "slo:bad:increase1m"): (
        ("counts client disconnects", expr('"error|', '"error|client_disconnected|')),
        ("forgets the phase", unmatched("phase")),
    ),
    ("chat/goodput", "slo:total:increase1m"): (
        ("drops the objective", unmatched("objective")),
        ("counts unknown results", expr("good|bad", "good|bad|unknown")),
    ),
    ("chat/goodput", "slo:bad:increase1m"): (
        ("drops the objective", unmatched("objective")),
        ("counts good requests", expr(',result=~"bad|shed"', "")),
    ),
    ("chat/kv-headroom", "slo:bad:increase1m"): (
        ("has a higher threshold", expr("0.9", "0.95")),
        ("has a lower threshold", expr("0.9", "0.85")),
        ("drops the model", expr('{model="tensorrt_llm"}', "")),
        ("counts only one series", expr("sum(", "max(")),
    ),
    ("chat/kv-headroom", "slo:total:increase1m"): (
        ("drops the model", expr('{model="tensorrt_llm"}', "")),
        ("adds utilizations", expr("count(", "sum(")),
    ),
    ("chat/kv-headroom", "ErrorBudgetBurn 1h"): (
        ("guards with 6", expr(">= 5", ">= 6")),
        ("guards with 4", expr(">= 5", ">= 4")),
    ),
    ("chat/sequence-headroom", "slo:bad:increase1m"): (
        ("has a higher threshold", expr("0.95", "0.99")),
        ("has a lower threshold", expr("0.95", "0.9")),
        ("reads waiting sequences", expr("active", "waiting")),
        ("does not divide", expr("/ ignoring (state)", "* ignoring (state)")),
    ),
    ("shop/answers", "slo:bad:increase1m"): (("drops the groups", expr(" by (version) ", " ")),),
    ("shop/answers", "slo:total:increase1m"): (
        ("drops the groups", expr(" by (version) ", " ")),
        ("groups by another label", expr("version", "pod")),
    ),
    ("shop/answers", "ErrorBudgetPolicy 50%"): (
        MISSING,
        ("fires at 60 %", expr("<= 0.5", "<= 0.4")),
        ("fires at 40 %", expr("<= 0.5", "<= 0.6")),
        ("guards with 11", expr(">= 10", ">= 11")),
        ("has another step", label("step", "100%")),
        ("pages", label("severity", "critical")),
    ),
    ("shop/minutes", "slo:bad:increase1m"): (
        ("drops the objective", expr('objective="shop/minutes",', "")),
        ("counts good slices", expr(',result="bad"', "")),
    ),
    ("shop/checkout", "slo:bad:increase1m"): (
        ("is absent without failures", without("or sum("), _SERVED_FROM_START),
        ("forgets counters born with an error", without("or last_over_time"), _SERVED_FROM_START),
        ("reads another job", expr('http_errors_total{job="shop"}', "http_errors_total"), _JOB),
    ),
    ("shop/checkout", "SLIInconsistent"): (
        MISSING,
        ("inverts the comparison", expr("> sum", "< sum")),
        ("allows half as much again", expr("1.01", "1.5")),
        ("is pending for 5m", lasting("5m")),
        ("is pending for 1h", lasting("1h")),
        ("has the other severity", _other_severity),
    ),
}
_VERSIONS = "the tests of causes have no latencies of two versions"
_CAUSES = {
    "KvCachePressure": ("> 0.8", "< 0.8"),
    "SequencesPaused": ("> 0", "< 0"),
    "QueueGrowing": ("> 1", "< 1"),
    "DecodeStuck": ("== 0", "== 1"),
    "ClientDisconnectsAtTimeout": (">= 5", "< 5"),
    "RetryStorm": ("> 0.1", "< 0.1"),
    "SlowClients": ("> 0.1", "< 0.1"),
    "WastedWork": ("> 0.1", "< 0.1"),
    "EngineStatsLost": ("> 0", "== 0"),
    "ExporterSourceDown": ("== 0", "== 1"),
    "SignalUnavailable": ("slo:unavailable_signal:count", "slo:target:ratio"),
    "ModelNotReady": ("== 0", "== 1"),
    "GpuMemoryNearFull": ("> 0.98", "< 0.98"),
    "BadVersion": ("* 3 + 0.01", "* 3 + 1"),
}
TABLE |= {
    ("chat/causes", cause): (
        MISSING,
        ("has another condition", expr(old, new)),
        ("is pending for 1h", lasting("1h")),
        ("has another model", label("model", "other")),
    )
    for cause, (old, new) in _CAUSES.items()
}
TABLE["chat/causes", "SlowVersion ttft"] = (("is missing", missing, _VERSIONS),)
TABLE["chat/causes", "SlowVersion itl"] = (("is missing", missing, _VERSIONS),)


def mutants() -> Iterator[Mutant]:
    """Yield every mutant of the table."""
    for (group, rule), rows in TABLE.items():
        for fault, edit, *reason in rows:
            yield Mutant(group, rule, fault, edit, *reason)
