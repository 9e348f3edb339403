"""Rows of ``tokenslo top``: two scrapes of a sidecar as one row per model."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sidecar_reports import busy, histogram, objective, report, scrape, state

from exporter.samples import Distribution, ModelInfo
from exporter.store.view import SourceState
from top.filters import FILTERS, SORTS, Selection, following, select
from top.history import ScrapeHistory
from top.rows import Cell, ModelRow, Scrape, sidecar_rows
from top.terminal import pressed


def row_of(then: Scrape | None, now: Scrape) -> ModelRow:
    (row,) = sidecar_rows("a:9400", then, now).rows
    return row


def test_rates_and_quantiles_come_from_the_change_between_scrapes() -> None:
    then = scrape(100.0, *busy(100, ttft=histogram(1000, 0, 0, 0)))
    now = scrape(110.0, *busy(110, ttft=histogram(1000, 0, 10, 0)))
    row = row_of(then, now)
    assert row.cells["requests"] == Cell("value", pytest.approx(2.0))
    assert row.cells["tokens"] == Cell("value", pytest.approx(200.0))
    assert row.cells["disconnects"] == Cell("value", pytest.approx(0.2))
    assert row.cells["ttft_p50"] == Cell("value", pytest.approx(0.1 + 0.9 * 0.5))
    assert row.cells["ttft_p95"] == Cell("value", pytest.approx(0.1 + 0.9 * 0.95))
    assert row.cells["itl_p95"] == Cell("value", pytest.approx(0.0095), estimate=True)
    assert (row.cells["running"].value, row.cells["maximum"].value) == (12, 64)
    assert sidecar_rows("a:9400", then, now).seconds == 10.0


def test_a_first_scrape_collects_and_shows_gauges() -> None:
    row = row_of(None, scrape(1.0, *busy(100)))
    assert {key for key, cell in row.cells.items() if cell.state == "collecting"} == {
        "requests", "tokens", "disconnects", "ttft_p50", "ttft_p95", "itl_p50", "itl_p95",
    }  # fmt: skip
    assert row.cells["kv"] == Cell("value", 0.5)


def test_a_model_that_just_appeared_collects() -> None:
    now = sidecar_rows("a", scrape(0, *busy(9)), scrape(9, *busy(9, "new"), *busy(18)))
    states = {row.model: row.cells["requests"].state for row in now.rows}
    assert states == {"new": "collecting", "llama": "value"}


def test_without_observations_a_quantile_is_idle_and_a_rate_zero() -> None:
    row = row_of(scrape(0, *busy(50)), scrape(10, *busy(50)))
    assert row.cells["ttft_p95"].state == "idle"
    assert row.cells["requests"] == Cell("value", 0.0)


def test_an_unavailable_signal_has_its_reason_and_fix_and_never_zero() -> None:
    signals = [
        state("disconnects", None, note="clients are not visible", fix="add a tap"),
        state("kv_utilization", None, note="not published"),
        state("ttft", Distribution((float("inf"),), (5.0,), 1.0)),
    ]
    row = row_of(
        scrape(0, *signals[:2], state("ttft", Distribution((float("inf"),), (3.0,), 1.0))),
        scrape(10, *signals),
    )
    assert row.cells["disconnects"] == Cell(
        "unavailable", reason="clients are not visible", fix="add a tap"
    )
    assert row.cells["kv"] == Cell("unavailable", reason="not published")
    assert row.cells["requests"].reason == "the sidecar does not report it: Requests by outcome"
    assert row.cells["ttft_p95"].reason == "its source has no buckets, only a sum and a count"
    assert row.cells["objectives"].reason == "the sidecar has no SLO file for this model"
    assert not any(cell.value for cell in row.cells.values())


def test_a_quantile_beyond_the_last_boundary_is_above_it() -> None:
    row = row_of(
        scrape(0, *busy(0, ttft=histogram(0, 0, 0, 0))),
        scrape(9, *busy(9, ttft=histogram(6, 0, 0, 4))),
    )
    assert row.cells["ttft_p50"].state == "value"
    assert row.cells["ttft_p95"] == Cell("above", 1.0)


def test_missed_objectives_are_counted_of_the_model_itself() -> None:
    objectives = [
        objective(met=False),
        objective("goodput"),
        objective("unmeasured", met=None, quality="unavailable"),
        objective(model="other", met=False),
    ]
    row = row_of(None, scrape(0, *busy(0), objectives=objectives))
    assert (row.cells["objectives"], row.evaluated) == (Cell("value", 1.0), 2)
    assert [one.objective for one in row.missed] == ["first-token"]
    idle = row_of(None, scrape(0, *busy(0), objectives=[objective(met=None)]))
    assert idle.cells["objectives"].state == "idle"


def test_excluded_models_and_versionless_twins_are_not_shown() -> None:
    one = report(*busy(1), state("requests", 1.0, "llama", "2"), state("requests", 1.0, "helper"))
    models = tuple(
        replace(info, excluded="no tokens") if info.model == "helper" else info
        for info in (*one.view.models, ModelInfo("lone", ""))
    )
    now = Scrape(0.0, one._replace(view=replace(one.view, models=models)))
    assert [row.name for row in sidecar_rows("a", None, now).rows] == ["llama/2", "lone"]


def test_failing_sources_and_readiness_are_problems() -> None:
    down = SourceState("triton", False, None, None, "it refused the connection", {}, None)
    now = scrape(0, *busy(1), sources=[down], unready=["server triton: not ready"])
    assert sidecar_rows("a", None, now).problems == (
        "not ready: server triton: not ready",
        "source triton: it refused the connection",
    )


def test_history_covers_the_window() -> None:
    history = ScrapeHistory(60)
    then = [history.add(scrape(at, *busy(at))) for at in range(0, 200, 20)]
    assert [one and one.at for one in then] == [None, 0, 0, 0, 20, 40, 60, 80, 100, 120]


def test_history_keeps_one_earlier_scrape_where_they_are_rare() -> None:
    history = ScrapeHistory(1)
    then = [history.add(scrape(at, *busy(at))) for at in (0, 30, 60)]
    assert [one and one.at for one in then] == [None, 0, 30]


@given(st.lists(st.tuples(st.floats(0.1, 50), st.booleans()), min_size=1, max_size=20))
def test_rates_are_true_whenever_the_sidecar_restarts(steps: list[tuple[float, bool]]) -> None:
    """A sidecar serves 3 requests a second, and may restart between two scrapes."""
    history, at, since = ScrapeHistory(60), 1000.0, 0.0
    for seconds, restart in steps:
        at += seconds
        since = seconds / 2 if restart else since + seconds
        now = scrape(at, *busy(since, per_second=3.0))
        cell = row_of(history.add(now), now).cells["requests"]
        if cell.state == "value":
            assert cell.value == pytest.approx(3.0) or restart_was_hidden(steps)


def restart_was_hidden(steps: list[tuple[float, bool]]) -> bool:
    """Whether a counter passed its old value again before the next scrape saw it."""
    since = 0.0
    for seconds, restart in steps:
        if restart and seconds / 2 >= since:
            return True
        since = seconds / 2 if restart else since + seconds
    return False


def rows(*requests: float | None) -> list[ModelRow]:
    found = []
    for number, rate in enumerate(requests):
        cell = Cell("unavailable", reason="no") if rate is None else Cell("value", rate)
        one = row_of(None, scrape(0, *busy(0, f"m{number}", kv=0.0)))
        quiet = dict.fromkeys(("running", "waiting", "tokens"), Cell("value", 0.0))
        row = replace(one, cells={**one.cells, **quiet, "requests": cell})
        found.append(row)
    return found


def test_numbers_descend_and_missing_values_come_last() -> None:
    shown = rows(1.0, None, 3.0, 2.0)
    for reverse, expected in ((False, "m2 m3 m0 m1"), (True, "m0 m3 m2 m1")):
        found = select(shown, Selection(sort="requests", reverse=reverse))
        assert " ".join(row.model for row in found) == expected


def test_names_ascend() -> None:
    shown = list(reversed(rows(1.0, 2.0, 3.0)))
    assert [row.model for row in select(shown, Selection(sort="model"))] == ["m0", "m1", "m2"]
    found = select(shown, Selection(sort="model", reverse=True))
    assert [row.model for row in found] == ["m2", "m1", "m0"]


def test_filters_keep_what_they_name() -> None:
    idle, unavailable, active = rows(0.0, None, 3.0)
    missed = replace(idle, model="missed", missed=(objective(met=False),))
    everything = [idle, unavailable, active, missed]
    names = {
        name: {row.model for row in select(everything, Selection(filter=name))} for name in FILTERS
    }
    assert names["all"] == {"m0", "m1", "m2", "missed"}
    assert names["active"] == {"m2"}
    assert names["missed"] == {"missed"}
    assert "m1" in names["unavailable"]


def test_every_sort_key_sorts_and_the_last_is_followed_by_the_first() -> None:
    shown = rows(1.0, 2.0)
    assert all(len(select(shown, Selection(sort=key))) == 2 for key in SORTS)
    assert following(SORTS[-1], SORTS) == SORTS[0]


def test_keys_change_the_selection_and_others_nothing() -> None:
    selection = Selection()
    for key, expected in (
        ("s", Selection(sort="model")),
        ("r", Selection(reverse=True)),
        ("f", Selection(filter="active")),
        ("u", Selection(reasons=True)),
        ("j", Selection(first=1)),
        ("\x1b[B", Selection(first=1)),
        ("\x1b[A", selection),
        ("x", selection),
    ):
        assert pressed(selection, key, 3) == expected
    assert pressed(Selection(first=2), "j", 3) == Selection(first=2)
    assert pressed(selection, "j", 0) == selection
