"""Process metrics of the sidecar and of its tap process, from ``/proc``.

Names and texts are those of Prometheus' client libraries.  Their Python library is not imported: it
loads an HTTP server, which holds 1.5 MiB.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from exporter.families import MetricFamily, own_family
from slos.own_metrics import OWN_METRICS
from slos.signals import Kind

_PROC = Path("/proc")
_TEXTS: dict[str, tuple[Kind, str]] = {
    "virtual_memory_bytes": ("gauge", "Virtual memory size in bytes."),
    "resident_memory_bytes": ("gauge", "Resident memory size in bytes."),
    "start_time_seconds": ("gauge", "Start time of the process since unix epoch in seconds."),
    "cpu_seconds": ("counter", "Total user and system CPU time spent in seconds."),
    "open_fds": ("gauge", "Number of open file descriptors."),
    "max_fds": ("gauge", "Maximum number of open file descriptors."),
}


def families() -> Iterator[MetricFamily]:
    """Yield ``process_*`` of the sidecar; none on a system without ``/proc``."""
    for name, value in _values(os.getpid()):
        yield MetricFamily(f"process_{name}", *_TEXTS[name], (({}, value),))


def tap_families(pid: int) -> Iterator[MetricFamily]:
    """Yield ``tokenslo_tap_process_*`` of the tap process, none if it has ended."""
    for name, value in _values(pid):
        if (own := f"tokenslo_tap_process_{name}") in OWN_METRICS:
            yield own_family(own, [({}, value)])


def _values(pid: int) -> Iterator[tuple[str, float]]:
    """Yield what the kernel permits to read of a process; see proc(5)."""
    home = _PROC / str(pid)
    with suppress(OSError):
        # From the third field on: the second, the name, may contain spaces and brackets.
        fields = (home / "stat").read_bytes().rpartition(b")")[2].split()
        ticks = os.sysconf("SC_CLK_TCK")
        yield "virtual_memory_bytes", float(fields[20])
        yield "resident_memory_bytes", float(fields[21]) * os.sysconf("SC_PAGE_SIZE")
        yield "start_time_seconds", float(fields[19]) / ticks + _boot_time()
        yield "cpu_seconds", (float(fields[11]) + float(fields[12])) / ticks
    with suppress(OSError):
        count = len(list((home / "fd").iterdir()))
        yield "open_fds", float(count)
        yield "max_fds", _limit((home / "limits").read_bytes(), b"Max open files")


def _boot_time() -> float:
    """Return the time of boot in seconds since the epoch."""
    return _limit((_PROC / "stat").read_bytes(), b"btime")


def _limit(text: bytes, name: bytes) -> float:
    """Return the first value on the line of a name; ``unlimited`` is infinite."""
    value = text.partition(name)[2].split(maxsplit=1)[0]
    return float(value.replace(b"unlimited", b"inf"))
