"""Measure one bench and print its figures as JSON lines: ``python -m bench.run NAME [--long]``.

What the bench itself prints goes to standard error.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import redirect_stdout
from dataclasses import dataclass
from importlib import import_module

from bench.figures import Figure, as_json


@dataclass(frozen=True, slots=True)
class BenchEntry:
    """A bench of the page: its title, a text for readers, and its function of figures."""

    title: str
    text: str
    module: str
    function: str = "figures"

    def figures(self, *, long: bool) -> Iterator[Figure]:
        """Measure; the modules are loaded here, as each bench runs in a process of its own."""
        measure: Callable[[bool], Iterator[Figure]] = getattr(
            import_module(self.module), self.function
        )
        return measure(long)


_AGES = (
    "Tokens flow at a fixed rate from a server to clients on this machine. CPU is the time of the "
    "forwarding process per token, by the scheduler; a token's text is its time of sending, so "
    "that clients measure its age."
)
_GROWTH = (
    "The slope is that of the logarithm of cost over that of size, the exponent the same from one "
    "row to the next: 1 is linear."
)

BENCHES: Mapping[str, BenchEntry] = {
    "reader": BenchEntry(
        "Parse an exposition",
        "The sidecar's parser reads recordings of a real Triton with copies of their models. "
        "Repeated scrapes have labels that were seen before; with `labels new` none was. CPU "
        "time of one thread for Python, of all threads for Go.",
        "bench.exposition",
    ),
    "proxy": BenchEntry(
        "Forward tokens through the proxy tap",
        f"{_AGES} Each gateway has one worker and forwards without buffering.",
        "bench.taps",
        "proxy_figures",
    ),
    "capture": BenchEntry(
        "Watch tokens with the capture tap",
        f"{_AGES} The capture tap is not on the path: its CPU time is that of watching.",
        "bench.taps",
        "capture_figures",
    ),
    "scraped-proxy": BenchEntry(
        "Forward tokens during scrapes",
        "The proxy tap forwards tokens while its sidecar is scraped, and while it is not.",
        "bench.taps",
        "scraped_figures",
    ),
    "memory": BenchEntry(
        "Memory",
        "Proportional set size (Pss): shared pages count once. The peer's limit is the one in the "
        "values of its Helm chart; the target is 50, 64 and 90 MiB as a share of it.",
        "bench.taps",
        "memory_figures",
    ),
    "scrape": BenchEntry(
        "Read and serve many models",
        "The sidecar reads a Triton server every second and is scraped about as often, as "
        "OpenMetrics with gzip. The peer renders the same families and does nothing else.",
        "bench.scrape",
    ),
    "gateway": BenchEntry(
        "Serve endpoint pickers during scrapes",
        "Three endpoint pickers request the gauges of the gateway 20 times a second each, while "
        "everything is scraped every second, as by a Prometheus, and then without a pause, which "
        "is harsher. Only responses that overlap a scrape count.",
        "bench.gateway",
    ),
    "rules": BenchEntry(
        "Size and cost of rules",
        "Rules as Sloth and Pyrra themselves generate them for the same SLO over 30 days, and "
        "ours. `-o` is Sloth without its optimisation, `-n` Pyrra with native histograms. Samples "
        "are counted by a real Prometheus. Values do not vary, so they have no spread.",
        "bench.rules",
    ),
    "evaluation": BenchEntry(
        "Evaluate rules in a real Prometheus",
        "CPU time of the whole Prometheus process for the rules of 50 objectives, each tool's for "
        "a whole number of its intervals. A default run has one round, without a spread; a long "
        "run has more.",
        "bench.evaluation",
    ),
    "generate": BenchEntry(
        "Generate 1,000 SLOs",
        "The same SLOs for both tools. Sloth writes rules; `everything` is also promtool's tests, "
        "the dashboard and runbooks.",
        "bench.generate",
    ),
    "startup": BenchEntry(
        "Start the command line",
        "CPU time of a process, next to one that only imports the library of the command line.",
        "bench.startup",
    ),
    "growth": BenchEntry(
        "Growth of the sidecar",
        "CPU time of a round, and memory that the work holds after it, each size in a process of "
        f"its own. {_GROWTH} Of models, the sidecar reports at most 256.",
        "bench.growth",
    ),
    "command-growth": BenchEntry(
        "Growth of commands",
        "CPU time and the peak of resident memory of a process, less those of the same command "
        f"with `--help`. {_GROWTH}",
        "bench.command_growth",
    ),
}


def main(arguments: list[str] | None = None) -> None:
    """Print each figure as soon as it is measured."""
    parser = argparse.ArgumentParser(prog="python -m bench.run", description=__doc__)
    parser.add_argument("bench", choices=BENCHES)
    parser.add_argument("--long", action="store_true", help="more rounds and larger inputs")
    given = parser.parse_args(arguments)
    figures_output = sys.stdout
    with redirect_stdout(sys.stderr):
        for figure in BENCHES[given.bench].figures(long=given.long):
            print(as_json(figure), file=figures_output, flush=True)


if __name__ == "__main__":
    main()
