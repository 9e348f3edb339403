"""Measure the time and output size of ``tokenslo generate`` for many SLOs, next to Sloth.

Run ``python -m bench.generate [COUNT]`` from the checkout; README.md explains the table.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

from bench.arguments import positive_integer

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


def measure(commands: Sequence[Sequence[str]], folder: Path) -> list[list[tuple[float, float]]]:
    """Return CPU and wall seconds of every round, by command; commands alternate in each round."""
    results: list[list[tuple[float, float]]] = [[] for _ in commands]
    for _ in range(ROUNDS):
        for command, seconds in zip(commands, results, strict=True):
            shutil.rmtree(folder / "out", ignore_errors=True)
            (folder / "out").mkdir()
            cpu, wall = os.times(), time.monotonic()
            subprocess.run(command, cwd=folder, check=True, capture_output=True)
            after = os.times()
            used = after.children_user + after.children_system
            used -= cpu.children_user + cpu.children_system
            seconds.append((used, time.monotonic() - wall))
    return results


def size(command: Sequence[str], folder: Path) -> int:
    """Return the number of bytes that a command writes."""
    shutil.rmtree(folder / "out", ignore_errors=True)
    (folder / "out").mkdir()
    subprocess.run(command, cwd=folder, check=True, capture_output=True)
    return sum(path.stat().st_size for path in (folder / "out").rglob("*") if path.is_file())


def main(count: str = str(COUNT)) -> None:
    """Print the table for ``count`` SLOs."""
    slos = positive_integer(count, "COUNT")
    ours = [sys.executable, "-m", "tokenslo", "generate"]
    rows = {
        "tokenslo --only alerts": [*ours, "ours.yaml", "-o", "out", "--only", "alerts"],
        "tokenslo, everything": [*ours, "ours.yaml", "-o", "out"],
        "tokenslo, LLM --only alerts": [*ours, "llm.yaml", "-o", "out", "--only", "alerts"],
        "tokenslo, LLM everything": [*ours, "llm.yaml", "-o", "out"],
    }
    if sloth := shutil.which(os.environ.get("SLOTH", "sloth")):
        rows = {"sloth": [sloth, "generate", "-i", "theirs.yaml", "-o", "out/rules.yaml"], **rows}
    else:
        print("sloth is neither on PATH nor in $SLOTH: the peer is omitted")
    environment = os.pathsep.join(filter(None, (str(Path.cwd()), os.environ.get("PYTHONPATH"))))
    os.environ["PYTHONPATH"] = environment
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    with TemporaryDirectory() as name:
        folder = Path(name)
        os.environ["PYTHONPYCACHEPREFIX"] = str(folder / "bytecode")  # as pip compiles a wheel
        subprocess.run([*ours, "--help"], cwd=folder, check=True, capture_output=True)
        write_files(folder, slos)
        results = measure(list(rows.values()), folder)
        print(f"{slos:,} SLOs, {ROUNDS} rounds\n")
        print(f"{'':28} {'CPU min':>8} {'median':>8} {'wall min':>9} {'median':>8} {'MB':>6}")
        for (row, command), seconds in zip(rows.items(), results, strict=True):
            cpu, wall = zip(*seconds, strict=True)
            print(
                f"{row:28} {min(cpu):>8.2f} {median(cpu):>8.2f} {min(wall):>9.2f} "
                f"{median(wall):>8.2f} {size(command, folder) / 1e6:>6.1f}"
            )


if __name__ == "__main__":
    main(*sys.argv[1:])
