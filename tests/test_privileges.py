"""Dropped privileges cannot be regained."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from textwrap import dedent

ROOT = Path(__file__).parent.parent
SCRIPT = dedent(
    """
    import subprocess, sys
    from exporter.taps.process.privileges import drop_capabilities
    drop_capabilities()
    text = "print(open('/proc/self/status').read())"
    print(open("/proc/self/status").read(), flush=True)
    subprocess.run([sys.executable, "-c", text], check=True)
    """
)


def test_process_and_children_have_no_privileges() -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], cwd=ROOT, capture_output=True, text=True, check=True
    )
    left = [line.split() for line in done.stdout.splitlines()]
    for name in ("CapEff:", "CapPrm:", "CapInh:"):
        assert [int(line[1], 16) for line in left if line[:1] == [name]] == [0, 0]
