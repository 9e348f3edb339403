"""Reports of load tests: text, JSON, CSV and HTML."""

from __future__ import annotations

import asyncio
import csv
import io
import json
import re
from dataclasses import replace
from html.parser import HTMLParser

import pytest

from loadtest.level import LevelRun, run_level
from loadtest.line_plot import PlotLine, line_plot
from loadtest.objectives import ClientObjective, UnmeasuredObjective
from loadtest.report import LoadReport, as_object
from loadtest.report_csv import COLUMNS, as_csv
from loadtest.report_html import as_html
from loadtest.report_json import as_json
from loadtest.report_text import as_text
from loadtest.session import LoadTest, RateSearchSettings, run_load_test
from loadtest.settings import LoadEndpoint, LoadLevel, PromptClass, Workload, plan_request
from tests.simulated_endpoint import SimulatedClient
from tests.virtual_time import run_virtually

WORK = Workload((PromptClass(8),), 5, warm_up=1.0, duration=10.0, cool_down=1.0)
ENDPOINT = LoadEndpoint("http://user:secret@chat.example:8000", "chat", "<llama>")
OBJECTIVES = (
    ClientObjective("chat/first", "ttft", 0.9, 0.15, text="150ms"),
    ClientObjective("chat/<good>", "goodput", 0.9, clauses={"ttft": 0.15}, text="ttft 150ms"),
)
LEVELS = tuple(LoadLevel("concurrency", value) for value in (2, 4, 8))


def report(
    *,
    endpoints: tuple[LoadEndpoint, ...] = (ENDPOINT,),
    objectives: tuple[ClientObjective, ...] = OBJECTIVES,
    search: bool = False,
    counts: bool = True,
    stop_at: float | None = None,
) -> LoadReport:
    """Return the report of a test on a simulated server with four slots."""
    test = LoadTest(
        endpoints,
        WORK,
        () if search else LEVELS,
        objectives,
        search=RateSearchSettings(5.0, 100.0, 0.2) if search else None,
    )

    async def run() -> LoadReport:
        stop = asyncio.Event()
        if stop_at:
            asyncio.get_running_loop().call_later(stop_at, stop.set)

        async def driver(
            endpoint: LoadEndpoint, level: LoadLevel, work: Workload, numbers: object
        ) -> LevelRun:
            return await run_level(
                SimulatedClient(slots=4, counts=counts),
                level,
                work,
                numbers,  # type: ignore[arg-type]
                stop,
            )

        async def no_check(*_: object) -> None: ...

        result = await run_load_test(test, stop, driver=driver, check=no_check)
        return LoadReport(
            result,
            "0.1.0",
            "2026-05-04T12:00:00+00:00",
            unmeasured=(UnmeasuredObjective("chat/kv", "clients cannot measure kv_headroom"),),
        )

    return run_virtually(run())


@pytest.fixture(scope="module")
def sweep() -> LoadReport:
    return report()


def test_text_has_levels_objectives_and_what_is_not_measured(sweep: LoadReport) -> None:
    text = as_text(sweep)
    lines = text.splitlines()
    assert lines[0] == "http://chat.example:8000 (chat, model <llama>)"
    assert lines[1].split()[:3] == ["load", "requests", "failed"]
    assert re.match(r"concurrency 2 +\d+ +0 +100ms +100ms +20\.0ms +20\.0ms +5\d +", lines[2])
    assert lines[2].endswith("kept")
    assert lines[4].endswith("missed")
    assert "chat/first: kept up to concurrency 4, missed at concurrency 8." in lines
    assert "Saturation: output tokens/s grow by less than 5 % above concurrency 4." in lines
    assert "Not measured: chat/kv: clients cannot measure kv_headroom." in lines
    assert "secret" not in text


def test_text_of_a_search_states_rate_and_confidence() -> None:
    text = as_text(report(search=True))
    assert re.search(
        r"Highest rate that keeps every objective: [\d.]+/s \([\d.]+/s does not; each level with "
        r"95 % confidence, Wilson lower bound\)\.",
        text,
    )


def test_text_says_how_many_requests_could_prove_an_objective() -> None:
    strict = ClientObjective("chat/up", "availability", 0.9999, text="")
    found = report(objectives=(strict,))
    assert re.search(
        r"chat/up: not proven at concurrency 2 by \d+ requests: 99\.99 % takes 27053 without a bad "
        r"one\.",
        as_text(found),
    )
    searched = as_text(report(search=True, objectives=(*OBJECTIVES, strict)))
    assert re.search(r"chat/up: not contradicted there, but not proven by \d+ requests", searched)


