"""The status page over HTTP: its answers, its structure and its policy."""

from __future__ import annotations

import re
from base64 import b64encode
from dataclasses import replace
from functools import cache
from hashlib import sha256
from html.parser import HTMLParser
from itertools import pairwise
from math import inf

import aiohttp
import pytest

from exporter.background import TaskState
from exporter.http_server import start
from exporter.objectives.objective_status import evaluate
from exporter.samples import Distribution, Labels, ModelInfo, Value
from exporter.sockets import Listen
from exporter.store.view import SourceState, View
from exporter.web.readiness import readiness
from exporter.web.server import application
from exporter.web.signal_groups import GROUPS, HIDDEN
from exporter.web.status import Status
from slos.signals import SIGNALS
from tests.service_example import objective, service
from tests.status_scenes import SCENES, ModelScene, facts
from tests.status_scenes import status as scene
from tests.views import UP, busy, measured, unavailable, view

EVIL = "</td></svg><script>alert('model')</script>\"&<img src=x onerror=alert(1)>"
VOID = {"meta", "path", "rect"}

Attributes = dict[str, str | None]


def lines(text: str) -> str:
    """Return the lines of a text that are not blank."""
    return "\n".join(line.strip() for line in text.split("\n") if line.strip())


class Page(HTMLParser):
    """The elements of a page: tags with attributes, and the text of each."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, Attributes]] = []
        self.texts: list[list[str]] = []
        self._open: list[tuple[str, int]] = []
        self.feed(html)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self.texts.append([])
        if tag not in VOID:
            self._open.append((tag, len(self.tags) - 1))
        if tag in ("small", "li", "p"):
            self._add("\n")

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag in VOID
        self.handle_starttag(tag, attrs)

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop()[0] == tag, f"unbalanced </{tag}>"

    def handle_data(self, data: str) -> None:
        self._add(data)

    def _add(self, text: str) -> None:
        for _, number in self._open:
            self.texts[number].append(text)

    def select(self, tag: str, **wanted: str) -> list[tuple[Attributes, str]]:
        """Return attributes and text of elements; ``class_`` is one of several classes."""
        found = []
        for (name, attrs), texts in zip(self.tags, self.texts, strict=True):
            given = {**attrs, "class_": attrs.get("class")}
            if name == tag and all(
                value in (given.get(key) or "").split()
                if key == "class_"
                else given.get(key) == value
                for key, value in wanted.items()
            ):
                found.append((attrs, lines("".join(texts))))
        return found

    def text(self, tag: str, **wanted: str) -> str:
        """Return the text of the only such element."""
        [(_, text)] = self.select(tag, **wanted)
        return text

    @property
    def headline(self) -> str:
        return self.text("h1")

    @property
    def answers(self) -> list[str]:
        """The three answers, each with its details in lines."""
        return [text for _, text in self.select("div", class_="answer")]

    @property
    def rows(self) -> dict[str, list[str]]:
        """The cells of all tables by their row's heading."""
        found: dict[str, list[str]] = {}
        for (tag, attrs), texts in zip(self.tags, self.texts, strict=True):
            text = lines("".join(texts))
            if tag == "th" and attrs.get("scope") == "row":
                cells = found[text.split("\n")[0]] = []
            elif tag == "td":
                cells.append(text)
        return found

    def tiles(self) -> dict[str, str]:
        """Return the texts of the tiles of the only model, by title."""
        titles = [text for _, text in self.select("dt")]
        return dict(zip(titles, (text for _, text in self.select("dd")), strict=True))


def status(shown: View, **more: object) -> Status:
    objectives = evaluate([service(objective("ttft"))], shown)
    now = "2026-01-02T03:04:05Z"
    return replace(Status("1.2.3", now, shown, readiness(shown, 5), objectives), **more)  # type: ignore[arg-type]


async def get(
    found: Status, path: str = "/", **headers: str
) -> tuple[str, aiohttp.typedefs.LooseHeaders]:
    url, close = await start(application(facts(found)), Listen("127.0.0.1", 0))
    try:
        async with (
            aiohttp.ClientSession(url) as session,
            session.get(path, headers=headers) as answer,
        ):
            assert answer.status == 200
            return await answer.text(), answer.headers
    finally:
        await close()


