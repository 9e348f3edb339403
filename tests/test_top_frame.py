"""Frames of ``tokenslo top`` as lines of text."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.cells import cell_len
from sidecar_reports import busy, histogram, objective, scrape, state

from tools.docs.pages import every_fence
from top.columns import COLUMNS, DASH, count, rate, seconds
from top.filters import Selection
from top.frame import FrameOptions, frame
from top.rows import SidecarRows, sidecar_rows

DOWN = SidecarRows("c:9400", error="http://c:9400/ refused the connection: nothing listens there")


def sidecar(name: str, *models: str, kv: float = 0.5, missed: bool = False) -> SidecarRows:
    then = [signal for model in models for signal in busy(0, model, kv=kv)]
    now = [signal for model in models for signal in busy(60, model, kv=kv)]
    objectives = [objective(model=model, met=not missed, bad_events=1.0) for model in models]
    return sidecar_rows(name, scrape(0, *then), scrape(60, *now, objectives=objectives))


def lines(
    *sidecars: SidecarRows, selection: Selection | None = None, **options: object
) -> list[str]:
    given = FrameOptions(**{"width": 80, **options})  # type: ignore[arg-type]
    return [line.plain for line in frame(sidecars, selection or Selection(), given)]


def test_one_model_at_80_columns() -> None:
    assert lines(sidecar("a:9400", "llama-3-70b")) == [
        "tokenslo top  1 sidecar  1 model  last 60 s",
        "MODEL        REQ/S  TOK/S TTFT p95 ITL p95  RUN WAIT  KV CACHE DISC/S MISSED",
        "llama-3-70b      2    200    96 ms ~9.5 ms   12    0 ▇▇▁▁  50%    0.2    0/1",
        "",
        "~ estimate: the sidecar's status page states the method",
    ]


def test_a_wide_terminal_shows_medians_and_the_addresses_of_sidecars() -> None:
    shown = lines(sidecar("a:9400", "llama"), sidecar("b:9400", "llama"), width=160)
    assert " ".join(shown[1].split()) == (
        "MODEL SIDECAR REQ/S TOK/S TTFT p50 TTFT p95 ITL p50 ITL p95 RUN MAX WAIT PAUSED KV CACHE "
        "DISC/S MISSED"
    )
    assert [line[:14] for line in shown[2:4]] == ["llama a:9400  ", "llama b:9400  "]


def test_a_narrow_terminal_numbers_the_sidecars() -> None:
    shown = lines(sidecar("host-a:9400", "llama-3-70b"), sidecar("host-b:9400", "mixtral"), DOWN)
    assert shown[:2] == [
        "tokenslo top  3 sidecars, 1 down  2 models  last 60 s",
        "1 host-a:9400  2 host-b:9400  3 c:9400",
    ]
    assert [line[:15] for line in shown[3:6]] == [
        "3 ✗ http://c:94", "1 llama-3-70b  ", "2 mixtral      "
    ]  # fmt: skip


def test_an_unreachable_sidecar_is_a_row_with_its_error() -> None:
    summary, heading, row = lines(DOWN)
    assert summary == "tokenslo top  1 sidecar, 1 down  0 models  collecting"
    assert heading.split()[:3] == ["MODEL", "REQ/S", "TOK/S"]
    assert row == "✗ http://c:9400/ refused the connection: nothing listens there"


def test_a_missed_objective_comes_first_and_is_explained() -> None:
    shown = lines(sidecar("a:9400", "alpha"), sidecar("b:9400", "zeta", missed=True))
    assert shown[3].split()[:2] == ["2", "zeta"]
    assert shown[3].endswith("1/1")
    assert "✗ chat/first-token 90.0% good in 1 min, target 95%: zeta on b:9400" in shown


def test_a_first_frame_says_collecting() -> None:
    first = sidecar_rows("a:9400", None, scrape(0, *busy(5)))
    shown = lines(first)
    assert shown[0].endswith("collecting")
    assert shown[2].split()[:5] == ["llama", "…", "…", "…", "…"]
    assert lines(SidecarRows("a:9400"))[2] == "collecting"


def test_an_unavailable_signal_is_a_dash_with_its_reason_below() -> None:
    signals = [one for one in busy(0) if one.signal not in ("ttft", "disconnects")]
    tap = {"note": "streams are not visible", "fix": "add a tap"}
    signals += [state(name, None, **tap) for name in ("ttft", "disconnects")]
    one = sidecar_rows("a", scrape(0, *signals), scrape(60, *signals))
    shown = lines(one)
    assert shown[2].split().count(DASH) == 3  # and the objectives
    assert shown[4:8] == [
        f"{DASH} disconnects, TTFT of llama: streams are not visible",
        "  Fix: add a tap",
        f"{DASH} objectives of llama: the sidecar has no SLO file for this model",
        "  Fix: give it --slo FILE",
    ]
    live = lines(one, height=24)
    assert not any("streams are not visible" in line for line in live)
    with_reasons = lines(one, height=24, selection=Selection(reasons=True))
    assert any("streams are not visible" in line for line in with_reasons)


def test_a_frame_fills_the_screen_and_rows_scroll() -> None:
    models = [f"model-{number:02}" for number in range(30)]
    shown = lines(sidecar("a", *models), height=20)
    assert len(shown) == 20
    assert shown[-1].startswith(" q quit  s sort MISSED▼  r reverse  f filter all  u reasons")
    assert any("more rows" in line for line in shown)
    assert shown[2].startswith("model-00")
    scrolled = lines(sidecar("a", *models), height=20, selection=Selection(first=5))
    assert scrolled[2].startswith("model-05")
    end = lines(sidecar("a", *models), height=20, selection=Selection(first=29))
    assert any(line.startswith("model-29") for line in end)


def test_a_filter_that_nothing_passes_is_named() -> None:
    shown = lines(sidecar("a", "llama"), selection=Selection(filter="missed"))
    assert shown[2] == "no model passes the filter: missed"
    assert shown[0].split("  ")[2] == "0 of 1 models"


def test_long_names_stay_different() -> None:
    models = [f"{size}-model-of-a-long-name-{tail}" for size in "ab" for tail in ("70b", "8b")]
    shown = lines(sidecar("a", *models))
    assert len({line[:17] for line in shown[2:6]}) == 4


def test_without_unicode_a_frame_is_ascii() -> None:
    one = sidecar("a", "llama", missed=True)
    for options in ({"height": None}, {"height": 24}):
        text = "\n".join(lines(one, DOWN, ascii_only=True, **options))
        assert text.isascii()
        assert "##..  50%" in text


@settings(max_examples=60)
@given(
    st.integers(20, 200),
    st.integers(4, 60),
    st.lists(st.text(st.characters(codec="utf-8", exclude_categories=("C", "Z")), max_size=60)),
    st.integers(1, 4),
)
def test_no_line_is_wider_than_the_terminal(
    width: int, height: int, names: list[str], number: int
) -> None:
    models = [f"m{name}" for name in dict.fromkeys(names)]
    sidecars = [sidecar(f"host-{n}:9400", *models, missed=True) for n in range(number)]
    shown = lines(*sidecars, DOWN, width=width, height=height)
    assert len(shown) == height
    assert max(map(cell_len, shown)) <= width
    assert max(map(cell_len, lines(*sidecars, width=width))) <= width


@pytest.mark.parametrize(
    ("write", "value", "text"),
    [
        (rate, 0.0, "0"), (rate, 0.001, "<0.01"), (rate, 0.31, "0.31"), (rate, 2.5, "2.5"),
        (rate, 9.996, "10"), (rate, 36.94, "36.9"), (rate, 999.7, "1k"), (rate, 12345, "12.3k"),
        (rate, 3.2e6, "3.2M"),
        (seconds, 0.0004, "0.4 ms"), (seconds, 0.00999, "10 ms"), (seconds, 0.0342, "34 ms"),
        (seconds, 0.9999, "1 s"), (seconds, 1.42, "1.42 s"), (seconds, 120.0, "120 s"),
        (seconds, 999.7, "17 min"),
        (count, 12.0, "12"), (count, 999.6, "1k"), (count, 12_345.0, "12k"),
    ],
)  # fmt: skip
def test_numbers_are_short(write: object, value: float, text: str) -> None:
    assert write(value) == text  # type: ignore[operator]


@given(st.floats(0, 1e9))
def test_numbers_fit_their_columns(value: float) -> None:
    widths = {column.key: column.width for column in COLUMNS}
    assert len(f"~{rate(value)}") <= widths["requests"]
    assert len(f"~>{seconds(min(value, 999))}") <= widths["itl_p95"] + 1
    assert len(f"~{count(min(value, 99_000))}") <= widths["running"]


def documented() -> list[str]:
    """Return the frame of the how-to page: a healthy pod, one that hurts, one that is down."""
    healthy = busy(60, "llama-3-70b", per_second=4.2, kv=0.41)
    fast = busy(60, "mixtral-8x7b", per_second=11.7, kv=0.22)
    slow = busy(60, "llama-3-70b", per_second=3.1, kv=0.97, waiting=18, ttft=histogram(0, 4, 60, 9))
    blind = [one for one in fast if one.signal != "disconnects"]
    blind.append(state("disconnects", None, "mixtral-8x7b", note="no tap", fix="add a tap"))
    met = [objective(name, "llama-3-70b") for name in ("first-token", "goodput")]
    missed = [
        objective("first-token", "llama-3-70b", met=False, good_events=171.0, bad_events=15.0)
    ]
    rows = []
    for name, now, objectives in (
        ("pod-a:9464", [*healthy, *blind], met),
        ("pod-b:9464", slow, [*missed, met[1]]),
    ):
        zero = [
            *busy(0, "llama-3-70b", ttft=histogram(0, 0, 0, 0)),
            *busy(0, "mixtral-8x7b"),
        ]
        rows.append(sidecar_rows(name, scrape(0, *zero), scrape(60, *now, objectives=objectives)))
    error = "http://pod-c:9464/ refused the connection: nothing listens there"
    return lines(*rows, SidecarRows("pod-c:9464", error=error), height=11)


def test_the_documentation_shows_a_true_frame() -> None:
    (shown,) = (fence for _, fence in every_fence("text") if fence.title == "top")
    assert shown.body.splitlines() == documented()
