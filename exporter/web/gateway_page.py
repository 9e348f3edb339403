"""The gauges for endpoint pickers, made once per change for ``/metrics`` and ``/gateway``."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

from exporter.families import MetricFamily
from exporter.gateway_names import GatewayMetric
from exporter.samples import Model
from exporter.store.view import SignalState
from exporter.web import gateway
from exporter.web.text_format import TextWriter


@dataclass(frozen=True, slots=True)
class _ModelGauges:
    """The gauges of one model: all its states, those that the gauges read, and the series."""

    states: Mapping[str, SignalState]
    read: Mapping[str, SignalState]
    series: tuple[Sequence[gateway.GatewaySeries], ...]


class GatewayPage:
    """Cache the gauges of the models whose states ``current`` returns.

    An endpoint picker scrapes every pod 20 times a second.  The store replaces the states of a
    model whenever one changes or gets stale, so the same object has the same gauges.
    """

    def __init__(
        self,
        current: Callable[[], Mapping[Model, Mapping[str, SignalState]]],
        wanted: Iterable[GatewayMetric],
    ) -> None:
        self._current = current
        self._places = gateway.places(wanted)
        self._writer = TextWriter()
        self._models: dict[Model, _ModelGauges] = {}
        self._families: tuple[MetricFamily, ...] | None = ()
        self._text: bytes | None = b""

    def update(self) -> None:
        """Compute the gauges of the models whose states have changed."""
        if not self._places:
            return
        models: dict[Model, _ModelGauges] = {}
        for model, states in self._current().items():
            before = self._models.get(model)
            if before and before.states is states:
                models[model] = before
                continue
            read = {key: one for key, one in states.items() if key in gateway.SIGNALS_READ}
            if before and before.read == read:
                series = before.series
            else:
                series = gateway.model_series(model, read, self._places)
                self._families = self._text = None
            models[model] = _ModelGauges(states, read, series)
        if models.keys() != self._models.keys():
            self._families = self._text = None
        self._models = models

    def families(self) -> tuple[MetricFamily, ...]:
        """Return the gauges that are available."""
        self.update()
        if self._families is None:
            found = [model.series for model in self._models.values()]
            self._families = tuple(
                gateway.family(metric, of_metric, series)
                for column, (metric, of_metric) in enumerate(self._places.items())
                if (series := tuple(chain.from_iterable(by_metric[column] for by_metric in found)))
            )
        return self._families

    def render(self) -> bytes:
        """Return the gauges as Prometheus text 0.0.4."""
        families = self.families()
        if self._text is None:
            self._text = self._writer.render(families, openmetrics=False)
        return self._text