async def page(found: Status, path: str = "/") -> Page:
    return Page((await get(found, path))[0])


@cache
def played(name: str) -> Status:
    return SCENES[name]()


# Answers


@pytest.mark.parametrize(
    ("name", "headline", "answers"),
    [
        (
            "healthy",
            "Healthy",
            [
                "Ready\ntriton scraped",
                "All 4 met",
                "Nothing\nKV cache 41% used, 12 of 64 sequences",
            ],
        ),
        (
            "violated",
            "2 objectives not met: chat/ttft, chat/availability",
            ["Ready", "2 of 4 not met\nchat/ttft: ", "Sequences: 62 of 64 active, 14 waiting"],
        ),
        ("limited", "Healthy, but limited by KV cache at 88%", ["Ready", "", "KV cache at 88%: 1"]),
        (
            "down",
            "Source triton is down",
            ["Source triton is down\ntriton was last scraped 40", "None can be", "Not measured"],
        ),
        ("failing-scrape", "Source triton is down", ["", "All 4 met", "Nothing"]),
        (
            "idle",
            "Healthy, no traffic in the last minute",
            ["Ready", "1 met\n3 without events", "Nothing"],
        ),
        ("unavailable", "Healthy", ["Ready", "2 met\n2 unavailable", "Not measured"]),
        ("no-slo", "Healthy", ["Ready", "No objectives\nstart the sidecar with --slo", "Nothing"]),
    ],
)
async def test_the_first_screen_answers_health_objectives_and_limits(
    name: str, headline: str, answers: list[str]
) -> None:
    shown = await page(played(name))
    assert shown.headline.startswith(headline)
    assert shown.text("title") == f"{shown.headline} · tokenslo"
    for text, expected in zip(shown.answers, answers, strict=True):
        assert expected in re.sub(r"\n[✓✕!·] ", "\n", text)


async def test_a_lost_source_is_the_headline_before_anything_else() -> None:
    failing = view(
        measured("requests", {(("outcome", "ok"),): 9.0, (("outcome", "error"),): 9.0}),
        sources=(replace(UP, up=False, age=2.0, error="refused"),),
    )
    bad = replace(status(failing).objectives[0], quality="exact", met=False)
    shown = await page(status(failing, objectives=(bad,)))
    assert shown.headline == "Source triton is down"
    assert "triton was last scraped 2.0 s ago: refused" in shown.answers[0]
    assert "1 of 1 not met" in shown.answers[1]


async def test_a_sidecar_without_a_scrape_says_so() -> None:
    shown = await page(status(view(sources=(), models=())))
    assert shown.headline == "No source"
    assert "no source has been scraped yet" in shown.answers[0]
    never = SourceState("triton", False, None, None, "refused", {}, None)
    shown = await page(status(view(sources=(never,), models=())))
    assert "triton was last scraped never: refused" not in shown.answers[0]
    assert "triton was never scraped: refused" in shown.answers[0]


async def test_an_unready_server_and_a_failed_part_are_named() -> None:
    unready = replace(UP, ready=False)
    shown = await page(status(view(sources=(unready,), models=())))
    assert shown.headline == "Not ready"
    assert "the server triton reports that it is not ready" in shown.answers[0]
    shown = await page(status(busy()))
    assert "triton/statistics: answered 503" in shown.answers[0]
    failed = TaskState("progress", 1, running=False, error="failed: KeyError()")
    shown = await page(status(view(), tasks=(failed,)))
    assert "task progress: failed: KeyError()" in shown.answers[0]
    assert shown.rows["progress"] == ["waiting to restart", "1", "failed: KeyError()"]


async def test_traffic_in_flight_is_no_idleness() -> None:
    idle = {"requests": {(("outcome", "ok"),): 7.0}}
    zero = view(measured("requests", idle["requests"]), measured("sequences_active", 0.0))
    assert "no traffic" in (await page(status(zero))).headline
    active = view(measured("requests", idle["requests"]), measured("sequences_active", 1.0))
    assert "no traffic" not in (await page(status(active))).headline
    unknown = view(unavailable("requests", "not counted"))
    assert "no traffic" not in (await page(status(unknown))).headline


