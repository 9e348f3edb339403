"""The reason why a signal has no value, and the fix."""

from __future__ import annotations

from collections.abc import Mapping

from exporter.sources.unavailable import with_a_tap
from exporter.store.signal_record import SignalRecord
from exporter.store.source_health import SourceHealth

TAPS = "taps"
"""The name of the source of the taps."""


def why_unavailable(
    record: SignalRecord, now: float, sources: Mapping[str, SourceHealth], *, tapped: bool
) -> tuple[str, str, str]:
    """Return reason, fix, and the constant part of the reason.

    They are the source's own, unless its last measurement is stale.
    """
    stale = [last for last in record.methods.values() if last.current]
    if stale:
        last = max(stale, key=lambda one: one.at)
        missing = record.missing.get(last.source)
        source = sources[last.source]
        reason = f"no successful scrape for {now - last.at:.0f} s"
        why = source.error or (missing.reason if missing else "")
        fix = missing.fix if missing and not source.error else f"see the source {last.source}"
        constant = f"no successful scrape of the source {last.source}"
        return (f"{reason}: {why}" if why else reason), fix, constant
    by_source = sorted(record.missing.items(), key=lambda item: item[0] == TAPS)
    for name, missing in reversed(by_source):  # a tap measures most: its reason comes first
        constant = f"the source {name} cannot be read" if missing.unread else missing.reason
        fix = with_a_tap(missing.fix) if tapped else missing.fix
        return missing.reason, fix, constant
    reason = "the server does not report on this model any more"
    return reason, "load the model", reason
