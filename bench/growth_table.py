"""Print the growth of CPU time and memory as a table of text."""

from __future__ import annotations

from statistics import median

from bench.figures import GrowthCurve


def print_curves(cpu: GrowthCurve, memory: GrowthCurve) -> None:
    """Print costs at each size, the exponents since the row before, and the slopes."""
    print(
        f"{cpu.size:>10}  {'CPU ' + cpu.unit:>9}  {'µs each':>9}  {'exponent':>8}  "
        f"{memory.unit:>8}  {'exponent':>8}"
    )
    steps = [["", *(f"{step.median:.2f}" for step in each.steps)] for each in (cpu, memory)]
    for size, times, sizes, *exponents in zip(
        cpu.sizes, cpu.costs, memory.costs, *steps, strict=True
    ):
        time, held = median(times), median(sizes)
        print(
            f"{size:>10,}  {time:>9.2f}  {1e3 * time / size:>9.2f}  {exponents[0]:>8}  "
            f"{held:>8.1f}  {exponents[1]:>8}"
        )
    for name, each in (("CPU", cpu), ("memory", memory)):
        print(f"{name}: slope {each.slope.median:.2f}, {each.verdict}")
    print(flush=True)
