"""The gauges for endpoint pickers, made once per change for ``/metrics`` and ``/gateway``."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from exporter.families import MetricFamily
from exporter.gateway_names import GatewayMetric
from exporter.store.view import SignalState, View
from exporter.web import gateway
from exporter.web.text_format import TextWriter


class GatewayPage:
    """Cache the gauges of the signals that ``current`` returns.

    An endpoint picker scrapes every pod 20 times a second.  The store replaces a state whenever its
    value changes or gets stale, so equal states have the same gauges.
    """

    def __init__(
        self, current: Callable[[], Sequence[SignalState]], wanted: Sequence[GatewayMetric]
    ) -> None:
        self._current = current
        self._wanted = wanted
        self._writer = TextWriter()
        self._states: Sequence[SignalState] = ()
        self._families: tuple[MetricFamily, ...] = ()
        self._text: bytes | None = b""

    def families(self) -> tuple[MetricFamily, ...]:
        """Return the gauges that are available."""
        states = self._current()
        if states != self._states:
            view = View(tuple(states), sources=(), models=(), engine_stats_age={})
            found = gateway.families(view, self._wanted)
            self._states = states
            self._families = tuple(family for family in found if family.series)
            self._text = None
        return self._families

    def render(self) -> bytes:
        """Return the gauges as Prometheus text 0.0.4."""
        families = self.families()
        if self._text is None:
            self._text = self._writer.render(families, openmetrics=False)
        return self._text