def test_json_has_everything_and_its_definitions(sweep: LoadReport) -> None:
    found = json.loads(as_json(sweep))
    assert found == as_object(sweep)
    assert found["endpoints"][0]["url"] == "http://chat.example:8000"
    level = found["endpoints"][0]["levels"][0]
    assert level["kind"] == "concurrency"
    assert level["matched_work"]["other"] == 0
    assert level["tokens_counted_by"] == "server"
    assert level["latencies"]["ttft"]["p50"] == pytest.approx(0.1)
    assert level["objectives"][0]["verdict"] == "kept"
    assert level["objectives"][0]["lower_bound"] >= 0.9
    assert {"itl", "tpot", "goodput", "scheduled_ttft, scheduled_e2e"} <= {*found["definitions"]}
    assert found["crossovers"][0]["next"] == {"kind": "concurrency", "value": 8}
    assert found["crossovers"][0]["next_verdict"] == "missed"
    assert found["workload"]["seed"] == 0


def test_csv_has_one_line_per_request(sweep: LoadReport) -> None:
    rows = list(csv.DictReader(io.StringIO(as_csv(sweep.result))))
    assert tuple(rows[0]) == COLUMNS
    assert len(rows) == len(sweep.result.sides[0].records)
    measured = [row for row in rows if row["measured"] == "1"]
    assert len(measured) == sum(each.requests for each in sweep.result.sides[0].results)
    assert float(measured[0]["ttft"]) == pytest.approx(0.1)
    assert measured[0]["endpoint"] == "http://chat.example:8000"


class Tags(HTMLParser):
    """Collects tags and checks that they are closed."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.names.append(tag)
        self.attributes += attrs


def test_html_is_one_page_with_plots_and_without_scripts(sweep: LoadReport) -> None:
    page = as_html(sweep)
    tags = Tags()
    tags.feed(page)
    assert tags.names.count("svg") == 6
    assert tags.names.count("h2") >= 5
    assert not {"script", "link", "img", "iframe"} & {*tags.names}
    assert not [name for name, _ in tags.attributes if name in ("src", "href") or name[:2] == "on"]
    assert "&lt;llama&gt;" in page
    assert "<llama>" not in page
    assert "chat/&lt;good&gt;" in page
    assert "secret" not in page
    assert 'class="limit"' in page


def test_no_report_has_text_of_a_prompt(sweep: LoadReport) -> None:
    prompts = {plan_request(WORK, number).text for number in range(100)}
    for text in (as_text(sweep), as_json(sweep), as_csv(sweep.result), as_html(sweep)):
        assert not [prompt for prompt in prompts if prompt in text]


def test_unmatched_work_is_a_note() -> None:
    found = report(counts=False)
    note = (
        "http://chat.example:8000, concurrency 2: the server reports no token counts; a response "
        "had 5.0 chunks with text on average, 5 tokens were planned."
    )
    assert note in as_text(found)
    for run in found.result.sides[0].runs[0]:
        for record in run.records:
            record.output_tokens = 3
    from loadtest.level_result import level_result

    results = found.result.sides[0].results
    results[0] = level_result(found.result.sides[0].runs[0], OBJECTIVES, 0.95)
    assert "responses do not have the planned 5 output tokens: the server ignored" in as_text(found)


def test_an_interrupted_test_is_reported() -> None:
    found = report(stop_at=20.0)
    assert "The test was interrupted: this is what was measured until then." in as_text(found)
    assert json.loads(as_json(found))["interrupted"] is True
    assert len(found.result.sides[0].results) == 2


def test_two_stacks_are_in_every_report() -> None:
    other = replace(ENDPOINT, url="http://other.example:8000")
    found = report(endpoints=(ENDPOINT, other))
    text = as_text(found)
    assert "Equal work: " in text
    ratio = r"Second / first at concurrency 2: output_tokens_per_second (0\.99|1\.00)\d, ttft_p50 1"
    assert re.search(ratio, text)
    assert json.loads(as_json(found))["stacks"]["equal_work"] is True
    assert "other.example:8000" in as_html(found)


def test_a_plot_has_its_lines_limit_and_ticks() -> None:
    lines = [PlotLine("p<50>", [(1, 10.0), (4, 40.0)]), PlotLine("none", [])]
    plot = line_plot("A & B", lines, "ms", "requests/s", limit=20.0)
    assert plot.count('<path class="line0"') == 1
    assert plot.count("<circle") == 2
    assert plot.count('class="limit"') == 1
    assert "p&lt;50&gt;" in plot
    assert "A &amp; B" in plot
    ticks = [float(tick) for tick in re.findall(r'class="y"[^>]*>([\d.]+)<', plot)]
    assert ticks == [0, 10, 20, 30, 40, 50]
    assert line_plot("none", [PlotLine("none", [])], "ms", "x") == ""
    assert "<svg" in line_plot("zero", [PlotLine("a", [(1, 0.0)])], "ms", "x")
