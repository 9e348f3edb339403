"""Parse Triton's trace settings: the share of requests that are traced."""

from __future__ import annotations

import re
from dataclasses import dataclass

from exporter.samples import SourceError

PATH = "/v2/trace/setting"
START = (
    "start Triton with --trace-config mode=opentelemetry, level=TIMESTAMPS and rate=1, and with "
    "opentelemetry,url= set to the address of --otlp-traces and /v1/traces"
)


@dataclass(frozen=True, slots=True)
class TraceSetting:
    """``rate`` N: one request in N is traced; 0: only with a trace context; None: unknown."""

    rate: int | None = None

    @property
    def everything(self) -> bool:
        """Whether every request is traced."""
        return self.rate == 1

    @property
    def note(self) -> str:
        """How requests are sampled; empty if all are traced."""
        if self.rate is None:
            return "the share of traced requests is unknown: set --triton"
        if self.rate == 0:
            return "only requests are traced whose client sends a trace context"
        if self.rate == 1:
            return ""
        return f"1 in {self.rate} requests is traced, and all whose client sends a trace context"


def read_setting(document: object) -> TraceSetting:
    """Parse the response of ``GET /v2/trace/setting``; raises SourceError for unusable settings.

    Numbers are strings there, and the level is a list (Triton's trace extension).
    """
    if not isinstance(document, dict):
        raise SourceError("malformed", f"{PATH} did not answer with settings")
    mode, level, rate = (document.get(f"trace_{key}") for key in ("mode", "level", "rate"))
    if mode != "opentelemetry":
        raise SourceError("setting", f"Triton's trace mode is not opentelemetry; {START}")
    if not isinstance(level, list) or "TIMESTAMPS" not in level:
        raise SourceError("setting", f"Triton's trace level is not TIMESTAMPS; {START}")
    if not isinstance(rate, str) or not re.fullmatch("[0-9]{1,19}", rate):
        return TraceSetting()
    return TraceSetting(int(rate))
