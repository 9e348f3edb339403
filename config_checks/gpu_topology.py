"""Read the matrix of ``nvidia-smi topo -m``: how each pair of GPUs is connected."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import combinations

from documents.files import Flaw, UnreadableText

_GPU = re.compile(r"GPU(\d+)")
_COLORS = re.compile(r"\x1b\[[0-9;]*m")


@dataclass(frozen=True, slots=True)
class GpuTopology:
    """Links (``NV4``, ``PHB``, ``SYS``) by pair of GPUs, the smaller index first."""

    file: str
    links: Mapping[tuple[int, int], str]
    lines: Mapping[int, int]

    def not_nvlink(self, gpus: Iterable[int]) -> list[tuple[int, int, str]]:
        """Return the pairs of a group that NVLink does not connect; unknown pairs are left out."""
        pairs = combinations(sorted(set(gpus)), 2)
        found = ((a, b, self.links.get((a, b), "")) for a, b in pairs)
        return [(a, b, link) for a, b, link in found if link and not link.startswith("NV")]


def parse_topology(text: str, file: str) -> GpuTopology:
    """Parse the matrix; raises :class:`~documents.files.UnreadableText` if there is none."""
    links: dict[tuple[int, int], str] = {}
    lines: dict[int, int] = {}
    columns: list[str] = []
    for number, line in enumerate(_COLORS.sub("", text).splitlines(), start=1):
        words = line.split()
        if not words or not _GPU.fullmatch(words[0]):
            continue
        if not columns:
            columns = [word for word in words if _GPU.fullmatch(word)]
            continue
        own = int(words[0][3:])
        if len(words) <= len(columns):
            fix = "give the unchanged output of nvidia-smi topo -m"
            raise UnreadableText(Flaw(number, f"has a row of {len(words)} columns", fix))
        lines[own] = number
        for column, link in zip(columns, words[1:], strict=False):
            other = int(column[3:])
            if other != own:
                links[min(own, other), max(own, other)] = link
    if not lines:
        fix = "give the output of nvidia-smi topo -m"
        raise UnreadableText(Flaw(0, "has no matrix of GPUs", fix))
    return GpuTopology(file, links, lines)
