"""Reasons and fixes for unavailable signals, added to a source's measurements."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache

from exporter.samples import Measurement, Missing, Model
from slos.signals import MAIN_SIGNALS

OBSERVE = (
    "observe the streams: give the sidecar --tap proxy=:9000=127.0.0.1:8000 and send clients to "
    "port 9000, or --tap capture=eth0:8000 where it may have CAP_NET_RAW"
)
REQUEST_TIMING = (
    "with TensorRT-LLM's backends let a tap request it from the engine: --tap "
    "proxy=:9000=127.0.0.1:8000 --tap-inject perf-metrics, and send clients to port 9000"
)
_WITH_A_TAP = {
    OBSERVE: "send the requests of this model through the sidecar's tap",
    REQUEST_TIMING: "with TensorRT-LLM's backends let the tap request it from the engine: give "
    "the sidecar --tap-inject perf-metrics",
}


@dataclass(frozen=True, slots=True)
class Unavailable:
    """The reason for an unavailable signal, and the fix.

    ``never``: this kind of model never has the signal.  ``unread``: a part of the source could not
    be read this time.
    """

    reason: str
    fix: str
    never: bool = False
    unread: bool = False

    def missing(self, signal: str, model: Model) -> Missing:
        """Return the entry for one signal of one model."""
        if self.unread:
            return Missing(signal, *model, self.reason, self.fix, unread=True)
        return known_missing(signal, *model, self.reason, self.fix)


@lru_cache(maxsize=65_536)
def known_missing(signal: str, model: str, version: str, reason: str, fix: str) -> Missing:
    """Return the same object for the same arguments: they hardly change between scrapes."""
    return Missing(signal, model, version, reason, fix)


TAP_SIGNALS = (
    "itl_normalized",
    "streams",
    "live_streams",
    "disconnects",
    "disconnect_age",
    "disconnect_release",
    "wasted_tokens",
    "partial_tokens",
    "kv_token_seconds",
    "suspected_retries",
    "client_backpressure",
    "goodput",
)
"""Signals that only an observer of the streams can measure."""
NEEDS_TAP = Unavailable(
    "server metrics do not show single streams and their clients", OBSERVE, never=True
)
LORA = Unavailable(
    "only vLLM publishes which LoRA adapters have requests", "none with this server", never=True
)


def with_a_tap(fix: str) -> str:
    """Return a fix in the wording for a sidecar that has a tap."""
    for without, with_ in _WITH_A_TAP.items():
        fix = fix.replace(without, with_)
    return fix


def refuse(signals: Iterable[str], model: Model, reason: str, fix: str) -> Iterator[Missing]:
    """Yield an entry with the same reason and fix for each signal of a model."""
    return (Missing(signal, *model, reason, fix) for signal in signals)


def _none_known(_: Model, __: frozenset[str]) -> None:
    return None


def with_missing_signals(
    found: Iterable[Measurement | Missing],
    models: Iterable[Model],
    why: Callable[[Model, str], Missing | None],
    known: Callable[[Model, frozenset[str]], Iterable[Missing] | None] = _none_known,
) -> tuple[tuple[Measurement, ...], tuple[Missing, ...]]:
    """Separate measurements from unavailable signals, and add those that have no entry yet.

    For every signal of every model without a measurement, the first reason in ``found`` counts;
    otherwise ``why`` returns it, or None to leave the signal out.  Of models without a reason in
    ``found``, ``known`` may return all that is missing beside the measured signals.
    """
    measurements: list[Measurement] = []
    given: dict[Model, set[str]] = {}
    refused: dict[Model, dict[str, Missing]] = {}
    for item in found:
        model = (item.model, item.version)
        if isinstance(item, Measurement):
            measurements.append(item)
            given.setdefault(model, set()).add(item.signal)
        else:
            refused.setdefault(model, {}).setdefault(item.signal, item)
    missing: list[Missing] = []
    for model in models:
        measured, reasons = frozenset(given.get(model, ())), refused.get(model, {})
        if not reasons and (entries := known(model, measured)) is not None:
            missing.extend(entries)
            continue
        missing.extend(
            entry
            for signal in MAIN_SIGNALS
            if signal not in measured and (entry := reasons.get(signal) or why(model, signal))
        )
    return tuple(measurements), tuple(missing)
