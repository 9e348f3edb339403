"""Measure CPU of the proxy tap and of nginx by the cores on which they and their peers run.

Run ``python -m bench.placement`` from the checkout, on Linux with two cores; README.md explains it.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from pathlib import Path

from bench.figures import RepeatLimits
from bench.streams.load import StreamCase, StreamLoad, ratio
from bench.streams.peers import start

ROUNDS = 5
CASES = (StreamCase("triton", 100, 5_000), StreamCase("triton", 1_000, 10_000))
BOTH, FIRST, SECOND = {0, 1}, {0}, {1}
PLACEMENTS: Mapping[str, tuple[set[int], set[int]]] = {
    "as scheduled": (BOTH, BOTH),
    "one core": (FIRST, FIRST),
    "two cores": (FIRST, SECOND),
}
"""The cores of the forwarding process, and those of the server and the clients."""
PEERS = ("nginx", "proxy", "capture")


def main() -> int:
    """Print the table; return 2 without two cores or without nginx."""
    if not BOTH.issubset(os.sched_getaffinity(0)):
        print("this bench needs the cores 0 and 1", file=sys.stderr)
        return 2
    print(
        "CPU in microseconds per token: median, least and most of "
        f"{ROUNDS} rounds; ratios to nginx of the same round.\n\n"
        f"{'streams':>7} {'placement':<13} {'process':<8} {'CPU':>6} {'least':>6} {'most':>6} "
        f"{'/nginx':>7}"
    )
    for case in CASES:
        for name, (forwarding, generating) in PLACEMENTS.items():
            for line in _rows(case, name, forwarding, generating):
                print(line, flush=True)
    return 0


def _rows(
    case: StreamCase, placement: str, forwarding: Iterable[int], generating: Iterable[int]
) -> Iterable[str]:
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        load = StreamLoad(stack)
        peers, missing = start(stack, folder, load.ports, PEERS)
        if missing:
            sys.exit("\n".join(f"{name}: {reason}" for name, reason in missing.items()))
        for pid in load.pids:
            _pin(pid, generating)
        for peer in peers:
            _pin(peer.pid or 0, forwarding)
        rounds = load.rounds(case, peers, RepeatLimits(least=ROUNDS, most=ROUNDS))
    for peer in peers:
        costs = [1e6 * costs[peer.name].run for costs in rounds]
        yield (
            f"{case.streams:>7,} {placement:<13} {peer.name:<8} {statistics.median(costs):>6.1f} "
            f"{min(costs):>6.1f} {max(costs):>6.1f} {ratio(rounds, peer.name, 'run').median:>7.2f}"
        )


def _pin(pid: int, cores: Iterable[int]) -> None:
    """Restrict all threads of a process to cores."""
    for task in Path(f"/proc/{pid}/task").iterdir():
        os.sched_setaffinity(int(task.name), cores)


if __name__ == "__main__":
    sys.exit(main())
