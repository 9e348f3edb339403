"""Evaluate generated rule files on a real Prometheus, on a history extrapolated from scrapes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
from prometheus_client.parser import text_string_to_metric_families

from lab.stack import tokenslo
from slos.durations import parse_duration
from tests import libyaml
from tests.rule_values.recordings import RecordingRule
from tests.rule_values.replay import EPOCH, Replay
from tests.rule_values.traffic import ENDED, Labels, Points, Samples, labelled, points

START = "process_start_time_seconds"
Alert = tuple[str, str]
"""Name and severity."""


def parsed(text: str) -> Mapping[Labels, float]:
    """Return the samples of one scrape by series."""
    return {
        labelled(sample.name, **sample.labels): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def history(
    scrapes: Sequence[Mapping[Labels, float]], step: int, seconds: int, **target: str
) -> Samples:
    """Return the samples of a target that continues like its last two scrapes.

    There is a scrape every ``step`` seconds.  Constant values stay constant; ages and counters
    keep their rate of growth.  ``target`` are labels of the target beside ``instance`` and
    ``job``.
    """
    times = np.arange(0, seconds + 1, step)
    of_target = {"instance": "sidecar:9464", "job": "tokenslo", **target}
    made: dict[Labels, Points] = {}
    for series in dict.fromkeys(key for scrape in scrapes for key in scrape):
        values, is_sample = _extended([scrape.get(series) for scrape in scrapes], len(times))
        if dict(series)["__name__"] == START:
            values[:] = EPOCH - step
        made[tuple(sorted({**dict(series), **of_target}.items()))] = points(
            times, values, is_sample
        )
    made[labelled("up", **of_target)] = points(times, np.ones(len(times)), np.ones_like(times) > 0)
    return made


def generated_rules(slo: Path, folder: Path) -> list[Path]:
    """Generate the rules of an SLO file and return every rule file."""
    out = folder / slo.stem
    tokenslo("generate", slo, "-o", out, "--only", "alerts")
    return sorted(out.rglob("*.rules.yaml"))


def firing(replay: Replay, files: Sequence[Path], seconds: int) -> Mapping[Alert, float]:
    """Evaluate rule files over the history and return when (seconds) each alert first fires."""
    rules: list[tuple[int, dict[str, object]]] = []
    for path in files:
        for group in libyaml.load(path.read_text())["groups"]:
            every = int(parse_duration(group.get("interval", "30s")))
            rules += [(every, rule) for rule in group["rules"]]
    recordings = [_recording(rule, every) for every, rule in rules if "record" in rule]
    for layer in _layers(recordings):
        for made in [replay.recorded(one, range(0, seconds + 1, one.every)) for one in layer]:
            replay.add(made)
    alerts = [(every, rule) for every, rule in rules if "alert" in rule]
    assert recordings
    assert alerts
    first: dict[Alert, float] = {}
    for every, rule in alerts:
        recording = _recording(rule, every)
        alert = str(rule["alert"]), recording.labels["severity"]
        for times, bits in replay.recorded(recording, range(0, seconds + 1, every)).values():
            lasting = float(parse_duration(str(rule.get("for", "0s"))))
            at = _fires(times[bits != ENDED], every, lasting)
            if at is not None:
                first[alert] = min(at, first.get(alert, at))
    return first


def _extended(
    known: Sequence[float | None], count: int
) -> tuple[
    np.ndarray[tuple[int], np.dtype[np.float64]], np.ndarray[tuple[int], np.dtype[np.bool_]]
]:
    last = known[-1]
    before = known[-2] if last is None or known[-2] is not None else last
    rate = 0.0 if last is None or before is None else last - before
    later = [None if last is None else last + rate * (1 + n) for n in range(count - len(known))]
    every = [*known, *later]
    is_sample = np.array([value is not None for value in every])
    return np.array([value or 0.0 for value in every]), is_sample


def _recording(rule: Mapping[str, object], every: int) -> RecordingRule:
    name, labels = rule.get("record", "ALERTS"), rule.get("labels") or {}
    assert isinstance(labels, dict)
    return RecordingRule(str(name), str(rule["expr"]), labels, every)


def _layers(recordings: Sequence[RecordingRule]) -> Iterator[list[RecordingRule]]:
    """Yield the recordings in layers that only read earlier layers."""
    rest = list(recordings)
    while rest:
        layer = [one for one in rest if not any(other.is_read_by(one.expr) for other in rest)]
        assert layer, [one.name for one in rest]
        yield layer
        rest = [one for one in rest if one not in layer]


def _fires(times: Sequence[float], every: int, lasting: float) -> float | None:
    """Return when an alert fires whose expression has an element at these times."""
    if not len(times):
        return None
    since = times[0]
    for before, at in pairwise([times[0], *times]):
        if at - before > every:
            since = at
        if at - since >= lasting:
            return float(at)
    return None
