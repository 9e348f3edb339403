"""Measure the CPU time of parsing a Triton exposition, next to prometheus_client's parser.

Run ``python -m bench.exposition`` from the checkout; README.md explains the table.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from exporter.sources.exposition.text_parser import read
from exporter.sources.triton.triton_source import FAMILIES

CAPTURES = Path(__file__).parents[1] / "tests/captures"
SIZES = (2_000, 20_000, 100_000)
ROUNDS = 7

# Parsers, and whether each body repeats the labels of the previous one.
PEER = "prometheus_client"
PARSERS: dict[str, tuple[bool, Callable[[bytes], object]]] = {
    PEER: (True, lambda body: list(text_string_to_metric_families(body.decode()))),
    "all, labels new": (False, read),
    "all": (True, read),
    "sidecar's, labels new": (False, lambda body: read(body, FAMILIES)),
    "sidecar's": (True, lambda body: read(body, FAMILIES)),
    "none of them": (True, lambda body: read(body, ())),
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


def measure(text: str) -> dict[str, list[float]]:
    """Return the CPU seconds of every round, by parser; the parsers alternate in each round."""
    body = text.encode()
    seconds: dict[str, list[float]] = {name: [] for name in PARSERS}
    for number in range(ROUNDS):
        for place, (name, (same, parser)) in enumerate(PARSERS.items()):
            data = body if same else text.replace("NEW_", f"{number:02}{place}_").encode()
            if same:
                parser(data)
            start = time.process_time()
            parser(data)
            seconds[name].append(time.process_time() - start)
    return seconds


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
        seconds = measure(text)
        for name, taken in seconds.items():
            ratio = min(seconds[PEER]) / min(taken)
            print(
                f"{text.count(chr(10)):>7,}  {len(text.encode()):>10,}  {name:<22} "
                f"{min(taken):>8.4f} {statistics.median(taken):>8.4f} {ratio:>6.1f}"
            )


if __name__ == "__main__":
    main()
