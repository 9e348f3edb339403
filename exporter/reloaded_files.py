"""Rebuild a value when the files that it was built from change."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Generic, TypeVar

from exporter.log import LOG, ProblemLog
from slos.errors import InvalidFile

T = TypeVar("T")
_Stamps = dict[str, tuple[int, ...]]


class ReloadedFiles(Generic[T]):
    """A ``value`` that ``make`` builds from the files ``files(value)``, and rebuilds.

    If a rebuild fails, the error is logged, ``value`` stays, and the next refresh retries.
    """

    def __init__(self, make: Callable[[], T], files: Callable[[T], Sequence[str]]) -> None:
        self._make = make
        self._files = files
        self._problem_log = ProblemLog()
        self._failed = False
        self.value = make()
        self._stamps: _Stamps = {}
        # Stamps are taken before the value is built, so that no change in between is missed.
        while (stamps := self._stamp()) != self._stamps:
            self._stamps = stamps
            self.value = make()

    def refresh(self, now: float) -> None:
        """Rebuild the value if files changed since the last call."""
        stamps = self._stamp()
        if stamps == self._stamps and not self._failed:
            return
        self._stamps = stamps
        names = " and ".join(stamps)
        what = f"reloading {names}"
        try:
            self.value = self._make()
        except InvalidFile as invalid:
            self._failed = True
            why = f"{invalid.problems[0]} (the previous files stay in use)"
            self._problem_log.failed(what, why, now)
            return
        self._failed = False
        self._problem_log.recovered(what, now)
        LOG.info("files were reloaded: %s", names)

    def _stamp(self) -> _Stamps:
        return {file: _stamp(file) for file in self._files(self.value) if file}


def _stamp(file: str) -> tuple[int, ...]:
    """Return a stamp that changes when a file is written, replaced or linked elsewhere."""
    try:
        found = Path(file).stat()
    except OSError:
        return ()
    return found.st_dev, found.st_ino, found.st_mtime_ns, found.st_size
