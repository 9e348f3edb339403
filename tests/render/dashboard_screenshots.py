"""Draw all dashboards from a live demo in headless Chromium, as PNG files.

``python -m tests.render.dashboard_screenshots OUT`` needs npm and Chromium (Debian: ``npm
chromium``).  The dashboards are drawn with Grafana's published components; heatmaps and state
timelines with small ones of :mod:`tests.render`, because Grafana publishes none.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

RENDERER = Path(__file__).parent / "grafana"


@contextmanager
def demo(minutes: int, out: Path) -> Iterator[str]:
    """Run the demo; yield the address of its Prometheus."""
    command = (sys.executable, "-m", "tokenslo", "demo", "--for", f"{minutes + 10}m", "-o", out)
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            for line in process.stdout:
                if found := re.match(r"Prometheus\s+(\S+)", line):
                    yield found[1]
                    break
            else:
                sys.exit("the demo ended without an address of its Prometheus")
        finally:
            process.send_signal(signal.SIGINT)
            process.stdout.read()


def build_renderer() -> None:
    """Install the packages of the lock file and bundle the renderer."""
    npm = shutil.which("npm")
    if not npm:
        sys.exit("npm is missing; on Debian: apt-get install npm chromium")
    subprocess.run((npm, "ci", "--silent"), cwd=RENDERER, check=True)
    subprocess.run((npm, "run", "--silent", "build"), cwd=RENDERER, check=True)


def draw(prometheus: str, dashboards: Path, out: Path, minutes: int) -> int:
    """Draw every dashboard of a folder; return the renderer's exit code."""
    files = sorted(dashboards.glob("*.json"))
    command = ("node", "screenshots.mjs", prometheus, out.resolve(), *files)
    environment = {**os.environ, "MINUTES": str(minutes)}
    return subprocess.run(command, cwd=RENDERER, env=environment, check=False).returncode


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path, help="folder for the PNG files")
    parser.add_argument("--minutes", type=int, default=10, help="time shown (default: 10)")
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    build_renderer()
    with (
        tempfile.TemporaryDirectory() as folder,
        demo(arguments.minutes, Path(folder)) as prometheus,
    ):
        time.sleep(60 * arguments.minutes)
        code = draw(prometheus, Path(folder) / "dashboards", arguments.out, arguments.minutes)
    sys.exit(code)


if __name__ == "__main__":
    main()
