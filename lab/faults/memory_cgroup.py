"""Limit the memory of a process by a control group of its own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from lab.toolchain import UnavailableProgram

_ROOT = Path("/sys/fs/cgroup")


@contextmanager
def memory_cgroup(pid: int, limit: int) -> Iterator[None]:
    """Limit what a process allocates from now on to ``limit`` bytes, until the scope exits.

    The kernel charges a control group with new memory only, and kills the process above the limit.
    Raises UnavailableProgram without the right to make a control group, or in version 2 unless the
    process's own group passes on the memory controller.
    """
    parent, file = _group_of(pid)
    group = parent / f"tokenslo-fault-{pid}"
    try:
        group.mkdir()
        (group / file).write_text(str(limit))
        (group / "cgroup.procs").write_text(str(pid))
    except OSError as error:
        with suppress(OSError):
            group.rmdir()
        raise UnavailableProgram("a memory cgroup", str(error), "run as root") from error
    try:
        yield
    finally:
        with suppress(OSError):  # it may have been killed
            (parent / "cgroup.procs").write_text(str(pid))
        group.rmdir()


def _group_of(pid: int) -> tuple[Path, str]:
    """Return a process's group of the memory controller, and the name of its file with the limit.

    The lines of ``/proc/PID/cgroup`` are ``NUMBER:CONTROLLERS:PATH``, without controllers in
    version 2.
    """
    groups = {
        controller: path
        for line in Path(f"/proc/{pid}/cgroup").read_text().splitlines()
        for _, controllers, path in [line.split(":", 2)]
        for controller in controllers.split(",")
    }
    if "memory" in groups:
        return _ROOT / "memory" / groups["memory"].lstrip("/"), "memory.limit_in_bytes"
    return _ROOT / groups.get("", "").lstrip("/"), "memory.max"
