"""The allocation of GPU-hours: it reconciles, and charges idle time to no tenant."""

from __future__ import annotations

from math import fsum

import pytest
from hypothesis import given
from hypothesis import strategies as st

from usage.allocation import CostAllocation, ServerUsage, allocate
from usage.token_usage import Consumer, TenantTokens, TokenWeights

COUNTS = st.floats(0, 1e12)
HOURS = st.floats(0, 1e5)
CONSUMERS = st.builds(Consumer, st.sampled_from(("a", "b")), st.sampled_from(("", "x", "y")))
USAGE = st.builds(TenantTokens, COUNTS, COUNTS, COUNTS, COUNTS, COUNTS)
WEIGHT = st.sampled_from((0.0, 0.1, 1.0, 4.0))
WEIGHTS = st.builds(TokenWeights, WEIGHT, WEIGHT, WEIGHT)


@st.composite
def servers(draw: st.DrawFn) -> ServerUsage:
    busy, idle, unknown = draw(HOURS), draw(HOURS), draw(HOURS)
    served = draw(st.dictionaries(CONSUMERS, USAGE, max_size=4))
    return ServerUsage("s", busy + idle + unknown, busy, idle, served)


def parts(found: CostAllocation) -> list[float]:
    charged = [share.charged_hours for share in found.shares]
    return [*charged, found.idle_hours, found.residual_hours]


@given(st.lists(servers(), max_size=4), WEIGHTS, st.booleans())
def test_tenants_idle_and_residual_add_up_and_none_is_negative(
    given_servers: list[ServerUsage], weights: TokenWeights, spread: bool
) -> None:
    found = allocate(given_servers, weights, spread_idle=spread)
    assert fsum(parts(found)) == pytest.approx(found.gpu_hours, rel=1e-9, abs=1e-9)
    assert found.gpu_hours == fsum(one.gpu_hours for one in given_servers)
    assert min(parts(found)) >= 0
    for share in found.shares:
        assert 0 <= share.wasted_hours <= share.gpu_hours * (1 + 1e-9)
        assert min(share.gpu_hours, share.idle_hours, share.weighted_tokens) >= 0


@given(st.lists(servers(), max_size=4), WEIGHTS)
def test_no_tenant_is_charged_for_idle_hours_unless_they_are_spread(
    given_servers: list[ServerUsage], weights: TokenWeights
) -> None:
    separate = allocate(given_servers, weights)
    assert separate.idle_hours == fsum(one.idle_hours for one in given_servers)
    assert all(share.idle_hours == 0 for share in separate.shares)
    spread = allocate(given_servers, weights, spread_idle=True)
    assert [one.gpu_hours for one in spread.shares] == [one.gpu_hours for one in separate.shares]


def test_busy_hours_are_divided_by_weighted_tokens_on_each_server() -> None:
    x, y = Consumer("llama", "x"), Consumer("llama", "y")
    one = ServerUsage(
        "1", 10, 6, 4, {x: TenantTokens(1, 100, 100, 10, 15), y: TenantTokens(1, 90, 0, 25)}
    )
    two = ServerUsage("2", 5, 5, 0, {y: TenantTokens(1, 1)})
    found = allocate([one, two], TokenWeights(1, 0.1, 4))
    # x: 0.1 * 100 + 4 * (10 + 15) = 110; y: 90 + 4 * 25 = 190.
    shares = {share.consumer: share for share in found.shares}
    assert shares[x].gpu_hours == pytest.approx(6 * 110 / 300)
    assert shares[x].wasted_hours == pytest.approx(6 * 60 / 300)
    assert shares[y].gpu_hours == pytest.approx(6 * 190 / 300 + 5)
    assert (found.idle_hours, found.residual_hours) == (4, 0)


def test_busy_hours_without_tokens_and_unmeasured_hours_are_the_residual() -> None:
    found = allocate([ServerUsage("1", 10, 6, 3, {})], TokenWeights(), spread_idle=True)
    assert (found.residual_hours, found.idle_hours, found.shares) == (7, 3, ())


def test_spread_idle_hours_follow_the_allocated_ones() -> None:
    x, y = Consumer("llama", "x"), Consumer("llama", "y")
    served = {x: TenantTokens(output=3), y: TenantTokens(output=1)}
    found = allocate([ServerUsage("1", 12, 4, 8, served)], TokenWeights(), spread_idle=True)
    assert [share.charged_hours for share in found.shares] == [9, 3]
    assert found.idle_hours == 0
