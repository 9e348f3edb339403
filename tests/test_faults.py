"""The fault matrix: its table, verdicts, results on disk and page."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path

import pytest

from lab.faults import __main__ as runner
from lab.faults.catalogue import CATALOGUE
from lab.faults.churn import growth
from lab.faults.fault import Expectation, Fault, FaultEffect, Loss, failures
from lab.faults.page import render
from lab.faults.setup import FaultSetup
from lab.faults.sidecar_process import ScrapedSeries
from lab.faults.stored_rows import MatrixRow, read_rows, write_row
from lab.toolchain import UnavailableProgram

LOST = Loss("streams", 20, 20, "tokenslo_source_lost_records_total")
GOOD = FaultEffect(
    "SIGKILL | during 20 streams",
    (LOST,),
    "the tap process was restarted",
    1.25,
    (Expectation("1 restart", True),),
)
ROW = MatrixRow("killed", "2026-11-22T20:00:00Z", "2 cores", "abc", 12.0, 0.01, GOOD)


def fault(inject: Callable[[FaultSetup], Awaitable[FaultEffect]] | None = None) -> Fault:
    async def good(_: FaultSetup) -> FaultEffect:
        return GOOD

    return Fault("killed", "Termination", "a process is killed", inject or good, 2.0)


@pytest.mark.parametrize(
    ("effect", "problems"),
    [
        (GOOD, []),
        (replace(GOOD, seconds=2.5), ["recovered after 2.5 s instead of 2 s"]),
        (
            replace(GOOD, losses=(replace(LOST, counted=18),)),
            ["2 of 20 streams are in no counter"],
        ),
        (
            replace(GOOD, losses=(replace(LOST, counted=21),)),
            ["-1 of 20 streams are in no counter"],
        ),
        (replace(GOOD, losses=(replace(LOST, counted=18, allowed=2, reason="killed"),)), []),
        (
            replace(GOOD, losses=(replace(LOST, counted=17, allowed=2, reason="killed"),)),
            ["3 of 20 streams are in no counter, 2 may be"],
        ),
        (replace(GOOD, expectations=(Expectation("0 restarts", False),)), ["0 restarts"]),
    ],
)
def test_a_row_fails_by_uncounted_losses_late_recovery_or_an_expectation(
    effect: FaultEffect, problems: list[str]
) -> None:
    assert list(failures(fault(), effect)) == problems
    row = replace(ROW, effect=effect)
    assert row.result(fault()) == ("failed" if problems else "passed")
    assert (f"**failed**: {problems[0]}" if problems else "passed") in render([fault()], [row])


def test_every_requirement_has_a_fault_and_every_loss_that_may_be_uncounted_a_limit() -> None:
    families = {each.family for each in CATALOGUE.values()}
    assert families == {
        *("Sources", "Clock", "Disk", "Termination", "Resources", "Prometheus", "Connections"),
        *("HTTP/2 floods", "Churn"),
    }
    assert all(key == each.key for key, each in CATALOGUE.items())
    assert all(0 < each.recovers_within <= 60 for each in CATALOGUE.values())


def test_rows_are_read_as_written(tmp_path: Path) -> None:
    rows = [ROW, replace(ROW, fault="other", effect=None, error="no answer")]
    for row in rows:
        write_row(tmp_path, row)
    assert list(read_rows(tmp_path)) == rows


def test_a_file_that_is_no_result_is_named(tmp_path: Path) -> None:
    path = tmp_path / "killed.json"
    path.write_text(json.dumps({"fault": "killed"}))
    with pytest.raises(ValueError, match=f"{path}: is no result of this version"):
        list(read_rows(tmp_path))


def test_the_page_has_every_measured_value() -> None:
    others = [
        replace(fault(), key="mounted"),
        replace(fault(), key="hung"),
        replace(fault(), key="missing"),
    ]
    rows = [
        replace(ROW, other_cpu=0.4),
        replace(ROW, fault="mounted", effect=None, unavailable="mount cannot run here"),
        replace(ROW, fault="hung", effect=None, error="not within 20 s", date="2026-11-23T"),
    ]
    page = render([fault(), *others], rows)
    assert "1 of 2 rows passed." in page
    assert "Date: 2026-11-22; 2026-11-23." in page
    assert "Without a result: missing." in page
    assert "Other work shared the machine: it used 14% of the cores on average" in page
    assert (
        "| `killed`: a process is killed | SIGKILL \\| during 20 streams | 20 streams, all in "
        "`tokenslo_source_lost_records_total` | the tap process was restarted | 1.2 s | 2 s | "
        "passed |"
    ) in page
    assert "not run: mount cannot run here" in page
    assert "**failed**: not within 20 s" in page
    assert "- `killed` (other work: 40% of the cores): 1 restart." in page
    assert "make faults FAULTS=" in page
    assert "Nothing else ran on the machine." in render([fault()], [ROW])


@pytest.mark.parametrize(
    ("effect", "code", "text"),
    [
        (GOOD, 0, "| passed |"),
        (replace(GOOD, seconds=9.0), 1, "**failed**: recovered after 9.0 s instead of 2 s"),
        (TimeoutError("a request is served: not within 20 s"), 1, "**failed**: a request is"),
        (UnavailableProgram("mount", "no root", "run as root"), 0, "not run: mount cannot run"),
    ],
)
def test_the_exit_code_is_1_if_a_row_fails(
    effect: FaultEffect | Exception,
    code: int,
    text: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def inject(setup: FaultSetup) -> FaultEffect:
        assert setup.folder.is_dir()
        if isinstance(effect, Exception):
            raise effect
        return effect

    monkeypatch.setattr(runner, "CATALOGUE", {"killed": fault(inject)})
    page = tmp_path / "faults.md"
    arguments = ["--faults", "killed", "--results", str(tmp_path / "rows"), "--page", str(page)]
    assert runner.main(arguments) == code
    assert text in page.read_text()
    assert runner.main([*arguments, "--render"]) == 0  # without running it again


def test_an_unknown_fault_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as error:
        runner.main(["--faults", "flood"])
    assert error.value.code == 2
    assert "no fault flood; there are source-down" in capsys.readouterr().err


def test_scrapes_add_up_by_labels_and_show_decreases() -> None:
    text = '# TYPE a counter\na_total{{x="1"}} {0}\na_total{{x="2"}} 4\n# TYPE g gauge\ng {0}\n'
    earlier, later = ScrapedSeries(text.format(3)), ScrapedSeries(text.format(2))
    assert earlier.sum("a_total") == 7
    assert earlier.sum("a_total", x="2") == 4
    assert earlier.count("a_total") == 2
    assert earlier.decreases(later) == ["a_total"]
    assert later.decreases(earlier) == []


def test_growth_is_that_of_the_second_half() -> None:
    assert growth([0.0, 50.0, 100.0, 100.0, 100.0, 100.0]) == 0
    assert growth([0.0, 0.0, 0.0, 0.0, 1.0, 2.0]) == pytest.approx(3.0)
