"""Measure the time and output size of ``tokenslo generate`` for many SLOs, next to Sloth.

Run ``python -m bench.generate [COUNT]`` from the checkout; README.md explains the table.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

from bench import peers, programs
from bench.arguments import positive_integer
from bench.figures import (
    Figure,
    MissingPeer,
    PeerComparison,
    limits,
    median_interval,
    repeat,
)
from lab.toolchain import InstallError, UnavailableProgram

COUNT = 1_000
ROUNDS = 3
OURS = """\
  - name: o{0}
    indicator:
      bad: sum(rate(http_requests_total{{job="j{0}",code=~"5.."}}[{{window}}]))
      total: sum(rate(http_requests_total{{job="j{0}"}}[{{window}}]))
    target: 99.9%
"""
THEIRS = """\
  - name: o{0}
    objective: 99.9
    sli:
      events:
        error_query: sum(rate(http_requests_total{{job="j{0}",code=~"5.."}}[{{{{.window}}}}]))
        total_query: sum(rate(http_requests_total{{job="j{0}"}}[{{{{.window}}}}]))
    alerting:
      name: Alert{0}
      page_alert: {{labels: {{severity: critical}}}}
      ticket_alert: {{labels: {{severity: warning}}}}
"""
LLM = (
    "indicator: ttft, threshold: 800ms, target: 95%",
    "indicator: itl, threshold: 60ms, target: 99%",
    "indicator: availability, target: 99.9%",
    "indicator: stream_completion, target: 99%",
    "indicator: goodput, clauses: {ttft: 800ms, tpot: 60ms}, target: 95%",
    "indicator: kv_headroom, threshold: 90%, target: 99%",
)


def write_files(folder: Path, count: int) -> None:
    """Write the same SLOs for both tools, and the same number of LLM SLOs."""
    head = "apiVersion: tokenslo/v1\nservice: shop\nobjectives:\n"
    (folder / "ours.yaml").write_text(head + "".join(OURS.format(n) for n in range(count)))
    objectives = (f"  - {{name: o{n}, {LLM[n % len(LLM)]}}}\n" for n in range(count))
    (folder / "llm.yaml").write_text(head + "".join(objectives))
    head = "version: prometheus/v1\nservice: shop\nslos:\n"
    (folder / "theirs.yaml").write_text(head + "".join(THEIRS.format(n) for n in range(count)))


Times = tuple[float, float]
"""CPU and wall seconds of a command."""


def measure(command: Sequence[str | Path], folder: Path) -> Times:
    """Return the times of a command that writes into an empty folder."""
    shutil.rmtree(folder / "out", ignore_errors=True)
    (folder / "out").mkdir()
    cpu, wall = os.times(), time.monotonic()
    subprocess.run(command, cwd=folder, check=True, capture_output=True)
    after = os.times()
    used = after.children_user + after.children_system - cpu.children_user - cpu.children_system
    return used, time.monotonic() - wall


def size(command: Sequence[str | Path], folder: Path) -> int:
    """Return the number of bytes that a command writes."""
    measure(command, folder)
    return sum(path.stat().st_size for path in (folder / "out").rglob("*") if path.is_file())


OURS_COMMAND = (sys.executable, "-m", "tokenslo", "generate")
RULES, EVERYTHING = "tokenslo --only alerts", "tokenslo, everything"
ROWS: Mapping[str, Sequence[str | Path]] = {
    RULES: [*OURS_COMMAND, "ours.yaml", "-o", "out", "--only", "alerts"],
    EVERYTHING: [*OURS_COMMAND, "ours.yaml", "-o", "out"],
    "tokenslo, LLM --only alerts": [*OURS_COMMAND, "llm.yaml", "-o", "out", "--only", "alerts"],
    "tokenslo, LLM everything": [*OURS_COMMAND, "llm.yaml", "-o", "out"],
}


def sloth_row() -> Mapping[str, Sequence[str | Path]]:
    """Return Sloth's row; raises InstallError without Sloth and without Go."""
    return {"sloth": [programs.sloth(), "generate", "-i", "theirs.yaml", "-o", "out/rules.yaml"]}


@contextmanager
def prepared(slos: int) -> Iterator[Path]:
    """Yield a folder with the SLO files, and set the environment of the commands."""
    environment = os.pathsep.join(filter(None, (str(Path.cwd()), os.environ.get("PYTHONPATH"))))
    os.environ["PYTHONPATH"] = environment
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    with TemporaryDirectory() as name:
        folder = Path(name)
        os.environ["PYTHONPYCACHEPREFIX"] = str(folder / "bytecode")  # as pip compiles a wheel
        subprocess.run([*OURS_COMMAND, "--help"], cwd=folder, check=True, capture_output=True)
        write_files(folder, slos)
        yield folder


def figures(long: bool) -> Iterator[Figure]:
    """Compare the times of rules alone, and of everything, with Sloth's for rules alone."""
    try:
        rows = {**sloth_row(), RULES: ROWS[RULES], EVERYTHING: ROWS[EVERYTHING]}
    except (InstallError, UnavailableProgram) as error:
        yield MissingPeer(f"generate {COUNT:,} SLOs", "sloth generate", str(error))
        return
    with prepared(COUNT) as folder:
        for command in rows.values():
            measure(command, folder)
        rounds = repeat(
            lambda: {row: measure(command, folder) for row, command in rows.items()},
            lambda done: [
                median_interval(each[row][kind] / each["sloth"][kind] for each in done)
                for row in (RULES, EVERYTHING)
                for kind in (0, 1)
            ],
            limits(long, most=10, seconds=90),
        )
    for row, target in ((RULES, None), (EVERYTHING, 1.0)):
        for kind, name in enumerate(("CPU", "wall")):
            yield PeerComparison(
                f"{name} time of {COUNT:,} SLOs: {row.removeprefix('tokenslo').strip(' ,')}",
                f"sloth generate {peers.MODULES['sloth'][1]}, rules alone",
                "s",
                [each[row][kind] for each in rounds],
                [each["sloth"][kind] for each in rounds],
                target,
            )


def main(count: str = str(COUNT)) -> None:
    """Print the table for ``count`` SLOs."""
    slos = positive_integer(count, "COUNT")
    try:
        rows = {**sloth_row(), **ROWS}
    except (InstallError, UnavailableProgram) as error:
        print(f"sloth is omitted: {error}")
        rows = {**ROWS}
    with prepared(slos) as folder:
        results: dict[str, list[Times]] = {row: [] for row in rows}
        for _ in range(ROUNDS):
            for row, command in rows.items():
                results[row].append(measure(command, folder))
        print(f"{slos:,} SLOs, {ROUNDS} rounds\n")
        print(f"{'':28} {'CPU min':>8} {'median':>8} {'wall min':>9} {'median':>8} {'MB':>6}")
        for row, times in results.items():
            cpu, wall = zip(*times, strict=True)
            print(
                f"{row:28} {min(cpu):>8.2f} {median(cpu):>8.2f} {min(wall):>9.2f} "
                f"{median(wall):>8.2f} {size(rows[row], folder) / 1e6:>6.1f}"
            )


if __name__ == "__main__":
    main(*sys.argv[1:])
