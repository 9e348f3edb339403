"""The recorded state of a request that has not ended."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from exporter.protocol.events import Stream
from exporter.recording.model_metrics import ModelMetrics
from exporter.recording.slo_evaluation import SloEvaluation
from exporter.recording.token_histograms import TokenHistograms


@dataclass(slots=True)
class ActiveRequest:
    """An active request of a model.

    * ``histograms``: the histograms of its tokens: its model's or, after the client's FIN, its own.
    * ``at_fin``: a copy of the stream at the client's FIN.
    * ``blocked``: the client does not read.
    * ``seen_until``: returns the time up to which the tap has seen all bytes.
    * ``late``: the last chunk was read late.
    """

    model: ModelMetrics
    histograms: TokenHistograms | None
    at_fin: Stream | None = None
    blocked: bool = False
    late: bool = False
    tenant: str = ""
    seen_until: Callable[[], float] | None = None
    evaluation: SloEvaluation = field(default_factory=SloEvaluation)

    def merge_after_fin(self, stream: Stream) -> None:
        """Merge the chunks after the client's FIN with the others: it was not a disconnect."""
        if self.at_fin is not None and self.histograms:
            histograms = self.model.token_histograms(self.evaluation.prompt_class or "")
            histograms.add(self.histograms)
            self.histograms = histograms
            if self.at_fin.chunks < stream.chunks:
                self.evaluation.resolve_pending_gap(self.model)
        self.at_fin = None
