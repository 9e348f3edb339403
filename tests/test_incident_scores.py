"""Scores of incidents: the arithmetic, the page, and which runs are played."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lab.incidents.incident import (
    COLUMNS,
    WITH_TAP,
    Column,
    ExpectedAlert,
    Incident,
    Script,
    in_columns,
)
from lab.incidents.result import ColumnResult, FiredAlert, IncidentResult, Severity
from lab.incidents.score_page import render
from lab.incidents.scoreboard import main, planned_runs
from lab.incidents.scores import RunScore, must_page, score, totals
from lab.incidents.seeds import HELD_OUT_SEEDS, TUNING_SEEDS
from lab.incidents.stored_results import StoredResult, read, result_file, write

EXPECTED = Path(__file__).parent / "expected/incident-scores.md"


def script(_: random.Random) -> Script:
    return Script({})


BURN = FiredAlert("FirstTokenErrorBudgetBurn", "page", 21.5, "30s")
PRESSURE = FiredAlert("KvCachePressure", "info", 30.0, is_cause=True)
QUEUE = FiredAlert("QueueGrowing", "info", 33.0, is_cause=True)
EARLY = FiredAlert("GoodputErrorBudgetBurn", "page", -4.0, "30s")
STORM = FiredAlert("RetryStorm", "info", 12.0, is_cause=True)
TICKET = FiredAlert("ExporterSourceDown", "ticket", 8.0)

FULL = Incident(
    key="kv-pressure",
    title="the KV cache is full",
    script=script,
    alerts=(
        ExpectedAlert("FirstTokenErrorBudgetBurn", 45),
        ExpectedAlert("KvCachePressure", 70, WITH_TAP),
    ),
    symptoms=("waiting", "kv"),
    diagnosis=in_columns("kv_pressure", columns=WITH_TAP),
    confusions={"QueueGrowing": "requests wait for room in the KV cache"},
)
DOWN = Incident(
    key="source-down",
    title="the sidecar cannot scrape Triton",
    script=script,
    alerts=(ExpectedAlert("ExporterSourceDown", 20),),
    diagnosis=in_columns("source_down"),
)
HEALTHY = Incident(key="healthy", title="nothing happens", script=script, harmful=False)


def diagnosis(verdict: str, *keys: str, sick: str = "") -> dict[str, Any]:
    return {
        "verdict": verdict,
        "causes": [{"key": key, "probability": 0.5} for key in keys],
        "checks": [
            {"check": "kv", "verdict": "healthy"},
            *({"check": key, "verdict": "sick"} for key in sick.split()),
        ],
    }


def run(incident: str, seed: int, **columns: ColumnResult) -> IncidentResult:
    return IncidentResult(
        incident=incident,
        seed=seed,
        parameters={"rate": 3.0},
        healthy_seconds=30.0,
        fault_seconds=75.0,
        wall_seconds=110.0 + seed,
        cpu_seconds={},
        outcomes={"ok": 200},
        columns={column: columns[column] for column in COLUMNS if column in columns},
    )


def stored(result: IncidentResult, kind: Any = "held out") -> StoredResult:
    return StoredResult(kind, "2 cores of a processor", "0123abc", result)


RIGHT = diagnosis("likely", "kv_pressure", "overload", sick="waiting kv")
RESULTS = (
    run(
        "kv-pressure",
        9200,
        proxy=ColumnResult((BURN, PRESSURE, QUEUE), (), RIGHT, 27),
        capture=ColumnResult((EARLY, BURN, PRESSURE, STORM), (), RIGHT, 27),
        scrape=ColumnResult((), ("FirstTokenErrorBudgetBurn",), diagnosis("no_data"), 75),
    ),
    run(
        "kv-pressure",
        9201,
        proxy=ColumnResult(
            (replace(BURN, seconds=30.0), PRESSURE),
            (),
            diagnosis("cannot_tell", "overload", "kv_pressure"),
            35,
        ),
        capture=ColumnResult(
            (replace(BURN, severity="ticket"),),
            ("KvCachePressure",),
            diagnosis("likely", "overload", "timeout_storm", "kv_pressure"),
            60,
        ),
        scrape=ColumnResult((BURN,), (), diagnosis("likely", "overload"), 27),
    ),
    run(
        "source-down",
        9200,
        proxy=ColumnResult((TICKET,), (), diagnosis("likely", "source_down"), 13),
        scrape=ColumnResult((TICKET,), (), diagnosis("no_incident", "healthy", "source_down"), 13),
    ),
    run(
        "healthy",
        9200,
        proxy=ColumnResult((), (), diagnosis("no_incident", "healthy"), 75),
        capture=ColumnResult((BURN,), (), diagnosis("cannot_tell", "healthy", "overload"), 75),
        scrape=ColumnResult((STORM,), (), diagnosis("likely", "overload"), 75),
    ),
)
INCIDENTS = (HEALTHY, FULL, DOWN)


def test_the_page_has_every_score() -> None:
    page = render(INCIDENTS, [*map(stored, RESULTS), stored(replace(RESULTS[0], seed=1), "tuning")])
    assert page == EXPECTED.read_text()


def scores(column: Column) -> list[RunScore]:
    known = {each.key: each for each in INCIDENTS}
    runs = (each for result in RESULTS for each in score(known[result.incident], result))
    return [each for each in runs if each.column == column]


def test_totals_of_a_column() -> None:
    found = totals(scores("capture"))
    assert (found.true_pages, found.false_pages, found.missed_pages) == (1, 2, 1)
    assert (found.precision, found.recall) == (1 / 3, 1 / 2)
    assert (found.alerts_in_time, found.expected_alerts) == (3, 4)
    assert dict(found.answers) == {"right": 1, "wrong": 1, "cannot tell": 1}
    assert (found.top1, found.top2, found.ranked) == (1, 1, 2)
    assert found.median_detection == 21.5


def test_a_ticket_is_no_missed_page_where_no_page_is_expected() -> None:
    assert not must_page(DOWN)
    found = totals(each for each in scores("proxy") if each.incident is DOWN)
    assert (found.true_pages, found.missed_pages, found.recall) == (0, 0, None)
    assert found.detection == (8.0,)


def test_an_alert_that_another_column_expects_is_documented() -> None:
    (found,) = score(FULL, run("kv-pressure", 0, scrape=ColumnResult((PRESSURE, QUEUE, STORM))))
    marks = [found.mark(cause) for cause in ("KvCachePressure", "QueueGrowing", "RetryStorm")]
    assert marks == ["documented", "documented", "unexpected"]


@pytest.mark.parametrize(("seconds", "first"), [(33.0, QUEUE), (30.0, QUEUE), (-5.0, None)])
def test_an_expected_alert_without_notification_is_the_first_without_others(
    seconds: float, first: FiredAlert | None
) -> None:
    incident = replace(DOWN, alerts=(ExpectedAlert("QueueGrowing", 70),))
    fired = replace(QUEUE, seconds=seconds)
    (found,) = score(incident, run("source-down", 0, proxy=ColumnResult((fired, PRESSURE))))
    assert found.first == (first and fired)
    assert totals([found]).detection == ()


def test_a_hang_must_page_by_its_cause_alert() -> None:
    assert must_page(replace(DOWN, alerts=(ExpectedAlert("DecodeStuck", 30),)))


@pytest.mark.parametrize(
    ("verdict", "keys", "right", "answer", "rank"),
    [
        ("likely", ("a", "b"), ("a",), "right", 1),
        ("likely", ("b", "a"), ("a", "c"), "wrong", 2),
        ("likely", ("b",), ("a",), "wrong", 2),
        ("cannot_tell", ("a", "b"), ("a",), "cannot tell", 1),
        ("no_data", (), ("a",), "cannot tell", 1),
        ("no_incident", ("healthy", "a"), ("a",), "wrong", 2),
        ("no_incident", ("healthy",), (), "right", None),
        ("cannot_tell", ("healthy", "a"), (), "cannot tell", None),
        ("likely", ("a",), (), "wrong", None),
    ],
)
def test_answers(
    verdict: str, keys: tuple[str, ...], right: tuple[str, ...], answer: str, rank: int | None
) -> None:
    incident = replace(FULL, diagnosis=in_columns(*right) if right else {})
    column = ColumnResult(diagnosis=diagnosis(verdict, *keys))
    (found,) = score(incident, run("kv-pressure", 0, proxy=column))
    assert (found.answer, found.rank) == (answer, rank)


@given(
    st.lists(
        st.tuples(
            st.sampled_from([FULL, HEALTHY, DOWN]),
            st.lists(
                st.tuples(st.sampled_from(["page", "ticket", "info"]), st.floats(-30, 75)),
                max_size=4,
            ),
        ),
        max_size=12,
    )
)
def test_pages_are_counted_once_per_run(
    runs: list[tuple[Incident, list[tuple[Severity, float]]]],
) -> None:
    found = totals(
        each
        for incident, alerts in runs
        for each in score(
            incident,
            run(
                incident.key,
                0,
                proxy=ColumnResult(tuple(FiredAlert("X", *alert) for alert in alerts)),
            ),
        )
    )
    pages = [(incident, [s for tier, s in alerts if tier == "page"]) for incident, alerts in runs]
    true = [(i, s) for i, s in pages if i.harmful and any(each >= 0 for each in s)]
    false = [(i, s) for i, s in pages if any(each < 0 or not i.harmful for each in s)]
    silent = [i for i, s in pages if i is FULL and not any(each >= 0 for each in s)]
    assert (found.true_pages, found.false_pages) == (len(true), len(false))
    assert found.missed_pages == len(silent)
    if found.precision is not None:
        assert 0 <= found.precision <= 1
        assert found.precision * (len(true) + len(false)) == pytest.approx(len(true))
    if found.recall is not None:
        assert 0 <= found.recall <= 1
        assert (found.recall == 1) == (not silent)


# Results on disk


@pytest.fixture
def results(tmp_path: Path) -> Path:
    write(tmp_path, stored(RESULTS[0]))
    write(tmp_path, stored(replace(RESULTS[0], seed=7), "tuning"))
    return tmp_path


def test_results_are_read_as_written(results: Path) -> None:
    assert [*read(results)] == [
        stored(replace(RESULTS[0], seed=7), "tuning"),
        stored(RESULTS[0]),
    ]


def test_a_file_that_is_no_result_is_named(results: Path) -> None:
    file = result_file(results, "kv-pressure", 9200)
    for broken in ("{", "{}", json.dumps({"result": {}})):
        file.write_text(broken)
        with pytest.raises(ValueError, match=r"kv-pressure/9200\.json: is no result of this versi"):
            [*read(results)]


def test_only_runs_without_a_result_are_played(results: Path) -> None:
    planned = planned_runs(("kv-pressure", "healthy"), (7, 8), (9200, 9201), results)
    assert [(each.incident, each.seed, each.kind) for each in planned] == [
        ("healthy", 9200, "held out"),
        ("kv-pressure", 9201, "held out"),
        ("healthy", 9201, "held out"),
        ("healthy", 7, "tuning"),
        ("kv-pressure", 8, "tuning"),
        ("healthy", 8, "tuning"),
    ]


@pytest.mark.parametrize("seed", [*TUNING_SEEDS, 7, 9])
def test_a_tuning_seed_is_not_held_out(results: Path, seed: int) -> None:
    with pytest.raises(ValueError, match=f"seed {seed} was used while tuning"):
        [*planned_runs(("healthy",), (9,), (seed,), results)]


def test_seeds_of_the_project_do_not_overlap() -> None:
    assert len(HELD_OUT_SEEDS) >= 5
    assert not {*HELD_OUT_SEEDS} & {*TUNING_SEEDS}


def test_the_page_is_written_again_without_playing(results: Path, tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    arguments = ["--incidents", "kv-pressure", "--held-out", "9200", "--results", str(results)]
    assert main([*arguments, "--page", str(page)]) == 0
    assert "| held out | 9200 | 1 |" in page.read_text()
    assert "| tuning | 7 | 1 |" in page.read_text()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--held-out", "2"], "seed 2 was used while tuning, so it cannot be held out"),
        (["--held-out", "1x"], "'1x' is no seed and no range of seeds, such as 400-404"),
        (["--incidents", "flood"], "no incident flood; there are "),
    ],
)
def test_bad_arguments_are_named(
    arguments: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "page.md"
    with pytest.raises(SystemExit) as exited:
        main([*arguments, "--results", str(tmp_path), "--page", str(page)])
    assert exited.value.code == 2
    assert message in capsys.readouterr().err
    assert not page.exists()
