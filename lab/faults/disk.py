"""Full disks, while files are generated and while the sidecar logs."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from time import monotonic

from lab.example_slo import EXAMPLE_SLO
from lab.faults.fault import Expectation, Fault, FaultEffect
from lab.faults.setup import SETTLE_SECONDS, FaultSetup, until
from lab.faults.stream_load import StreamClients
from lab.toolchain import UnavailableProgram

LEFT_BYTES = 32 * 1024
FILE_BYTES = 16 * 1024
_CHECKOUT = Path(__file__).parents[2]


@contextmanager
def tmpfs(folder: Path, size: str) -> Iterator[Path]:
    """Mount a file system in memory.  Raises UnavailableProgram without the privilege."""
    folder.mkdir(parents=True)
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", folder],
        capture_output=True,
        text=True,
    )
    if done.returncode:
        reason = done.stderr.strip() or "it failed"
        raise UnavailableProgram("mount", reason, "run as root, outside of a container")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", folder], check=False)


def fill(folder: Path, left: int) -> Path:
    """Fill a file system up to ``left`` bytes; return the file that does."""
    path = folder / "ballast"
    free = shutil.disk_usage(folder).free
    path.write_bytes(bytes(max(0, free - left)))
    return path


def _generate(slo: Path, output: Path, prefix: Sequence[str] = ()) -> tuple[int, str]:
    """Run ``tokenslo generate``; return its exit code and error output."""
    command: list[str | Path] = [
        *prefix,
        sys.executable,
        "-m",
        "tokenslo",
        "generate",
        slo,
        "-o",
        output,
        "--quiet",
    ]
    done = subprocess.run(command, cwd=_CHECKOUT, capture_output=True, text=True)
    return done.returncode, done.stderr


def _snapshot(folder: Path) -> dict[str, bytes]:
    files = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def _changed_slo(setup: FaultSetup) -> tuple[Path, Path]:
    """Return the example's SLO file and one with other targets."""
    text = EXAMPLE_SLO.read_text()
    for name in ("before", "after"):
        (setup.folder / name).mkdir()
    before, after = setup.folder / "before/slo.yaml", setup.folder / "after/slo.yaml"
    before.write_text(text)
    after.write_text(text.replace("target: 95%", "target: 96%"))
    return before, after


def _refused_generation(
    folder: Path, after: Path, injected: str, prefix: Sequence[str], free: Path | None
) -> FaultEffect:
    """Generate changed files without room for them, and again with room."""
    earlier = _snapshot(folder)
    code, errors = _generate(after, folder, prefix)
    left = _snapshot(folder)
    if free:
        free.unlink()
    began = monotonic()
    again, _ = _generate(after, folder)
    seconds = monotonic() - began
    final = _snapshot(folder)
    changed = sum(final.get(name) != text for name, text in earlier.items())
    lines = errors.strip().splitlines()
    return FaultEffect(
        injected,
        (),
        "the same command succeeded once there was room",
        seconds,
        (
            Expectation(
                f"exit code {code}, with one line: `{lines[0] if lines else ''}`".replace(
                    str(folder), "OUT"
                ),
                code == 2 and len(lines) == 1 and "Fix:" in errors,
            ),
            Expectation(
                f"{sum(left.get(name) == text for name, text in earlier.items())} of "
                f"{len(earlier)} files were unchanged, and {len(left) - len(earlier)} were left "
                "over",
                left == earlier,
            ),
            Expectation(f"{changed} files were written afterwards", again == 0 < changed),
        ),
    )


async def _disk_full(setup: FaultSetup) -> FaultEffect:
    before, after = _changed_slo(setup)
    with tmpfs(setup.folder / "Disk", "8m") as disk:
        out = disk / "out"
        _generate(before, out)
        ballast = fill(disk, LEFT_BYTES)
        injected = (
            "`tokenslo generate` replaced all files of a service on a file system with "
            f"{LEFT_BYTES // 1024} KiB left"
        )
        return await asyncio.to_thread(_refused_generation, out, after, injected, (), ballast)


async def _file_limit(setup: FaultSetup) -> FaultEffect:
    before, after = _changed_slo(setup)
    out = setup.folder / "out"
    await asyncio.to_thread(_generate, before, out)
    injected = (
        "`tokenslo generate` replaced all files of a service under a limit of "
        f"{FILE_BYTES // 1024} KiB per file (RLIMIT_FSIZE)"
    )
    prefix = ("prlimit", f"--fsize={FILE_BYTES}")
    return await asyncio.to_thread(_refused_generation, out, after, injected, prefix, None)


async def _log_disk_full(setup: FaultSetup) -> FaultEffect:
    upstream = setup.stream_server()
    with tmpfs(setup.folder / "Disk", "256k") as disk:
        # The shell opens the file, so that standard error is on the full disk.
        shell = ("sh", "-c", f'exec "$@" 2>>{disk}/log', "sh")
        broken = ("--triton", "http://127.0.0.1:9", "--log-level", "info")
        ballast = fill(disk, 0)
        sidecar = await asyncio.to_thread(setup.sidecar, *broken, upstream=upstream, prefix=shell)
        before = (disk / "log").stat().st_size
        async with StreamClients(sidecar.tap) as load:
            await asyncio.sleep(3)
            tap = sidecar.tap_pid()
            assert tap  # noqa: S101
            os.kill(tap, 9)  # logged, as failed scrapes are
            await sidecar.new_tap_pid(tap)
            # A process that is killed while it starts is not counted.
            served = load.complete
            await until(lambda: load.complete > served, SETTLE_SECONDS, "the tap serves again")
            full = (disk / "log").stat().st_size
            ballast.unlink()
            os.kill(await sidecar.new_tap_pid(), 9)
            began = monotonic()
            await until(
                lambda: (disk / "log").stat().st_size > full, SETTLE_SECONDS, "the log continues"
            )
            seconds = monotonic() - began
        await sidecar.wait_for("tokenslo_tap_restarts_total", 2, SETTLE_SECONDS)
    return FaultEffect(
        "the disk of the log was full from the start; a source failed, and the tap process was "
        "killed twice, both of which are logged",
        (),
        "lines are logged again once there is room",
        seconds,
        (
            Expectation(f"{full - before} bytes were logged meanwhile", full == before),
            Expectation(f"{load.complete:,} streams were complete", load.complete > 0),
        ),
    )


FAULTS = (
    Fault("disk-full", "Disk", "the disk is full while generating", _disk_full, 60.0),
    Fault("file-size-limit", "Disk", "files are limited in size", _file_limit, 60.0),
    Fault("log-disk-full", "Disk", "the disk of the sidecar's log is full", _log_disk_full, 30.0),
)
