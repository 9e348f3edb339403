"""A fuzz target: a parser, and the seeds of its corpus."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

CORPUS = Path(__file__).parent / "corpus"
CAPTURES = Path(__file__).parents[1] / "captures"


@dataclass(frozen=True, slots=True)
class FuzzTarget:
    """A parser of untrusted input; ``run`` feeds it with any bytes, and raises for a defect.

    Refusing an input is the documented exception of the parser, and no defect.
    """

    name: str
    run: Callable[[bytes], None]
    captured: Callable[[], Sequence[bytes]] = tuple
    examples: int = 200
    """Examples of one round of ``make fuzz``; the time is checked between rounds."""

    def seeds(self) -> list[bytes]:
        """Return the recorded inputs and the files of the corpus."""
        files = sorted((CORPUS / self.name).glob("*"))
        return [*self.captured(), *(file.read_bytes() for file in files)]


def captures(pattern: str) -> list[bytes]:
    """Return the beginning of each recorded file."""
    return [file.read_bytes()[:8192] for file in sorted(CAPTURES.glob(pattern))]
