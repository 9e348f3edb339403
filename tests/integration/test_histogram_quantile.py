"""``histogram_quantile`` against Prometheus' own, on random histograms."""

from __future__ import annotations

import random
import subprocess
from itertools import accumulate
from math import inf
from pathlib import Path

from promql.histogram import histogram_quantile
from tests import libyaml

CASES = 200
QUANTILES = (0.01, 0.5, 0.9, 0.95, 0.99, 1.0)


def histograms() -> list[tuple[list[float], list[int]]]:
    """Return upper bounds and cumulative counts, with empty buckets and at least one sample."""
    dice = random.Random(12)
    found = []
    for _ in range(CASES):
        finite = sorted({round(dice.uniform(0.001, 60), 3) for _ in range(dice.randint(1, 12))})
        counts = [dice.choice((0, 0, 1, 3, 1000)) for _ in range(len(finite) + 1)]
        counts[dice.randrange(len(counts))] += 1
        found.append(([*finite, inf], list(accumulate(counts))))
    return found


def test_quantiles_are_those_of_prometheus(promtool: Path, tmp_path: Path) -> None:
    series, checks, beyond = [], [], 0
    for case, (bounds, counts) in enumerate(histograms()):
        for bound, count in zip(bounds, counts, strict=True):
            le = "+Inf" if bound == inf else repr(bound)
            series.append({"series": f'h_bucket{{case="{case}", le="{le}"}}', "values": str(count)})
        for q in QUANTILES:
            value = histogram_quantile(q, bounds, counts)
            beyond += value == inf
            value = bounds[-2] if value == inf else value  # what PromQL returns there
            of = f'histogram_quantile({q}, h_bucket{{case="{case}"}})'
            checks.append(
                {
                    "expr": f"scalar(abs({of} - {value!r}) < bool 1e-9)",
                    "eval_time": "0s",
                    "exp_samples": [{"value": 1}],
                }
            )
    assert 0 < beyond < len(checks) / 2
    test = {"interval": "1m", "input_series": series, "promql_expr_test": checks}
    (tmp_path / "tests.yaml").write_text(libyaml.dump({"rule_files": [], "tests": [test]}))
    command = [promtool, "test", "rules", "tests.yaml"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
