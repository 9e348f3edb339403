"""The histograms that record every token."""

from __future__ import annotations

from exporter.recording.metric_recorder import Histogram


class TokenHistograms:
    """Time to first token, inter-token latency, and that normalized to one token."""

    __slots__ = ("itl", "itl_normalized", "ttft")

    def __init__(self, ttft: Histogram, itl: Histogram, itl_normalized: Histogram) -> None:
        self.ttft = ttft
        self.itl = itl
        self.itl_normalized = itl_normalized

    def empty(self) -> TokenHistograms:
        """Return empty histograms with the same boundaries."""
        return TokenHistograms(*(Histogram(one.boundaries) for one in self._all()))

    def add(self, other: TokenHistograms) -> None:
        """Add the observations of other histograms."""
        for mine, theirs in zip(self._all(), other._all(), strict=True):
            mine.add(theirs)

    def _all(self) -> tuple[Histogram, Histogram, Histogram]:
        return self.ttft, self.itl, self.itl_normalized
