"""``tokenslo report`` over 30 days of a real Prometheus: usage, cost, and what they add up to."""

from __future__ import annotations

import csv
import io
import json
import time
from collections.abc import Callable, Iterator

import pytest

from lab.prometheus import Prometheus
from tokenslo.cli import main

pytestmark = pytest.mark.long  # a month of series is loaded and read day by day

DAYS, EVERY = 30, 120
SAMPLES = (DAYS * 86_400 + 2 * 1_200) // EVERY
"""A month, and 20 minutes before and after it: the report ends when it is called."""
GPUS, PRICE = 4, 2.5
DAY_TOKENS = {"acme": 300_000, "other": 100_000}
"""Output tokens of each tenant in a day, as many as input tokens."""
CONFIG = ["--storage.tsdb.retention.time=90d", "--query.max-samples=50000000"]


def busy(at: int) -> int:
    """Return the streams of the busy server: every other hour has 2."""
    return 2 * (at * EVERY // 3_600 % 2)


def counted(per_day: float) -> Callable[[int], float]:
    """Return a counter that restarts from 0 in the middle of the month."""
    reset = SAMPLES // 2
    return lambda at: per_day * EVERY / 86_400 * (at if at < reset else at - reset)


def history(start: int) -> str:
    """Return two servers of 4 GPUs: one is busy half of the time, the other one is idle."""
    families: dict[str, dict[str, Callable[[int], float]]] = {
        name: {f'{{instance="{one}"{labels}}}': value for one in "ab"}
        for name, labels, value in (
            ("up", "", lambda _: 1),
            ("tokenslo_build_info", "", lambda _: 1),
            ("llm_live_streams", ',model="llama"', lambda _: 0),
        )
    }
    of = 'instance="a",model="llama"'
    families["llm_live_streams"][f"{{{of}}}"] = busy
    whole = sum(DAY_TOKENS.values()) * 1.25  # a fifth is of no tenant
    for direction in ("input", "output"):
        all_of = families.setdefault("llm_tokens_total", {})
        all_of[f'{{{of},direction="{direction}"}}'] = counted(whole)
        tenants = families.setdefault("llm_tenant_tokens_total", {})
        for tenant, tokens in DAY_TOKENS.items():
            labels = f'{of},direction="{direction}",tenant="{tenant}"'
            tenants[f"{{{labels}}}"] = counted(tokens)
    lines = []
    for name, series in families.items():
        lines.append(f"# TYPE {name.removesuffix('_total')} unknown")
        for labels, value in series.items():
            lines += [f"{name}{labels} {value(at)} {start + at * EVERY}" for at in range(SAMPLES)]
    return "\n".join([*lines, "# EOF", ""])


@pytest.fixture(scope="module")
def url(prometheus_with: Callable[..., Prometheus]) -> Iterator[str]:
    start = int(time.time()) - DAYS * 86_400 - 1_200
    with prometheus_with(history(start), CONFIG) as server:
        yield server.url


def reported(url: str, capsys: pytest.CaptureFixture[str], *options: str) -> str:
    prices = ("--gpu-hour-price", str(PRICE), "--gpus-per-server", str(GPUS))
    with pytest.raises(SystemExit) as ended:
        main(["report", "--prometheus", url, "--days", str(DAYS), *prices, *options])
    printed = capsys.readouterr()
    assert ended.value.code in (0, None), printed.err
    return printed.out


def test_tenants_and_idle_add_up_to_the_gpu_hours(
    url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    made = json.loads(reported(url, capsys, "--json"))
    hours = 2 * GPUS * DAYS * 24
    assert made["total"]["gpu_hours"] == pytest.approx(hours, rel=1e-3)
    assert made["total"]["cost"] == pytest.approx(hours * PRICE, rel=1e-3)
    parts = [row["cost"] for row in made["tenants"]]
    parts += [made["idle"]["cost"], made["residual"]["cost"]]
    assert sum(parts) == pytest.approx(made["total"]["cost"], rel=1e-9)
    assert made["residual"]["cost"] == pytest.approx(0, abs=1e-6)
    # One server is idle, and the other one half of the time.
    assert made["idle"]["gpu_hours"] == pytest.approx(hours * 3 / 4, rel=5e-3)


def test_tenants_have_their_tokens_and_share(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    made = json.loads(reported(url, capsys, "--json"))
    rows = {row["tenant"]: row for row in made["tenants"]}
    allocated = sum(row["gpu_hours"] for row in rows.values())
    shares = {"acme": 0.6, "other": 0.2, None: 0.2}
    assert rows.keys() == shares.keys()
    for tenant, share in shares.items():
        assert rows[tenant]["gpu_hours"] / allocated == pytest.approx(share, rel=1e-3)
    for tenant, tokens in DAY_TOKENS.items():
        # The reset hides the increase between two samples.
        assert rows[tenant]["tokens"]["output"] == pytest.approx(DAYS * tokens, rel=2e-3)


def test_the_formats_have_the_same_cost(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    cost = 2 * GPUS * DAYS * 24 * PRICE
    rows = [*csv.DictReader(io.StringIO(reported(url, capsys, "--csv")))]
    (total,) = [row for row in rows if row["kind"] == "total"]
    assert float(total["cost"]) == pytest.approx(cost, rel=1e-3)
    parts = [float(row["cost"]) for row in rows if row["kind"] != "total"]
    assert sum(parts) == pytest.approx(float(total["cost"]), abs=0.05)
    assert "acme" in reported(url, capsys, "--html")