@pytest.mark.parametrize(
    ("gauges", "limit"),
    [
        ({"sequences_active": 64, "sequences_max": 64}, "Sequences: 64 of 64 active"),
        ({"sequences_active": 60, "sequences_max": 64}, "Nothing"),
        (
            {"sequences_active": 60, "sequences_max": 64, "sequences_waiting": 2},
            "Sequences: 60 of 64 active, 2 waiting",
        ),
        ({"kv_utilization": 0.85}, "Nothing"),
        ({"kv_utilization": 0.85, "sequences_waiting": 3}, "KV cache: 85% used, 3 waiting"),
        ({"kv_utilization": 0.96}, "KV cache: 96% used"),
        ({"kv_utilization": 0.5, "sequences_waiting": 3}, "Queue: 3 waiting"),
        ({"sequences_paused": 2, "kv_utilization": 0.7}, "KV cache at 70%: 2 preempted"),
        ({"memory_gpu": 1.0}, "Not measured"),
    ],
)
async def test_what_limits_is_found_in_the_gauges(gauges: dict[str, float], limit: str) -> None:
    shown = await page(
        status(view(*(measured(key, float(value)) for key, value in gauges.items())))
    )
    assert shown.answers[2].split("\n")[1][2:] == limit


# Models


async def test_a_model_has_quantiles_of_the_last_minute_and_a_chart_of_ten() -> None:
    shown = await page(played("violated"))
    tiles = shown.tiles()
    assert list(tiles) == ["TTFT", "ITL", "Sequences", "KV cache", "Disconnects"]
    assert re.match(r"[23]\.\d+ s p95 1\.\d+ s p50", tiles["TTFT"])
    assert "objective 800 ms" in tiles["TTFT"]
    assert re.match(r"3\d\.\d ms p95 \d\d(\.\d)? ms p50", tiles["ITL"])
    assert tiles["Sequences"].split("\n") == ["62 of 64 active", "14 waiting"]
    assert re.match(r"\d+ in the last minute\n\d+ mid stream", tiles["Disconnects"])
    [ttft, _] = shown.select("svg", role="img")
    assert re.match(
        r"TTFT of llama-3-70b version 1, last ten minutes: p95 from \d+ ms to [34]\.\d+ s, now",
        str(ttft[0]["aria-label"]),
    )
    curves = [attrs for attrs, _ in shown.select("path", class_="p95")]
    assert len(curves) == 2
    assert all(str(curve["d"]).count("L") == 59 for curve in curves)
    [failing] = shown.select("div", class_="failing")
    assert failing[1].startswith("TTFT")


async def test_bars_are_meters_with_values() -> None:
    shown = await page(played("violated"))
    meters = {attrs["aria-label"]: attrs for attrs, _ in shown.select("div", role="meter")}
    assert set(meters) == {
        "Active sequences of llama-3-70b version 1",
        "KV cache of llama-3-70b version 1",
    }
    cache = meters["KV cache of llama-3-70b version 1"]
    assert (cache["aria-valuenow"], cache["aria-valuetext"]) == ("86", "86%")
    assert (cache["aria-valuemin"], cache["aria-valuemax"]) == ("0", "100")
    # The objective of the example: at most 90 %.
    assert "M90.0 0V8" in [attrs["d"] for attrs, _ in shown.select("path", class_="limit")]


async def test_an_unavailable_signal_has_its_reason_and_no_zero() -> None:
    tiles = (await page(played("unavailable"))).tiles()
    for title in ("ITL", "Disconnects"):
        assert tiles[title] == "unavailable\nTriton does not time tokens"
    for title in ("Sequences", "KV cache"):
        assert tiles[title] == "unavailable\nthe backend publishes no engine statistics"


async def test_the_chart_of_a_lost_source_stays_with_a_gap() -> None:
    shown = await page(played("down"))
    assert shown.tiles()["TTFT"].startswith("unavailable\nno successful scrape for 40 s")
    [ttft, _] = shown.select("path", class_="p95")
    # The last points are missing.
    assert 50 < int(str(ttft[0]["d"]).split("L")[-1].split()[0]) < 58


async def test_a_model_without_traffic_has_no_quantiles() -> None:
    tiles = (await page(played("idle"))).tiles()
    assert tiles["TTFT"] == tiles["ITL"] == "no traffic in the last minute"
    assert tiles["KV cache"] == "0% used"


