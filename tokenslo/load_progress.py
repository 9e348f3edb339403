"""The progress line of ``tokenslo load``: on a terminal only."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import TracebackType
from typing import Self

from loadtest.level import LevelRun
from loadtest.settings import LoadEndpoint
from promql.http_client import public
from slos.terminal_text import terminal_text

_CLEAR = "\r\x1b[K"


class ProgressLine:
    """Shows the running level on standard error if that is a terminal; cleared at the exit."""

    def __init__(self) -> None:
        self._shown = sys.stderr.isatty()

    def __enter__(self) -> Self:
        """Return itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        """Clear the line."""
        self._write("")

    def of(self, endpoint: LoadEndpoint) -> Callable[[LevelRun, float], None]:
        """Return the function that shows a run against an endpoint."""
        server = terminal_text(public(endpoint.url))

        def show(run: LevelRun, now: float) -> None:
            if now < run.begin:
                phase = f"warm-up, {run.begin - now:.0f} s left"
            elif now < run.end:
                phase = f"{run.end - now:.0f} s left"
            else:
                phase = f"waiting for {run.unfinished} requests"
            self._write(f"{server} {run.level}: {len(run.records)} requests ended, {phase}")

        return show

    def _write(self, text: str) -> None:
        if self._shown:
            sys.stderr.write(f"{_CLEAR}{text}")
            sys.stderr.flush()
