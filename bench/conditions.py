"""Describe the machine, and the other load on it before and during a bench."""

from __future__ import annotations

import os
import platform
import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

CHECKOUT = Path(__file__).parents[1]
NOT_EXPOSED = "not exposed by this machine"
IDLE_SECONDS = 1.0
"""Time for which the load of other processes is measured before a bench."""


def machine(root: Path = Path("/")) -> Mapping[str, str]:
    """Return the facts about this machine that a measurement depends on, by name."""
    return {
        "CPU": _cpu_model(root / "proc/cpuinfo"),
        "cores": str(len(os.sched_getaffinity(0))),
        "virtual machine": "yes" if _is_virtual(root / "proc/cpuinfo") else "no",
        "frequency governor": _governor(root / "sys/devices/system/cpu"),
        "memory": f"{os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') / 2**30:.0f} GiB",
        "kernel": f"{platform.system()} {platform.release()}",
        "Python": f"{platform.python_implementation()} {platform.python_version()}",
    }


def _cpu_model(cpuinfo: Path) -> str:
    for line in cpuinfo.read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def _is_virtual(cpuinfo: Path) -> bool:
    return any(
        "hypervisor" in line.split()
        for line in cpuinfo.read_text().splitlines()
        if line.startswith("flags")
    )


def _governor(cpus: Path) -> str:
    found = {file.read_text().strip() for file in cpus.glob("cpu*/cpufreq/scaling_governor")}
    return ", ".join(sorted(found)) or NOT_EXPOSED


@dataclass(frozen=True, slots=True)
class CpuTimes:
    """CPU time of all cores since boot, in clock ticks."""

    total: int
    idle: int
    steal: int

    def shares_since(self, earlier: CpuTimes) -> tuple[float, float]:
        """Return the shares of busy and of stolen time since an earlier reading."""
        total = self.total - earlier.total
        if not total:
            return 0.0, 0.0
        idle, steal = self.idle - earlier.idle, self.steal - earlier.steal
        return (total - idle - steal) / total, steal / total


def cpu_times(stat: Path = Path("/proc/stat")) -> CpuTimes:
    """Read the CPU times; time of guests is part of that of users."""
    first = stat.read_text().partition("\n")[0]
    user, nice, system, idle, iowait, irq, softirq, steal = map(int, first.split()[1:9])
    whole = user + nice + system + idle + iowait + irq + softirq + steal
    return CpuTimes(whole, idle + iowait, steal)


@dataclass(frozen=True, slots=True)
class LoadBefore:
    """The load of other processes before a bench.

    ``average`` is the load average of a minute, which includes the bench before; ``busy`` is the
    busy share of CPU time while the bench waits.
    """

    average: float
    busy: float


def load_before(seconds: float = IDLE_SECONDS) -> LoadBefore:
    """Wait, and measure the load meanwhile."""
    average, before = os.getloadavg()[0], cpu_times()
    time.sleep(seconds)
    return LoadBefore(average, cpu_times().shares_since(before)[0])


def revision(*, without: Path) -> str:
    """Return the commit of the checkout, with a plus sign if files except one have changed."""
    commit = _git("rev-parse", "--short=10", "HEAD")
    excluded = f":(exclude){without.relative_to(CHECKOUT).as_posix()}"
    changed = _git("status", "--porcelain", "--untracked-files=no", "--", ".", excluded)
    return (commit or "unknown") + ("+" if changed or not commit else "")


def _git(*arguments: str) -> str:
    try:
        done = subprocess.run(["git", *arguments], cwd=CHECKOUT, capture_output=True, text=True)
    except FileNotFoundError:
        return ""
    return done.stdout.strip()
