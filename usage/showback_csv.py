"""The showback report as CSV: one row for each tenant and model, then idle, residual and total."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator

from usage.allocation import ConsumerShare
from usage.showback import Showback

COLUMNS = (
    "kind", "model", "tenant", "requests", "input_tokens", "cached_input_tokens", "output_tokens",
    "wasted_tokens", "input_quality", "cached_input_quality", "output_quality", "wasted_quality",
    "gpu_hours", "wasted_gpu_hours", "idle_gpu_hours", "cost", "wasted_cost", "idle_cost",
    "cost_per_million_tokens", "kv_token_seconds", "kv_token_seconds_quality",
)  # fmt: skip
"""``kind`` is tenant, no_tenant, idle, residual or total; all others add up to total."""
_FORMULA = ("=", "+", "-", "@", "\t", "\r")


def as_csv(report: Showback) -> str:
    """Return the rows; a spreadsheet executes no tenant as a formula."""
    file = io.StringIO()
    writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(_rows(report))
    return file.getvalue()


def _rows(report: Showback) -> Iterator[dict[str, str]]:
    allocation = report.allocation
    for share in allocation.shares:
        yield _consumer(report, share)
    for kind, hours in (
        ("idle", allocation.idle_hours),
        ("residual", allocation.residual_hours),
        ("total", allocation.gpu_hours),
    ):
        yield {"kind": kind, "gpu_hours": _number(hours), "cost": _number(report.cost(hours))}


def _consumer(report: Showback, share: ConsumerShare) -> dict[str, str]:
    used, consumer = share.usage, share.consumer
    per_million, kv_token_seconds = report.per_million(share), report.kv_token_seconds(share)
    return {
        "kind": "tenant" if consumer.tenant else "no_tenant",
        "model": _text(consumer.model),
        "tenant": _text(consumer.tenant),
        "requests": f"{used.requests:.0f}",
        "input_tokens": f"{used.input:.0f}",
        "cached_input_tokens": f"{used.cached_input:.0f}",
        "output_tokens": f"{used.output:.0f}",
        "wasted_tokens": f"{used.wasted:.0f}",
        **{f"{key}_quality": value for key, value in report.qualities(consumer.model).items()},
        "gpu_hours": _number(share.charged_hours),
        "wasted_gpu_hours": _number(share.wasted_hours),
        "idle_gpu_hours": _number(share.idle_hours),
        "cost": _number(report.cost(share.charged_hours)),
        "wasted_cost": _number(report.cost(share.wasted_hours)),
        "idle_cost": _number(report.cost(share.idle_hours)),
        "cost_per_million_tokens": "" if per_million is None else _number(per_million),
        "kv_token_seconds": "" if kv_token_seconds is None else f"{kv_token_seconds:.0f}",
    }


def _text(name: str) -> str:
    return f"'{name}" if name.startswith(_FORMULA) else name


def _number(value: float) -> str:
    return f"{value:.6f}"
