"""Generated blocks about Kubernetes: limits of scrapes, a shutdown, values of the chart."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

import yaml

from slos.load import load_file
from slos.prompt_classes import MAX_CLASSES
from tools.kubernetes import limits
from tools.kubernetes.examples import CHART, KUSTOMIZE

_VALUE = re.compile(r"( *)(\w+):(.*)")
_COMMENT = re.compile(r" *# ?(-- )?(.*)")


def sample_limits() -> str:
    """Return the limits by number of models and objectives and by prompt classes, as a table."""
    of_classes = "3 objectives with prompt classes | 20"
    rows = [f"| models, versions counted | 3 objectives | 20 | {of_classes} |", f"|{'---|' * 5}"]
    for models in (1, 4, 16, 64, 256):
        found = (
            limits.sample_limit(models, objectives, classes)
            for classes in (0, MAX_CLASSES)
            for objectives in (3, 20)
        )
        cells = (f"{limit:,}" for limit in found)
        rows.append(f"| {models} | {' | '.join(cells)} |")
    return "\n".join(rows) + "\n"


def shutdown() -> str:
    """Return the steps of a shutdown with their seconds, as a table."""
    longest = limits.longest_stream(load_file(KUSTOMIZE / "examples/triton/slo.yaml").services)
    rows = (
        (
            "the pod is deleted, `preStop` of the server",
            limits.ENDPOINT_REMOVAL,
            "Services, gateways and load balancers stop sending requests",
        ),
        (
            "SIGTERM to the server",
            longest,
            "streams end; Triton needs `--exit-timeout-secs` of at least this time",
        ),
        (
            "SIGTERM to the sidecar",
            limits.SIDECAR_EXIT,
            "a proxy tap sends what slow clients have not read, for `--tap-drain`",
        ),
        ("`terminationGracePeriodSeconds`", limits.grace_period(longest), "the sum"),
    )
    lines = (f"| {step} | {seconds} | {meaning} |" for step, seconds, meaning in rows)
    return "\n".join(("| step | seconds | |", "|---|---|---|", *lines)) + "\n"


def chart_values() -> str:
    """Return every value of the chart with its default and meaning, as a table."""
    text = (CHART / "values.yaml").read_text(encoding="utf-8")
    defaults = yaml.safe_load(text)
    rows = ["| value | default | meaning |", "|---|---|---|"]
    for path, meaning in _values(text):
        default = defaults
        for key in path:
            default = default[key]
        if not isinstance(default, dict) or not default or meaning:
            shown = json.dumps(default).replace("|", "\\|")
            rows.append(f"| `{'.'.join(path)}` | `{shown}` | {meaning} |")
    return "\n".join(rows) + "\n"


def _values(text: str) -> Iterator[tuple[tuple[str, ...], str]]:
    """Yield path and comment of every key; those below a commented mapping are part of it."""
    path: list[str] = []
    words: list[str] = []
    inside = -1
    for line in text.splitlines():
        comment, value = _COMMENT.fullmatch(line), _VALUE.fullmatch(line)
        if comment:
            words = [comment[2]] if comment[1] else [*words, comment[2]] if words else []
        elif value:
            depth = len(value[1]) // 2
            if inside < 0 or depth <= inside:
                path[depth:] = [value[2]]
                inside = depth if words and not value[3] else -1
                yield tuple(path), " ".join(words)
            words = []