async def test_tpot_replaces_itl_where_only_it_is_measured() -> None:
    without = {"itl": ("the server counts no gaps", "none")}
    tiles = (await page(scene([ModelScene("llama", without=without)], minutes=1.0))).tiles()
    assert list(tiles)[1] == "TPOT"
    assert " p95 " in tiles["TPOT"]


async def test_a_quantile_beyond_the_last_boundary_is_a_lower_bound() -> None:
    slow = Distribution((0.1, 2.0, inf), (0.0, 0.0, 10.0), 90.0)
    shown = view(measured("ttft", slow, "wire")._replace(last_minute={(): slow}))
    assert (await page(status(shown))).tiles()["TTFT"].startswith(">2 s p95 >2 s p50")


async def test_a_histogram_without_buckets_has_a_mean() -> None:
    total = Distribution((inf,), (10.0,), 2.5)
    shown = view(measured("ttft", total, "wire")._replace(last_minute={(): total}))
    assert (await page(status(shown))).tiles()["TTFT"].split() == ["250", "ms", "mean"]


async def test_the_most_urgent_model_comes_first() -> None:
    shown = await page(played("twelve"))
    names = [text.split()[0] for _, text in shown.select("h3")]
    assert len(names) == 12
    assert names[:2] == ["llama-3-70b", "mixtral-8x7b"]


async def test_many_models_are_bounded_and_each_has_a_page_of_its_own() -> None:
    html, _ = await get(played("hundred"))
    shown = Page(html)
    assert len(html) < 300_000
    assert len(shown.select("article")) == 24
    summaries = [text for _, text in shown.select("summary")]
    assert "76 more models" in summaries
    assert "Signals of 100 models, each on a page of its own" in summaries
    assert "Charts are kept for 64 models; 36 more have traffic." in html
    [link] = {
        str(attrs["href"]) for attrs, text in shown.select("a") if text == "chat-80b version 1"
    }
    own = await page(played("hundred"), link)
    assert [text.split()[0] for _, text in own.select("h3")] == ["chat-80b"]
    assert "Time to first token" in own.rows


async def test_a_model_that_is_not_reported_is_named() -> None:
    html, _ = await get(played("healthy"), "/?model=%3Cb%3Enope&version=7")
    assert "No model &lt;b&gt;nope 7 is reported." in html
    assert len(Page(html).select("article")) == 1


async def test_models_without_token_metrics_have_no_tiles() -> None:
    shown = await page(
        status(
            view(
                measured("kv_utilization", 0.5),
                unavailable("ttft", "a tokenizer", model="pre"),
                models=(ModelInfo("llama", "1"), ModelInfo("pre", "1")),
            )
        )
    )
    assert [text.split()[0] for _, text in shown.select("h3")] == ["llama"]
    assert "1 model without token metrics" in [text for _, text in shown.select("summary")]


# Objectives


async def test_objectives_are_sorted_by_urgency_and_the_rest_is_folded() -> None:
    shown = await page(played("violated"))
    verdicts = {name: cells[0] for name, cells in shown.rows.items() if name.startswith("chat/")}
    assert [text.split(",")[0] for text in verdicts.values()] == [
        "not met",
        "not met",
        "met",
        "met now",
    ]
    assert re.match(r"not met, [\d.]+% of 360 good", verdicts["chat/ttft"])


async def test_of_many_objectives_only_the_urgent_ones_are_not_folded() -> None:
    html, _ = await get(played("twelve"))
    folded = html.index("46 more objectives")
    assert len(re.findall(">not met<", html[:folded])) == 2
    assert not re.findall(">met( now)?<", html[:folded])
    assert len(re.findall(">met( now)?<", html[folded:])) == 46
    assert "400 objectives, 108 of them here" in (await get(played("hundred")))[0]


async def test_an_unavailable_objective_has_reason_and_fix() -> None:
    shown = view(unavailable("ttft", "Triton does not time tokens", "add a tap"))
    cells = (await page(status(shown))).rows["chat/ttft"]
    assert cells[0] == "unavailable"
    assert cells[3] == "time to first token: Triton does not time tokens. Fix: add a tap"


# Signals


