"""Measure the CPU time of parsing a Triton exposition, next to Python's and Go's parsers.

Run ``python -m bench.exposition`` from the checkout; README.md explains the table.
"""

from __future__ import annotations

import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from bench import programs
from bench.figures import (
    Figure,
    MissingPeer,
    PeerComparison,
    limits,
    median_interval,
    repeat,
)
from exporter.sources.exposition.text_parser import read
from exporter.sources.triton.triton_source import FAMILIES
from lab.toolchain import InstallError, UnavailableProgram

CAPTURES = Path(__file__).parents[1] / "tests/captures"
SIZES = (2_000, 20_000, 100_000)
ROUNDS = 7
COMPARED_SIZES = SIZES[:2]
TARGET_SIZE, TARGET = 20_000, 1 / 15
GO_PEER = "Go"

# Parsers, and whether each body repeats the labels of the previous one.
PEER, NONE = "prometheus_client", "none of them"
PARSERS: dict[str, tuple[bool, Callable[[bytes], object]]] = {
    PEER: (True, lambda body: list(text_string_to_metric_families(body.decode()))),
    "all, labels new": (False, read),
    "all": (True, read),
    "sidecar's, labels new": (False, lambda body: read(body, FAMILIES)),
    "sidecar's": (True, lambda body: read(body, FAMILIES)),
    NONE: (True, lambda body: read(body, ())),
}


def exposition(lines: int) -> str:
    """Return a Triton exposition of about a number of lines.

    The families are those of two captures, one of them with summaries.  Their samples of a model
    are repeated for other models, whose names start with ``NEW_``.
    """
    families: dict[str, str] = {}
    for capture in ("triton_summaries.txt", "triton_traffic.txt"):
        for family in (CAPTURES / capture).read_text().split("# HELP ")[1:]:
            families[family.split(" ", 1)[0]] = family
    each = sum(family.count('model="') for family in families.values())
    once = sum(family.count("\n") for family in families.values()) - each
    copies = (lines - once) // each
    return "".join(
        line.replace('model="', f'model="NEW_{copy:04}_')
        for family in families.values()
        for line in f"# HELP {family}".splitlines(keepends=True)
        for copy in range(copies if 'model="' in line else 1)
    )


def measure(text: str, number: int) -> dict[str, float]:
    """Return the CPU seconds of each parser in a round, in which the parsers alternate."""
    body = text.encode()
    seconds: dict[str, float] = {}
    for place, (name, (same, parser)) in enumerate(PARSERS.items()):
        data = body if same else text.replace("NEW_", f"{number:02}{place}_").encode()
        if same:
            parser(data)
        start = time.process_time()
        parser(data)
        seconds[name] = time.process_time() - start
    return seconds


def go_seconds(program: Path, file: Path) -> float:
    """Return the CPU seconds of a parse in Go."""
    done = subprocess.run([program, file, "1"], check=True, capture_output=True, text=True)
    return int(done.stdout) / 1e9


def figures(long: bool) -> Iterator[Figure]:
    """Compare the reader with both parsers."""
    go, reason = _go_program()
    names = {PEER: f"{PEER} {version(PEER)}", GO_PEER: f"{programs.COMMON} (Go)"}
    if go:
        names[GO_PEER] = f"{programs.COMMON} {programs.expfmt_version()} (Go)"
    else:
        yield MissingPeer("parse a Triton exposition", names.pop(GO_PEER), reason)
    for size in SIZES if long else COMPARED_SIZES:
        text = exposition(size)
        lines = text.count("\n")
        for peer, name, ours, theirs in _rounds(text, go, long):
            yield PeerComparison(
                f"{lines:,} lines, families read: {name}",
                names[peer],
                "ms of CPU",
                [1e3 * each for each in ours],
                [1e3 * each for each in theirs],
                TARGET if (peer, size) == (PEER, TARGET_SIZE) else None,
            )


def _go_program() -> tuple[Path | None, str]:
    try:
        return programs.expfmt(), ""
    except (InstallError, UnavailableProgram) as error:
        return None, str(error)


def _rounds(
    text: str, go: Path | None, long: bool
) -> Iterator[tuple[str, str, Sequence[float], Sequence[float]]]:
    """Yield the seconds of each of our rows next to those of each peer."""
    rows = [name for name in PARSERS if name not in (PEER, NONE)]
    peers = [PEER, GO_PEER] if go else [PEER]
    numbers = iter(range(10**6))
    with tempfile.NamedTemporaryFile("w") as file:
        file.write(text)
        file.flush()

        def measured() -> Mapping[str, float]:
            seconds = measure(text, next(numbers))
            return seconds | ({GO_PEER: go_seconds(go, Path(file.name))} if go else {})

        rounds = repeat(
            measured,
            lambda done: [
                median_interval(each[row] / each[peer] for each in done)
                for row in rows
                for peer in peers
            ],
            limits(long, most=30, seconds=30),
        )
    for row in rows:
        for peer in peers:
            yield peer, row, [each[row] for each in rounds], [each[peer] for each in rounds]


def main() -> None:
    """Print the table."""
    print(
        f"CPU seconds, least and median of {ROUNDS} rounds; ratio: {PEER} / reader, of the least.\n"
    )
    print(
        f"{'lines':>7}  {'bytes':>10}  {'families read':<22} {'min':>8} {'median':>8} {'ratio':>6}"
    )
    for size in SIZES:
        text = exposition(size)
        rounds = [measure(text, number) for number in range(ROUNDS)]
        seconds = {name: [each[name] for each in rounds] for name in PARSERS}
        for name, taken in seconds.items():
            ratio = min(seconds[PEER]) / min(taken)
            print(
                f"{text.count(chr(10)):>7,}  {len(text.encode()):>10,}  {name:<22} "
                f"{min(taken):>8.4f} {statistics.median(taken):>8.4f} {ratio:>6.1f}"
            )


if __name__ == "__main__":
    main()
