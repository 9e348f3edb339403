"""The showback report as text for a terminal."""

from __future__ import annotations

from collections.abc import Iterator

from slos.text_table import text_table
from usage.allocation import ConsumerShare
from usage.showback import Showback, iso_time, notes, unavailable

HEADINGS = (
    "model", "tenant", "requests", "input", "cached", "output", "wasted", "KV token-s", "GPU-hours",
    "share", "cost", "wasted cost", "per 1M tokens",
)  # fmt: skip
_NAMES = 2
"""Columns of text; the others are numbers."""
NO_TENANT_TEXT = "(none)"


def as_text(report: Showback) -> str:
    """Return the report as lines."""
    return "".join(f"{line}\n" for line in _lines(report))


def _lines(report: Showback) -> Iterator[str]:
    yield summary(report)
    yield report.rules.sentence
    yield ""
    rows = [HEADINGS, *table(report)]
    yield from text_table(rows, right=range(_NAMES, len(HEADINGS)))
    yield ""
    yield reconciliation(report)
    for name, why in unavailable(report):
        yield f"Unavailable: {name}: {why}."
    for note in notes(report):
        yield f"Note: {note}"


def summary(report: Showback) -> str:
    """State the period, its coverage and the GPU-hours."""
    period = report.period
    return (
        f"{iso_time(period.start)} to {iso_time(period.end)}, coverage {report.coverage:.1%}: "
        f"{len(period.servers)} servers of {report.gpus_per_server:g} GPUs, "
        f"{report.allocation.gpu_hours:,.1f} GPU-hours at {report.rules.price:g}"
    )


def reconciliation(report: Showback) -> str:
    """State that the parts add up to the total."""
    allocation = report.allocation
    tenants = sum(share.charged_hours for share in allocation.shares)
    parts = (tenants, allocation.idle_hours, allocation.residual_hours, allocation.gpu_hours)
    charged, idle, residual, total = (_money(report.cost(hours)) for hours in parts)
    return f"Tenants {charged} + idle {idle} + residual {residual} = {total}"


def table(report: Showback) -> Iterator[tuple[str, ...]]:
    """Yield the cells of the rows: consumers, idle, residual, total."""
    allocation = report.allocation
    for share in allocation.shares:
        yield _consumer(report, share)
    for name, hours, wasted in (
        ("idle", allocation.idle_hours, None),
        ("residual", allocation.residual_hours, None),
        ("total", allocation.gpu_hours, allocation.wasted_hours),
    ):
        waste = "" if wasted is None else _money(report.cost(wasted))
        yield (name, *("",) * 7, *_part(report, hours), waste, "")


def _consumer(report: Showback, share: ConsumerShare) -> tuple[str, ...]:
    used, per_million = share.usage, report.per_million(share)
    kv_token_seconds = report.kv_token_seconds(share)
    counts = (used.requests, used.input, used.cached_input, used.output, used.wasted)
    return (
        share.consumer.model,
        share.consumer.tenant or NO_TENANT_TEXT,
        *(f"{count:,.0f}" for count in counts),
        "-" if kv_token_seconds is None else f"{kv_token_seconds:,.0f}",
        *_part(report, share.charged_hours),
        _money(report.cost(share.wasted_hours)),
        "-" if per_million is None else _money(per_million),
    )


def _part(report: Showback, hours: float) -> tuple[str, str, str]:
    return f"{hours:,.1f}", f"{report.share(hours):.1%}", _money(report.cost(hours))


def _money(amount: float) -> str:
    text = f"{amount:,.2f}"
    return "0.00" if text == "-0.00" else text