async def test_each_signal_has_value_method_and_quality() -> None:
    shown = (await page(status(busy()))).rows
    assert shown["Time to first token"] == [
        "p50 ≈0.58 s",
        "10 observed",
        "estimate",
        "Triton's first-response histogram\nwhole milliseconds",
    ]
    assert shown["Requests by outcome"][:2] == ["no history yet", "error 9, ok 981"]
    assert shown["KV-cache utilization"][0] == "50.0%"
    assert shown["Active sequences"][2] == "exact"
    assert shown["Inter-token latency"] == [
        "",
        "",
        "unavailable",
        "Triton does not see token gaps\nFix: serve with the vLLM backend",
    ]


async def test_signals_are_folded_by_group_with_their_qualities() -> None:
    shown = await page(status(busy()))
    summaries = [text for attrs, text in shown.select("summary")]
    assert summaries[-4:] == [
        "Latency: 2 estimate, 1 unavailable",
        "Requests and goodput: 1 estimate",
        "Sequences: 1 exact, 1 estimate",
        "KV cache and memory: 1 exact",
    ]
    assert not [attrs for attrs, _ in shown.select("details") if "open" in attrs]


def test_every_signal_is_in_one_group() -> None:
    grouped = [key for keys in GROUPS.values() for key in keys]
    assert len(grouped) == len(set(grouped))
    assert set(grouped) == SIGNALS.keys() - HIDDEN


async def test_tenants_are_added_up() -> None:
    def labels(tenant: str) -> Labels:
        return (("outcome", "ok"), ("phase", "complete"), ("tenant", tenant))

    streams = measured("streams", {labels(name): 2.0 for name in ("a", "b", "c")})
    assert (await page(status(view(streams)))).rows["Streams by outcome"][1] == "ok complete 6"


async def test_amounts_have_units() -> None:
    shown = await page(
        status(
            view(
                measured("memory_gpu", 71.3 * 2**30),
                measured("memory_cpu", 12.0),
                measured("output_tokens", 1234567.0, "trtllm_output_length"),
                measured("ttft", Distribution((1.0, inf), (0.0, 0.0), 0.0)),
            )
        )
    )
    rows = shown.rows
    assert [rows[name][0] for name in ("GPU memory", "CPU memory")] == ["71.3 GiB", "12 B"]
    assert rows["Output tokens"][1] == "1,234,567"
    assert rows["Time to first token"][1] == "0 observed"


async def test_zeros_are_omitted_and_no_outcome_is_repeated() -> None:
    def labels(outcome: str, reason: str) -> Labels:
        return (("outcome", outcome), ("reason", reason))

    outcomes: dict[Labels, Value] = {(("outcome", "ok"),): 3.0, (("outcome", "error"),): 0.0}
    failures: dict[Labels, Value] = {
        labels("cancelled", "canceled"): 2.0,
        labels("timeout", "TIMEOUT"): 1.0,
        labels("error", "BACKEND"): 1.0,
    }
    shown = view(measured("requests", outcomes), measured("request_failures", failures))
    rows = (await page(status(shown))).rows
    assert rows["Requests by outcome"][1] == "ok 3"
    assert rows["Failed requests by reason"][1] == "cancelled 2, error BACKEND 1, timeout 1"
    idle = view(measured("requests", dict.fromkeys(outcomes, 0.0)))
    assert (await page(status(idle))).rows["Requests by outcome"][1] == "0"


async def test_sources_and_excluded_models_are_shown() -> None:
    shown = (await page(status(busy()))).rows
    assert shown["triton"] == ["up\nserver ready", "0.5 s ago", "12 ms", "timeout 2"]
    assert shown["triton/statistics"][0] == "down\nanswered 503"
    assert shown["tokenizer 1"] == ["not decoupled"]


async def test_a_model_of_which_only_signals_remain_is_shown() -> None:
    shown = await page(status(view(unavailable("itl", "gone"), models=())))
    assert "Inter-token latency" in shown.rows
    assert shown.text("h3").startswith("llama")


# Structure and policy


