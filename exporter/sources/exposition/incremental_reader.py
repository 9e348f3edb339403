"""Read successive expositions of one server: parse only values while the series stay the same.

Between two scrapes of a server the values change, but names and labels rarely do.  So the reader
keeps all lines without their values.  If they are unchanged, only the values are parsed; otherwise
the whole body is.  The work is cut into chunks of 128 KiB, so that the thread does not
hold the interpreter lock for long.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import compress

from exporter.render_gate import RENDER_GATE
from exporter.sources.exposition.text_parser import (
    ParsedFamily,
    RevaluedSamples,
    Sample,
    check_lines,
    read,
)

CHUNK_SIZE = 128 * 1024
_BLANKS = b" \t\r"
SHOWN_SERIES = 200
"""Characters of a series in a message."""

# The last word of a line: the value of a sample, unless it has a timestamp.
_LAST_WORD = re.compile(rb" ([^ \n]*)\n")


@dataclass(frozen=True, slots=True)
class _Layout:
    """An exposition without its values.

    ``heads`` are the lines without their last words.  ``comments`` holds (index, last word)
    of every comment; ``chosen`` marks the last words of wanted samples, and ``families`` holds
    their indices among the chosen ones.
    """

    heads: bytes
    comments: tuple[tuple[int, bytes], ...]
    chosen: bytes
    families: tuple[tuple[ParsedFamily, tuple[int, ...]], ...]


class ExpositionReader:
    """Reads expositions of one server; ``wanted`` are the names of the families to return."""

    def __init__(self, wanted: Collection[str]) -> None:
        self._wanted = wanted
        self._layout: _Layout | None = None

    def read(self, body: bytes) -> dict[str, ParsedFamily]:
        """Return the wanted families by name; raises ExpositionError.

        Of a duplicate series the first value counts, as in Prometheus.  Families
        share their ``cache`` with the last call if no name and no label has changed.
        """
        check_lines(body)
        heads, last_words = _heads_and_values(body)
        if self._layout and heads == self._layout.heads:
            families = _with_values(self._layout, last_words)
            if families is not None:
                return families
        families = read(body, self._wanted)
        indices = _indices(body, last_words, families)
        for name, family in families.items():
            kept = _drop_duplicates(family)
            if indices and kept:
                indices[name] = [indices[name][index] for index in kept]
        self._layout = _layout(body, heads, last_words, families, indices) if indices else None
        return families


def _heads_and_values(body: bytes) -> tuple[bytes, list[bytes]]:
    """Return all lines without their last words, and the last words."""
    heads: list[bytes] = []
    last_words: list[bytes] = []
    for chunk in RENDER_GATE.paced(_chunks(body)):
        parts = _LAST_WORD.split(chunk)
        last_words += parts[1::2]
        heads.append(b" \n".join(parts[::2]))
    return b"".join(heads), last_words


def _chunks(body: bytes) -> Iterator[bytes]:
    start = 0
    while start < len(body):
        end = body.find(b"\n", start + CHUNK_SIZE) + 1 or len(body)
        yield body[start:end]
        start = end


def _with_values(layout: _Layout, last_words: list[bytes]) -> dict[str, ParsedFamily] | None:
    """Return the families with new values, None if not all of these are plain numbers."""
    if len(last_words) != len(layout.chosen) or any(
        last_words[position] != word for position, word in layout.comments
    ):
        return None
    if not b"".join(last_words).isascii():  # lines that are skipped must be UTF-8 as well
        return None
    chosen = list(compress(last_words, layout.chosen))
    if b"_" in b"".join(chosen):  # float() would take 1_000
        return None
    try:
        values = list(map(float, chosen))
    except ValueError:
        return None
    return {
        family.name: ParsedFamily(
            family.name,
            family.type,
            family.help,
            RevaluedSamples(family.samples, list(map(values.__getitem__, indices))),
            family.duplicate,
            family.cache,
        )
        for family, indices in RENDER_GATE.paced(layout.families)
    }


def _indices(
    body: bytes, last_words: list[bytes], families: dict[str, ParsedFamily]
) -> dict[str, list[int]] | None:
    """Return the indices of every family's values among the last words of all lines.

    None if they are ambiguous, for example if a sample has a timestamp.
    """
    owners = {name: family for family in families.values() for name in family.sample_names()}
    indices: dict[str, list[int]] = {name: [] for name in families}
    for position, line in enumerate(line for line in body.split(b"\n") if b" " in line):
        if line.lstrip(_BLANKS).startswith(b"#"):
            continue
        name = line[: min(line.find(b" "), line.find(b"{") % (len(line) + 1))].strip().decode()
        if name in owners:
            indices[owners[name].name].append(position)
    for name, family in families.items():
        if max(indices[name], default=-1) >= len(last_words) or not _matches(
            family.samples, [last_words[position] for position in indices[name]]
        ):
            return None
    return indices


def _layout(
    body: bytes,
    heads: bytes,
    last_words: list[bytes],
    families: dict[str, ParsedFamily],
    indices: dict[str, list[int]],
) -> _Layout:
    comments = [
        (position, line.rpartition(b" ")[2])
        for position, line in enumerate(line for line in body.split(b"\n") if b" " in line)
        if line.lstrip(_BLANKS).startswith(b"#")
    ]
    chosen = bytearray(len(last_words))
    for position in (position for found in indices.values() for position in found):
        chosen[position] = 1
    index = {position: index for index, position in enumerate(compress(range(len(chosen)), chosen))}
    return _Layout(
        heads,
        tuple(comments),
        bytes(chosen),
        tuple(
            (family, tuple(index[position] for position in indices[name]))
            for name, family in families.items()
        ),
    )


def _matches(samples: Sequence[Sample], last_words: list[bytes]) -> bool:
    """Return whether the last words are the values of all samples."""
    try:
        values = list(map(float, last_words))
    except ValueError:
        return False
    # repr(), because NaN is not equal to itself.
    return [repr(value) for _, _, value in samples] == list(map(repr, values))


def _drop_duplicates(family: ParsedFamily) -> list[int]:
    """Keep the first sample of every series; return the indices of those kept, if not all are."""
    series: dict[tuple[str, frozenset[tuple[str, str]]], int] = {}
    for index, (name, labels, _) in enumerate(family.samples):
        if series.setdefault((name, frozenset(labels.items())), index) != index:
            text = ",".join(f'{label}="{value}"' for label, value in labels.items())
            family.duplicate = family.duplicate or f"{name}{{{text}}}"[:SHOWN_SERIES]
    if not family.duplicate:
        return []
    kept = list(series.values())
    family.samples = [family.samples[index] for index in kept]
    return kept
