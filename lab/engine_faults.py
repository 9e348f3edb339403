"""Faults of a running engine, read from a JSON file while it runs."""

from __future__ import annotations

import json
import time
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Literal, get_args

Answers = Literal["normal", "empty", "garbage"]


@dataclass(frozen=True, slots=True)
class EngineFaults:
    """Faults of an engine; the defaults are those of a healthy one.

    A ``stalled`` engine iterates no more, while its process and its gauges stay.  ``step_factor``
    multiplies the duration of iterations, ``prefill_factor`` that of prompt tokens.  ``fail_share``
    of new requests fail, half of them before their first token.  New requests get ``answers``:
    empty ones end after one token without text, garbage has its normal length.  ``kv_blocks``
    replaces the size of the KV cache; running sequences of ``guaranteed_no_evict`` keep theirs.
    With ``ignore_cancel`` the engine does not honour cancellations.  ``crash`` kills the process.

    A model that is being loaded waits for ``load_seconds`` first, and fails with ``load_error``
    if that is not empty.  A stage of an ensemble takes ``stage_seconds`` for each request.
    """

    stalled: bool = False
    step_factor: float = 1.0
    prefill_factor: float = 1.0
    fail_share: float = 0.0
    answers: Answers = "normal"
    kv_blocks: int | None = None
    ignore_cancel: bool = False
    crash: bool = False
    load_seconds: float = 0.0
    load_error: str = ""
    stage_seconds: float = 0.0

    def __post_init__(self) -> None:
        if self.answers not in get_args(Answers):
            raise ValueError(f"answers {self.answers!r} is none of {', '.join(get_args(Answers))}")
        if min(self.step_factor, self.prefill_factor) <= 0:
            raise ValueError("step_factor and prefill_factor must be positive")
        if not 0 <= self.fail_share <= 1 or min(self.load_seconds, self.stage_seconds) < 0:
            raise ValueError("fail_share must be 0 to 1, load_ and stage_seconds not negative")
        if self.kv_blocks is not None and self.kv_blocks < 1:
            raise ValueError("kv_blocks must be at least 1")


HEALTHY = EngineFaults()


class FaultsFile:
    """A file of faults; without a path, and while the file is missing, the engine is healthy."""

    def __init__(self, path: str) -> None:
        self._path = Path(path) if path else None
        self._version: tuple[int, int] | None = None
        self._faults = HEALTHY

    def __bool__(self) -> bool:
        return self._path is not None

    def read(self) -> EngineFaults:
        """Return the current faults; raises ValueError if the file is invalid."""
        if self._path is None:
            return HEALTHY
        try:
            found = self._path.stat()
        except FileNotFoundError:
            self._version, self._faults = None, HEALTHY
            return HEALTHY
        version = (found.st_ino, found.st_mtime_ns)
        if version != self._version:
            self._faults = _parse(self._path.read_text(), str(self._path))
            self._version = version
        return self._faults


def write_faults(path: Path, faults: EngineFaults) -> None:
    """Write a file of faults, as a whole."""
    new = path.with_name(path.name + ".new")
    new.write_text(json.dumps(asdict(faults)))
    new.rename(path)


def simulate_load(path: str) -> None:
    """Delay the load of a model, or raise RuntimeError, as its faults file has it."""
    faults = FaultsFile(path).read()
    time.sleep(faults.load_seconds)
    if faults.load_error:
        raise RuntimeError(faults.load_error)


def _parse(text: str, path: str) -> EngineFaults:
    given: Any = json.loads(text)
    unknown = set(given) - {field.name for field in fields(EngineFaults)}
    if unknown:
        raise ValueError(f"{path}: {', '.join(sorted(unknown))} is no fault")
    return EngineFaults(**given)