def hostile() -> Status:
    shown = view(
        measured("requests", {(("outcome", EVIL), ("reason", EVIL)): 1.0}, model=EVIL, recent=EVIL),
        measured("kv_utilization", 0.5, model=EVIL),
        measured("disconnects", {(("phase", EVIL),): 1.0}, model=EVIL)._replace(
            last_minute={(("phase", EVIL),): 1.0}
        ),
        unavailable("itl", EVIL, EVIL, model=EVIL),
        sources=(SourceState(EVIL, False, None, None, EVIL, {EVIL: 1}, False),),
        models=(
            ModelInfo(EVIL, EVIL, EVIL, ready=False, reason=EVIL),
            ModelInfo(EVIL, "1", EVIL),
            ModelInfo("x", "1", excluded=EVIL),
        ),
    )
    found = status(shown, tasks=(TaskState(EVIL, 1, running=False, error=EVIL),))
    states = (
        replace(one, **dict.fromkeys(("file", "service", "objective", "good", "note", "fix"), EVIL))
        for one in found.objectives
    )
    return replace(found, objectives=tuple(states))


async def test_names_from_a_server_are_text_and_never_markup() -> None:
    plain, evil = await page(status(busy())), await page(hostile())
    assert [text for _, text in evil.select("script")] == [
        text for _, text in plain.select("script")
    ]
    assert {tag for tag, _ in evil.tags} <= {tag for tag, _ in plain.tags} | {"a", "article"}
    names = {name for _, attrs in evil.tags for name in attrs}
    assert not [name for name in names if name.startswith("on")]
    assert EVIL in evil.answers[0]
    assert any(EVIL in text for _, text in evil.select("h3"))


@pytest.mark.parametrize(
    "name", ["healthy", "violated", "down", "unavailable", "twelve", "hundred"]
)
async def test_the_policy_allows_only_the_page_itself(name: str) -> None:
    html, headers = await get(played(name))
    shown = Page(html)
    policy = dict(part.split(" ", 1) for part in headers["Content-Security-Policy"].split("; "))  # type: ignore[index,call-overload]
    assert policy["default-src"] == "'none'"
    assert "unsafe" not in str(policy)
    for kind in ("script", "style"):
        digest = b64encode(sha256(content(html, kind).encode()).digest()).decode()
        assert policy[f"{kind}-src"] == f"'sha256-{digest}'"
    inline = [attrs for _, attrs in shown.tags if attrs.keys() & {"src", "style", "srcset"}]
    assert inline == []
    links = [str(attrs["href"]) for _, attrs in shown.tags if "href" in attrs]
    assert all(link.startswith("/") and not link.startswith("//") for link in links)


def content(html: str, tag: str) -> str:
    [found] = re.findall(rf"<{tag}>(.*?)</{tag}>", html, re.DOTALL)
    return str(found)


@pytest.mark.parametrize("name", [*SCENES])
async def test_the_structure_is_complete_for_screen_readers(name: str) -> None:
    shown = await page(played(name))
    assert ("html", {"lang": "en"}) in shown.tags
    for landmark in ("header", "main", "nav"):
        assert len(shown.select(landmark)) == 1
    levels = [int(tag[1]) for tag, _ in shown.tags if re.fullmatch(r"h[1-6]", tag)]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(after <= before + 1 for before, after in pairwise(levels))
    ids = [str(attrs["id"]) for _, attrs in shown.tags if "id" in attrs]
    assert len(ids) == len(set(ids))
    labels = [
        str(attrs["aria-labelledby"]) for _, attrs in shown.tags if "aria-labelledby" in attrs
    ]
    assert set(labels) <= set(ids)
    for tag, following in pairwise(shown.tags):
        assert tag[0] != "table" or following[0] == "caption"
        assert tag[0] != "details" or following[0] == "summary"
        assert tag[0] != "th" or tag[1].get("scope") in ("col", "row")
        assert tag[0] != "svg" or tag[1].get("aria-label") or tag[1].get("aria-hidden") == "true"
    keys = [str(attrs["data-key"]) for attrs, _ in shown.select("details")]
    assert len(keys) == len(set(keys)), "the script finds details by their key"


async def test_the_page_is_complete_without_its_script() -> None:
    html, _ = await get(played("twelve"))
    without = Page(re.sub(r"<script>.*?</script>", "", html, flags=re.DOTALL))
    assert len(without.select("article")) == 12
    assert "Time to first token" in without.rows
    assert "http-equiv" not in html, "a timed reload would close what a reader has opened"


async def test_the_policy_and_no_store_hold_for_json_too() -> None:
    _, headers = await get(played("healthy"), Accept="application/json")
    assert headers["Content-Type"] == "application/json; charset=utf-8"  # type: ignore[index,call-overload]
