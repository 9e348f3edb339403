"""The pages that bench.fleet serves: those of a sidecar, with the series that rules read."""

from __future__ import annotations

import re
from itertools import pairwise

import pytest

from bench import evaluation, fleet
from bench.peers import COMPARED
from exporter.sources.exposition.text_parser import check_lines
from tests.rule_values.recordings import IndicatorSelectors


def values(ticks: int) -> dict[str, float]:
    """Return the values of a page by series."""
    lines = fleet.page("m0", ticks).decode().splitlines()
    pairs = (line.rpartition(" ") for line in lines if not line.startswith("#"))
    return {series: float(value) for series, _, value in pairs}


def test_counters_of_a_page_grow_and_nothing_else_changes() -> None:
    check_lines(fleet.page("m0", 1))
    for before, after in pairwise(map(values, (1, 2, 3))):
        grown = {name for name in after if after[name] > before[name]}
        assert after.keys() == before.keys()
        assert {name for name in after if after[name] != before[name]} == grown
        assert grown == {name for name in after if name.partition("{")[0].endswith(fleet.GROWING)}


def test_one_event_of_a_thousand_is_bad() -> None:
    events = {name: value for name, value in values(7).items() if "llm_slo_events" in name}
    [good] = [value for name, value in events.items() if 'result="good"' in name]
    [bad] = [value for name, value in events.items() if 'result="bad"' in name]
    assert (good, bad) == (7_000, 7)


@pytest.mark.parametrize("name", COMPARED)
def test_a_page_has_the_series_that_the_peers_select(name: str) -> None:
    chosen = IndicatorSelectors.of("m0", name)
    for selector in filter(None, (chosen.total, chosen.good, chosen.failed)):
        metric, _, labels = selector.partition("{")
        pairs = re.findall(r'\w+="[^"]*"', labels)
        assert any(
            series.partition("{")[0] == metric and all(pair in series for pair in pairs)
            for series in values(1)
        ), selector


def test_a_page_has_the_metrics_of_our_rules() -> None:
    rules = evaluation.generated(len(COMPARED), ["tokenslo"])["tokenslo"]
    served = {series.partition("{")[0] for series in values(1)}
    read = {*re.findall(r"\bllm_\w+(?=\{)", rules)}
    assert read
    assert read <= served


def test_every_target_has_an_instance_and_a_page_of_its_service() -> None:
    config = fleet.configuration(1, ["m0", "m1"], 5, None)
    [job] = config["scrape_configs"]  # type: ignore[misc]
    labels = [target["labels"] for target in job["static_configs"]]
    assert len({each["instance"] for each in labels}) == 5
    assert [each["__metrics_path__"].split("/")[1] for each in labels] == [
        "m0", "m1", "m0", "m1", "m0",
    ]  # fmt: skip
