"""Rules of hand-written error ratios pass the tests that are generated with them."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests import libyaml
from tests.window_test_runs import run_window_tests
from tokenslo.commands.generate import generate

W = "[{{.window}}]"
ALL, GOOD = f"sum(rate(t_total{W}))", f"sum(rate(g_total{W}))"
COUNT, FAST = f"sum(rate(h_seconds_count{W}))", f'sum(rate(h_seconds_bucket{{le="0.4"}}{W}))'
EVERY = f'sum(rate(h_seconds_bucket{{le="+Inf"}}{W}))'
A, B = f"sum(rate(a_total{W}))", f"sum(rate(b_total{W}))"
BY = "sum by (host)"

IDIOMS = {
    "plain": (A, ALL),
    "selector": (f'sum(rate(t_total{{code=~"5.."}}{W}))', ALL),
    "count-bucket": (f"{COUNT} - {FAST}", COUNT),
    "infinity-bucket": (f"{EVERY} - {FAST}", EVERY),
    "count-bucket-of-others": (f"{COUNT} - {FAST}", ALL),
    "total-good": (f"{ALL} - {GOOD}", ALL),
    "total-good-guarded": (f"{ALL} - ({GOOD} or vector(0))", ALL),
    "total-good-inside": (f"sum(rate(t_total{W}) - rate(g_total{W}))", ALL),
    "total-good-code": (f'{ALL} - sum(rate(t_total{{code="200"}}{W}))', ALL),
    "sum": (f"{A} + {B}", ALL),
    "sum-guarded": (f"({A} or vector(0)) + ({B} or vector(0))", ALL),
    "sum-total": (f"{A} + {B}", f"{A} + {B} + {GOOD}"),
    "clamp": (f"clamp_min({ALL} - {GOOD}, 0)", ALL),
    "clamp-total": (A, f"clamp_min({ALL}, 1)"),
    "or-zero": (f"{A} or vector(0)", ALL),
    "or-zero-on": (f"({A} or on() vector(0))", ALL),
    "or-zero-both": (f"{A} or vector(0)", f"{ALL} or vector(0)"),
    "or-zero-inside": (f"sum(rate(a_total{W}) or vector(0))", ALL),
    "or-total-zero": (f"{A} or {ALL} * 0", ALL),
    "or": (f"sum(rate(a_total{W}) or rate(b_total{W}))", ALL),
    "unless": (f"sum(rate(a_total{W}) unless rate(b_total{W}))", ALL),
    "share": (f"{ALL} * 0.01", ALL),
    "names": (f'sum(rate({{__name__=~"a_total|b_total"}}{W}))', ALL),
    "increase": (f"sum(increase(a_total{W}))", f"sum(increase(t_total{W}))"),
    "probe": (
        f"sum(count_over_time(probe_success{W})) - sum(sum_over_time(probe_success{W}))",
        f"sum(count_over_time(probe_success{W}))",
    ),
    "by-host": (f'{BY} (rate(t_total{{code=~"5.."}}{W}))', f"{BY} (rate(t_total{W}))"),
    "by-host-histogram": (
        f'{BY} (rate(h_seconds_count{W})) - {BY} (rate(h_seconds_bucket{{le="0.4"}}{W}))',
        f"{BY} (rate(h_seconds_count{W}))",
    ),
}


def sloth(name: str, error: str, total: str) -> str:
    return (
        f"version: prometheus/v1\nservice: {name}\nslos:\n  - name: requests\n"
        f"    objective: 99.5\n    sli:\n      events:\n"
        f"        error_query: '{error}'\n        total_query: '{total}'\n"
    )


TESTED_IN_EVERY_RUN = {
    "count-bucket",
    "total-good-guarded",
    "unless",
    "names",
    "probe",
    "by-host-histogram",
}


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=() if name in TESTED_IN_EVERY_RUN else pytest.mark.long)
        for name in IDIOMS
    ],
)
def test_an_idiom_passes_its_generated_tests(name: str, promtool: Path, tmp_path: Path) -> None:
    source = tmp_path / "sloth.yaml"
    source.write_text(sloth(name, *IDIOMS[name]))
    done = CliRunner().invoke(
        generate, [str(source), "-o", str(tmp_path), "--only", "alerts,tests"]
    )
    assert done.exit_code == 0, done.output
    tests = sorted(map(str, tmp_path.rglob("*.test.yaml")))
    assert len(tests) == 2
    if name != "plain" and not any("vector(" in query for query in IDIOMS[name]):
        # Without series such a query has no value, so tests of windows begin alike for all of them.
        tests = [test for test in tests if not test.endswith(".windows.test.yaml")]
    result = run_window_tests(promtool, *tests, folder=tmp_path)
    assert result.returncode == 0, result.stdout[-3000:] + result.stderr[-3000:]


SERIES = {
    't_total{code="200",host="a"}': "0+60x60",
    't_total{code="500",host="a"}': "0+20x60",
    'g_total{host="a"}': "0+60x60",
    'a_total{host="a"}': "0+16x60",
    'b_total{host="a"}': "0+4x60",
    'h_seconds_count{host="a"}': "0+80x60",
    'h_seconds_bucket{host="a",le="0.4"}': "0+60x60",
    'h_seconds_bucket{host="a",le="+Inf"}': "0+80x60",
}
QUARTER = (
    "selector", "count-bucket", "infinity-bucket", "total-good", "total-good-guarded",
    "total-good-inside", "total-good-code", "sum", "sum-guarded", "clamp", "by-host",
    "by-host-histogram",
)  # fmt: skip


@pytest.mark.parametrize("name", QUARTER)
def test_an_idiom_measures_the_share_of_bad_events(
    name: str, promtool: Path, tmp_path: Path
) -> None:
    source = tmp_path / "sloth.yaml"
    source.write_text(sloth(name, *IDIOMS[name]))
    arguments = [str(source), "-o", str(tmp_path), "--only", "alerts"]
    assert CliRunner().invoke(generate, arguments).exit_code == 0
    test = {
        "interval": "1m",
        "input_series": [{"series": each, "values": text} for each, text in SERIES.items()],
        "promql_expr_test": [
            {
                "expr": "round(sum(slo:error_ratio:rate30m), 0.001)",
                "eval_time": "50m",
                "exp_samples": [{"labels": "{}", "value": 0.25}],
            }
        ],
    }
    rules = str(next(tmp_path.rglob("*.rules.yaml")))
    content = {"rule_files": [rules], "evaluation_interval": "1m", "tests": [test]}
    (tmp_path / "scenario.yaml").write_text(libyaml.dump(content))
    command = [promtool, "test", "rules", str(tmp_path / "scenario.yaml")]
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr
