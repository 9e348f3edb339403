"""``tokenslo report``: queries, gaps, formats and errors."""

from __future__ import annotations

import csv
import io
import json
import re
import shlex
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from promql.client import QueryTooLargeError, Sample
from promql.matchers import Matcher
from promql.parse import parse
from promql.query import read_query
from promql.tree import selectors
from tests.fake_prometheus import FakePrometheus, serving
from tests.usage_period import DAY, EMPTY, NOW, Answers, answers, evaluator, sample
from tokenslo.cli import main
from tools.docs.pages import ROOT, every_fence
from usage.prometheus_usage import STEP, UsagePeriod, read_usage
from usage.showback import Showback, ShowbackRules, as_object, showback
from usage.showback_csv import COLUMNS, as_csv
from usage.showback_html import as_html
from usage.showback_json import as_json
from usage.showback_text import as_text
from usage.usage_queries import usage_queries

WITHOUT_KV = {**answers(), "kv_token_seconds": [], "tenant_kv_token_seconds": []}
ZERO_KV = {**WITHOUT_KV, "kv_token_seconds": [sample(0, instance="a", model="llama")]}


def read(*days: Answers, **options: Any) -> UsagePeriod:
    """Read a period whose days have these answers."""
    at = {NOW - (len(days) - 1 - n) * STEP: evaluator(day) for n, day in enumerate(days)}
    return read_usage(lambda expr, time: at[time](expr), len(days), NOW + 7, **options)


def report(*days: Answers, price: float = 2.5, **rules: Any) -> dict[str, Any]:
    made: dict[str, Any] = as_object(showback(read(*days), ShowbackRules(price, **rules), "0.1.0"))
    return made


def run(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as ended:
        main(["report", *arguments])
    printed = capsys.readouterr()
    return int(ended.value.code or 0), printed.out, printed.err


def by_tenant(made: Mapping[str, Any]) -> dict[str | None, dict[str, Any]]:
    return {row["tenant"]: row for row in made["tenants"]}


def test_usage_and_cost_add_up_over_the_days() -> None:
    made = report(answers(), answers())
    assert made["total"] == {"gpu_hours": 96, "share": 1, "cost": 240}
    rows = by_tenant(made)
    assert rows["acme"]["tokens"] == {
        "input": 6_000, "cached_input": 2_000, "output": 3_000, "wasted": 200
    }  # fmt: skip
    # Weighted on server a, busy for 24 hours: acme 2 * 8,500, other 2 * 2,500, no tenant 2 * 500.
    assert rows["acme"]["gpu_hours"] == pytest.approx(24 * 8_500 / 11_500)
    assert rows["other"]["cost"] == pytest.approx(2.5 * 24 * 2_500 / 11_500)
    assert rows[None]["tokens"]["input"] == 1_000
    assert rows["acme"]["cost_per_million_tokens"] == pytest.approx(
        rows["acme"]["cost"] / 9_000 * 1e6
    )
    assert made["idle"]["gpu_hours"] == 72
    assert made["residual"]["gpu_hours"] == 0
    parts = sum(row["cost"] for row in made["tenants"]) + made["idle"]["cost"]
    assert parts == pytest.approx(made["total"]["cost"])
    assert made["wasted"]["gpu_hours"] == pytest.approx(24 * 400 / 11_500)


def test_idle_hours_can_be_spread() -> None:
    made = report(answers(), spread_idle=True)
    assert made["idle"]["gpu_hours"] == 0
    assert sum(row["gpu_hours"] for row in made["tenants"]) == pytest.approx(48)
    assert by_tenant(made)["acme"]["idle_gpu_hours"] > 0


def test_days_without_data_lower_the_coverage_and_are_not_filled() -> None:
    full, gap = report(answers()), report(EMPTY, answers())
    assert gap["coverage"] == {"share": 0.5, "time": 0.5, "scrapes": 1}
    assert gap["total"] == full["total"]
    assert "Prometheus has no data for 24.0 of 48 hours" in gap["notes"][0]


def test_failed_scrapes_of_sidecars_lower_the_coverage() -> None:
    made = report(answers(minutes=DAY, unscraped=320))
    assert made["coverage"]["scrapes"] == pytest.approx(2_880 / 3_200)
    assert any("Scrapes failed for 5.3 server-hours" in note for note in made["notes"])


def test_servers_of_unknown_activity_are_in_the_residual() -> None:
    made = report({**answers(), "observed": [], "busy": []})
    assert made["residual"]["cost"] == made["total"]["cost"] == 120
    assert made["idle"]["cost"] == 0
    assert any("activity of servers is unknown for 48.0" in note for note in made["notes"])


def test_estimates_are_labelled_by_direction() -> None:
    made = report(answers())
    assert by_tenant(made)["acme"]["quality"] == {
        "input": "estimate", "cached_input": "unknown", "output": "exact", "wasted": "estimate",
        "kv_token_seconds": "estimate",
    }  # fmt: skip
    assert (
        "Tokens of llama are not exact: input (estimate), cached_input (unknown)."
        in (made["notes"])
    )
    assert made["unavailable"] == []


def test_kv_token_seconds_add_up_and_change_no_cost() -> None:
    made, without = report(answers(), answers()), report(WITHOUT_KV, WITHOUT_KV)
    held = {tenant: row["kv_token_seconds"] for tenant, row in by_tenant(made).items()}
    assert held == {"acme": 30_000, "other": 8_000, None: 2_000}
    assert any(note.startswith("KV-cache token-seconds are an estimate") for note in made["notes"])
    for row, other in zip(made["tenants"], without["tenants"], strict=True):
        assert row["cost"] == other["cost"]


def test_kv_token_seconds_of_a_day_without_taps_are_missing_not_the_whole() -> None:
    held = by_tenant(report(WITHOUT_KV, answers()))["acme"]["kv_token_seconds"]
    assert held == 15_000


@pytest.mark.parametrize(("day", "text", "csv_text"), [(WITHOUT_KV, "-", ""), (ZERO_KV, "0", "0")])
def test_kv_token_seconds_that_no_tap_measures_are_absent_not_zero(
    day: Answers, text: str, csv_text: str
) -> None:
    made = showback(read(day), ShowbackRules(2.5), "0.1.0")
    measured = bool(csv_text)
    assert [row["kv_token_seconds"] for row in as_object(made)["tenants"]] == (  # type: ignore[attr-defined]
        [0, 0, 0] if measured else [None, None, None]
    )
    rows = list(csv.DictReader(io.StringIO(as_csv(made))))
    assert [row["kv_token_seconds"] for row in rows] == [csv_text] * 3 + [""] * 3
    [acme] = [line for line in as_text(made).splitlines() if " acme " in line]
    assert acme.split()[7] == text
    [cells] = [row for row in as_html(made).split("<tr>") if ">acme<" in row]
    assert cells.split("<td>")[8] == text
    reason = "no tap observed streams of llama with their number of input tokens"
    for page in (as_text(made), as_html(made), as_json(made)):
        assert (reason in page) is not measured


def test_dcgm_counts_gpus() -> None:
    period = read(answers(), dcgm=())
    made = as_object(showback(period, ShowbackRules(1, gpus_per_server=None), "0.1.0"))
    assert made["total"]["gpu_hours"] == 8 * 24  # type: ignore[index]
    assert made["rules"]["gpus_from"] == "dcgm"  # type: ignore[index]


def test_a_step_that_is_too_large_is_read_in_parts() -> None:
    half = STEP // 2
    evaluate = evaluator(answers(minutes=DAY / 2, busy=360), half)
    queried: list[float] = []

    def query(expr: str, at: float) -> list[Sample]:
        if f"{STEP}s" in expr or f"{STEP - 1}s" in expr:
            raise QueryTooLargeError("too many samples")
        queried.append(at)
        return evaluate(expr)

    period = read_usage(query, 1, NOW)
    assert set(queried) == {NOW - half, NOW}
    assert (period.measured, period.present) == (DAY, 2 * DAY)


def test_queries_are_promql_and_select_servers() -> None:
    selector = read_query('up{namespace="llm"}').selector
    assert selector
    for expr in usage_queries(STEP, server_label="pod", selector=selector.matchers).values():
        found = list(selectors(parse(expr)))
        assert found
        assert all('namespace="llm"' in str(each) for each in found)


def test_csv_rows_add_up_and_no_name_is_a_formula() -> None:
    hostile = "=HYPERLINK(1)"
    more = sample(9, direction="output", tenant=hostile, instance="a", model="llama")
    text = as_csv(showback(read(answers(DAY, 720, 0, more)), ShowbackRules(2.5), "0.1.0"))
    rows = list(csv.DictReader(io.StringIO(text)))
    assert tuple(rows[0]) == COLUMNS
    kinds = [row["kind"] for row in rows]
    assert kinds == ["no_tenant", "tenant", "tenant", "tenant", "idle", "residual", "total"]
    *parts, total = (float(row["cost"]) for row in rows)
    assert sum(parts) == pytest.approx(total, abs=1e-5)
    assert f"'{hostile}" in {row["tenant"] for row in rows}


@pytest.fixture(scope="module")
def documented() -> Showback:
    """Return the report of the how-to page: 30 days, of which Prometheus has 29."""
    days = (EMPTY, *(answers(busy=900, scale=10_000) for _ in range(29)))
    return showback(read(*days), ShowbackRules(2.5, gpus_per_server=8), "0.1.0")


def test_the_output_in_the_documentation_is_current(documented: Showback) -> None:
    (shown,) = (fence for _, fence in every_fence("text") if fence.title == "report")
    assert shown.body == as_text(documented)


def test_every_key_of_json_is_documented(documented: Showback) -> None:
    page = (ROOT / "docs/reference/json-output.md").read_text()
    described = page.partition("## Report\n")[2].partition("\n## ")[0]
    without_kv = showback(read(WITHOUT_KV), ShowbackRules(2.5), "0.1.0")
    made = set(re.findall(r'"(\w+)":', as_json(documented) + as_json(without_kv)))
    assert made == set(re.findall(r"`(\w+)`", described))


@pytest.mark.parametrize(
    "command",
    [
        command
        for _, fence in every_fence("sh")
        for command in fence.commands
        if command.startswith("tokenslo report ")
    ],
)
def test_documented_commands_run(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Run them over one day; the series of another label or selector are the same."""
    label, selector, dcgm = "instance", (), None
    words = shlex.split(command)[2:]
    if "--server-label" in words:
        label = words[words.index("--server-label") + 1]
    if "--selector" in words:
        selector = matchers(words[words.index("--selector") + 1])
    if "--dcgm-selector" in words:
        dcgm = matchers(words[words.index("--dcgm-selector") + 1])
    known = usage_queries(STEP, server_label=label, selector=selector, dcgm=dcgm)
    by_query = {expr: list(answers()[key]) for key, expr in known.items()}
    with serving(FakePrometheus(by_query.__getitem__)) as fake:
        given = [fake.url if word.startswith("http") else word for word in words]
        code, out, err = run([*given, "--days", "1"], capsys)
    assert (code, err) == (0, "")
    assert out


def matchers(text: str) -> tuple[Matcher, ...]:
    selector = read_query(f"up{{{text}}}").selector
    assert selector
    return selector.matchers


def test_html_is_self_contained_and_escaped() -> None:
    more = sample(9, direction="output", tenant="<script>x", instance="a", model="llama")
    page = as_html(showback(read(answers(DAY, 720, 0, more)), ShowbackRules(2.5), "0.1.0"))
    assert "<script" not in page
    assert "&lt;script&gt;x" in page
    assert not re.search(r"(?:src|href)=|https?:", page)


@pytest.mark.parametrize("form", ["--text", "--json", "--csv", "--html"])
def test_the_command_prints_each_format(form: str, capsys: pytest.CaptureFixture[str]) -> None:
    with serving(FakePrometheus(evaluator(answers()))) as fake:
        code, out, err = run(
            ["--prometheus", fake.url, "--days", "1", "--gpu-hour-price", "2.5", form], capsys
        )
    assert (code, err) == (0, "")
    assert "acme" in out
    if form == "--json":
        assert json.loads(out)["total"]["cost"] == 120
    if form == "--text":
        assert "Tenants 30.00 + idle 90.00 + residual 0.00 = 120.00" in out


def failing(_: str) -> str:
    return "execution refused"


@pytest.mark.parametrize(
    ("evaluate", "more", "message"),
    [
        (lambda _: [], [], "Prometheus has no sidecar in these 1 days"),
        (failing, [], "refused the query: execution refused"),
        (failing, ["--gpu-hour-price", "nan"], "is not a number of at least 0"),
        (failing, ["--gpus-per-server", "0"], "is not a number above 0"),
        (failing, ["--output-weight", "-1"], "is not a number of at least 0"),
        (failing, ["--selector", 'a="b"} or up{c="d"'], "is not a list of label matchers"),
        (failing, ["--selector", "a="], "is not PromQL"),
        (failing, ["--selector", 'tenant="x"'], "tenant is not a label of targets"),
        (failing, ["--server-label", "a b"], "is not the name of a label"),
        (
            failing,
            ["--input-weight", "0", "--cached-input-weight", "0", "--output-weight", "0"],
            "All weights are 0",
        ),
    ],
)
def test_invalid_input_is_one_error(
    evaluate: Callable[[str], list[Sample] | str],
    more: list[str],
    message: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    with serving(FakePrometheus(evaluate)) as fake:
        code, out, err = run(
            ["--prometheus", fake.url, "--days", "1", "--gpu-hour-price", "2.5", *more], capsys
        )
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert message in err


def test_dcgm_without_series_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    answer = {**answers(), "gpus": []}
    known = usage_queries(STEP, server_label="instance", dcgm=())
    by_query = {expr: list(answer[key]) for key, expr in known.items()}
    with serving(FakePrometheus(lambda expr: by_query.get(expr, []))) as fake:
        code, _, err = run(
            [
                *("--prometheus", fake.url, "--days", "1", "--gpu-hour-price", "1"),
                *("--dcgm-selector", '{Hostname="a"}'),
            ],
            capsys,
        )
    assert code == 2
    assert "no DCGM_FI_DEV_GPU_UTIL with these labels" in err
