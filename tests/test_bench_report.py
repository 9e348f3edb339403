"""The page of benchmarks: what is run, what is kept, and what the page shows."""

from __future__ import annotations

import os
import pty
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from alerts.history import PrometheusHistory
from bench import command_growth, report, results
from bench.conditions import CHECKOUT, LoadBefore
from bench.figures import Figure, GrowthCurve, MissingPeer, PeerComparison, as_json
from bench.page import number, render
from bench.results import BenchResult
from bench.run import BENCHES
from promql.client import Series
from slos.load import load_file
from slos.plan import plan

MET = PeerComparison("CPU of a", "nginx 1.22", "µs", [5.0] * 5, [10.0] * 5, target=0.6)
NOISY = replace(MET, subject="CPU of b", ours=[1.0, 2.0, 3.0, 4.0, 5.0])
MISSED = replace(MET, subject="CPU of c", target=0.4)
EXACT = PeerComparison("samples", "Sloth v0.16.0", "", [3.0], [12.0], target=1.0, exact=True)
MISSING = MissingPeer("proxy tap", "envoy", f"{CHECKOUT}/.cache:\nnot | found")
CURVE = GrowthCurve("CPU to scrape", "models", "ms", [1, 10, 100], [[1.0], [10.0], [1e5]])


def result(bench: str = "proxy", *figures: Figure, failure: str = "") -> BenchResult:
    return BenchResult(
        bench,
        long=False,
        revision="0123456789",
        machine={"CPU": "AMD EPYC", "frequency governor": "performance"},
        began="2026-11-22 22:00:00",
        seconds=61.0,
        load_average=0.25,
        busy_before=0.02,
        steal=0.015,
        failure=failure,
        figures=figures,
    )


def page(*found: BenchResult) -> str:
    return render(BENCHES, found)


def row(text: str, start: str) -> list[str]:
    [line] = [line for line in text.splitlines() if line.startswith(f"| {start}")]
    return [cell.strip() for cell in line.strip("|").split(" | ")]


def test_page_states_machine_load_steal_and_commit() -> None:
    text = page(result("proxy", MET))
    assert row(text, "CPU |") == ["CPU", "AMD EPYC"]
    assert row(text, "frequency governor") == ["frequency governor", "performance"]
    assert row(text, "`proxy` | 2026") == [
        "`proxy`", "2026-11-22 22:00:00", "61 s", "0.25", "2 %", "1.5 %", "0123456789", "complete",
    ]  # fmt: skip
    assert "`make bench`" in text


def test_page_names_the_machine_of_each_bench_if_they_differ() -> None:
    other = replace(result("capture"), machine={"CPU": "Xeon"})
    text = page(result("proxy", MET), other)
    assert ("| fact | machine 1 |" in text, "| fact | machine 2 |" in text) == (True, True)
    assert row(text, "`proxy` | 2026")[-1] == "complete on machine 1"
    assert row(text, "`capture` | 2026")[-1] == "complete on machine 2"


def test_page_shows_values_ratio_spread_and_verdict() -> None:
    text = page(result("proxy", MET, NOISY, MISSED, EXACT))
    assert row(text, "CPU of a") == [
        "CPU of a", "nginx 1.22", "5 µs", "10 µs", "0.5", "0.5 to 0.5", "0 %, 5 rounds",
        "≤ 0.6: met",
    ]  # fmt: skip
    assert row(text, "CPU of b")[5:] == [
        "0.1 to 0.5", "133 %, 5 rounds: **not settled**", "≤ 0.6: undecided",
    ]  # fmt: skip
    assert row(text, "CPU of c")[-1] == "≤ 0.4: **missed**"
    assert row(text, "samples")[4:] == ["0.25", "exact", "", "≤ 1: met"]
    assert row(text, "bench | met")[1:] == ["met", "missed", "undecided"]
    assert "| `proxy` | 2 | 1 | 1 |\n" in text


def test_a_missing_peer_is_not_measured_here_with_its_reason() -> None:
    cells = row(page(result("proxy", MISSING)), "proxy tap")
    assert cells[1:3] == ["envoy", "not measured here: .cache: not \\| found"]


def test_a_failed_bench_keeps_its_figures_and_says_why() -> None:
    text = page(result("proxy", MET, failure=f"OSError: {CHECKOUT}/x is busy"))
    assert row(text, "CPU of a")
    assert row(text, "failed:")[0] == "failed: OSError: x is busy"
    assert row(text, "`proxy` | 2026")[-1] == "failed: OSError: x is busy"


def test_growth_has_a_table_with_slope_and_verdict() -> None:
    text = page(result("growth", CURVE))
    assert "**CPU to scrape**: slope 2.50, **superlinear from 10 to 100**." in text
    assert row(text, "10 |") == ["10", "10", "1.00 (1.00 to 1.00)"]


def test_benches_without_a_result_are_not_measured_here() -> None:
    text = page()
    assert text.count("Not measured here: run `make bench BENCHES=") == len(BENCHES)
    assert "Not measured here: no bench was run." in text


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0"), (0.066667, "0.0667"), (1.756, "1.76"), (1.2, "1.2"), (14.23, "14.2"),
     (100, "100"), (158362.4, "158,362"), (-0.5, "-0.5")],
)  # fmt: skip
def test_numbers_have_three_digits(value: float, text: str) -> None:
    assert number(value) == text


