"""Fuzz every parser: ``python -m tests.fuzz [--seconds N] [--seed N] [TARGET…]``.

Each target gets an equal share of the time and other examples in every run.  A failure prints the
smallest input that still fails, and the command that repeats it; the exit code is 1.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections.abc import Callable, Sequence

from hypothesis import HealthCheck, Phase, given, seed, settings

from tests.fuzz.mutations import mutated
from tests.fuzz.targets import BY_NAME, TARGETS, FuzzTarget

_PHASES = (Phase.generate, Phase.shrink)


class FuzzRun:
    """Executions of a target: their number, the slowest one, and the last input that failed."""

    def __init__(self, target: FuzzTarget) -> None:
        self.executions = 0
        self.slowest = 0.0
        self.failed: bytes | None = None
        self._target = target

    def execute(self, data: bytes) -> None:
        """Run the target once."""
        self.executions += 1
        began = time.perf_counter()
        try:
            self._target.run(data)
        except BaseException:
            self.failed = data
            raise
        self.slowest = max(self.slowest, time.perf_counter() - began)

    def round(self, number: int) -> None:
        """Run one round of examples; raises what the target raises for the smallest input."""
        strategy = mutated(self._target.seeds())
        options = settings(
            max_examples=self._target.examples,
            deadline=None,
            derandomize=False,
            database=None,
            phases=_PHASES,
            suppress_health_check=list(HealthCheck),
        )
        # A copy of the method: hypothesis replaces the signature of what it wraps.
        seed(number)(options(given(strategy)(lambda data: self.execute(data))))()


def fuzz(
    target: FuzzTarget, number: int, seconds: float, clock: Callable[[], float] = time.monotonic
) -> FuzzRun:
    """Run rounds, with the seeds from ``number`` on, for ``seconds``; at least one."""
    run, deadline = FuzzRun(target), clock() + seconds
    for each in target.seeds():
        run.execute(each)
    while run.executions == len(target.seeds()) or clock() < deadline:
        run.round(number)
        number += 1
    return run


def main(arguments: Sequence[str] | None = None, targets: Sequence[FuzzTarget] = TARGETS) -> int:
    """Fuzz the named targets, by default all."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("targets", nargs="*", metavar="TARGET", choices=[*BY_NAME, []])
    parser.add_argument("--seconds", type=float, default=300.0, help="time for all targets")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(2**32))
    given_ = parser.parse_args(arguments)
    chosen = [BY_NAME[name] for name in given_.targets] or list(targets)
    share, total = given_.seconds / len(chosen), 0
    print(f"seed {given_.seed}\n{'target':<18}{'executions':>12}{'slowest':>12}")
    for target in chosen:
        try:
            run = fuzz(target, given_.seed, share)
        except Exception as error:
            print(f"{target.name:<18}failed: {type(error).__name__}: {error}")
            for note in getattr(error, "__notes__", ()):
                print(note)
            print(f"repeat with: python -m tests.fuzz {target.name} --seed {given_.seed}")
            return 1
        total += run.executions
        print(f"{target.name:<18}{run.executions:>12,}{run.slowest * 1000:>9.0f} ms", flush=True)
    print(f"{'all':<18}{total:>12,}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