def test_a_result_survives_the_disk(tmp_path: Path) -> None:
    stored = result("proxy", MET, MISSING, failure="x")
    results.write(tmp_path, stored)
    found = results.read(tmp_path, "proxy")
    assert found
    assert page(found) == page(stored)
    assert results.read(tmp_path, "reader") is None
    (tmp_path / "reader.json").write_text("{}")
    with pytest.raises(ValueError, match=r"reader.json: not a result of this version"):
        results.read(tmp_path, "reader")


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Measure nothing; return the names of the benches that were to be measured."""
    names: list[str] = []

    def measure(bench: str, commit: str, *, long: bool, report: object) -> BenchResult:
        names.append(bench)
        failure = "no nginx" if bench == "capture" else ""
        return replace(result(bench, failure=failure), revision=commit, long=long)

    monkeypatch.setattr(report, "measure", measure)
    monkeypatch.setattr(report, "revision", lambda without: "0123456789")
    return names


def run_report(folder: Path, *arguments: str) -> int:
    return report.main(
        [*arguments, f"--results={folder / 'results'}", f"--page={folder / 'page.md'}"]
    )


def test_only_selected_benches_without_a_current_result_are_measured(
    measured: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_report(tmp_path, "--benches=reader,capture") == 1
    assert capsys.readouterr() == ("", "capture failed: no nginx\n")
    assert run_report(tmp_path, "--benches=reader,capture,proxy") == 1
    assert run_report(tmp_path, "--benches=reader,proxy") == 0
    # `capture` failed and is repeated.
    assert measured == ["reader", "capture", "capture", "proxy"]
    assert run_report(tmp_path, "--benches=reader", "--long") == 0
    assert run_report(tmp_path, "--benches=proxy", "--again") == 0
    assert measured[4:] == ["reader", "proxy"]
    text = (tmp_path / "page.md").read_text()
    assert "0123456789, long" in row(text, "`reader`")
    assert row(text, "`capture` | 2026")[-1] == "failed: no nginx"
    assert "run `make bench BENCHES=memory`" in text


def test_all_benches_are_measured_by_default(measured: list[str], tmp_path: Path) -> None:
    run_report(tmp_path)
    assert measured == [*BENCHES]


def test_results_of_changed_files_or_of_another_commit_are_measured_again() -> None:
    stored = result("reader")
    assert stored.is_current("0123456789", long=False)
    assert not stored.is_current("9876543210", long=False)
    assert not stored.is_current("0123456789", long=True)
    assert not replace(stored, failure="x").is_current("0123456789", long=False)
    assert not replace(stored, revision="01+").is_current("01+", long=False)


def test_an_unknown_bench_exits_with_code_2_and_one_error(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit) as caught:
        report.main(["--benches=reader,envoy"])
    assert caught.value.code == 2
    assert "no bench envoy; choose from reader, proxy" in capsys.readouterr().err


def ran(code: str, seconds: float = 60.0) -> tuple[list[Figure], str]:
    figures, failure = report.run([sys.executable, "-c", code], seconds, lambda _: None)
    return [*figures], failure


def test_figures_of_a_failing_bench_are_kept_with_its_last_error() -> None:
    code = f"print({as_json(MISSING)!r}, flush=True)\nraise OSError('no nginx')"
    figures, failure = ran(code)
    assert [as_json(each) for each in figures] == [as_json(MISSING)]
    assert failure == "OSError: no nginx"
    assert ran("raise SystemExit(3)") == ([], "exit code 3")
    assert ran("pass") == ([], "")
    assert ran("print('text')")[1].startswith("Expecting value")


def test_a_bench_past_its_time_limit_is_ended() -> None:
    code = f"print({as_json(MISSING)!r}, flush=True)\nimport time\ntime.sleep(600)"
    figures, failure = ran(code, seconds=0.0)
    assert (figures, failure) == ([], "it took longer than 0 minutes")


def test_conditions_are_measured_before_and_during_a_bench(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(report, "load_before", lambda: LoadBefore(1.5, 0.75))
    monkeypatch.setattr(report, "run", lambda command, seconds, show: ([MET], command[-1]))
    found = report.measure("reader", "01", long=True, report=lambda _: None)
    assert (found.bench, found.long, found.revision) == ("reader", True, "01")
    assert (found.load_average, found.busy_before, found.failure) == (1.5, 0.75, "--long")
    assert 0 <= found.steal <= 1
    assert found.machine["kernel"]


def test_progress_is_shown_on_a_terminal_only(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    report.progress()("1/2 reader")
    assert capsys.readouterr() == ("", "")
    parent, child = pty.openpty()
    with os.fdopen(child, "w") as terminal, monkeypatch.context() as patch:
        patch.setattr(sys, "stderr", terminal)
        report.progress()("1/2 reader")
        assert os.read(parent, 100).endswith(b"1/2 reader")
    os.close(parent)


@pytest.mark.parametrize("name", BENCHES)
def test_every_bench_has_its_function(name: str) -> None:
    entry = BENCHES[name]
    path = CHECKOUT / f"{entry.module.replace('.', '/')}.py"
    assert f"def {entry.function}(" in path.read_text()


def test_the_history_of_a_backtest_has_few_bad_events_and_no_missing_metric(
    tmp_path: Path,
) -> None:
    def query(text: str, start: float, end: float, step: float) -> list[Series]:
        rate = command_growth.constant_rate(text)
        return [Series({}, {start: float(rate)})] if rate else []

    file = tmp_path / "slo.yaml"
    file.write_text(command_growth.SLO)
    found = plan(load_file(file, []).services[0])
    past = PrometheusHistory(query, 1, 1e9, lambda _: None).whole(found, found.objectives[0])
    assert (past.bad[0], past.total[0], any(past.missing)) == (0.001, 10, False)


def test_the_memory_of_a_command_is_not_hidden_by_that_of_the_bench() -> None:
    held = bytearray(b"x" * (200 * 2**20))
    assert command_growth.run(["--version"]).memory < len(held) / 2**20 / 2
