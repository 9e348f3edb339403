"""Check and draw the status page in headless Chromium.

``python -m tests.render.status_page OUT [SCENE…]`` serves the scenes of ``tests.status_scenes``;
``python -m tests.render.status_page OUT --url URL`` opens the page of a running sidecar.  Each page
is opened at two widths, light and dark; axe-core must find nothing.  Run ``npm ci`` in this folder
first.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from contextlib import AsyncExitStack
from pathlib import Path

from exporter.http_server import start
from exporter.sockets import Listen
from exporter.web.server import application
from tests.status_scenes import SCENES, facts

SCRIPT = Path(__file__).with_name("check.mjs")


async def check(output: Path, scenes: list[str]) -> int:
    """Serve the scenes and run the check on them; return its exit code."""
    async with AsyncExitStack() as stack:
        pages = []
        for name in scenes:
            url, close = await start(application(facts(SCENES[name]())), Listen("127.0.0.1", 0))
            stack.push_async_callback(close)
            pages.append(f"{name}={url}/")
        return await run(output, pages)


async def run(output: Path, pages: list[str]) -> int:
    process = await asyncio.create_subprocess_exec("node", SCRIPT, output, *pages)
    return await process.wait()


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.render.status_page", description=__doc__)
    parser.add_argument("output", type=Path, help="folder for screenshots")
    parser.add_argument("scenes", nargs="*", help=f"default: all of {', '.join(SCENES)}")
    parser.add_argument("--url", help="page of a running sidecar")
    options = parser.parse_args()
    if unknown := set(options.scenes) - set(SCENES):
        parser.error(f"unknown scenes: {', '.join(sorted(unknown))}")
    options.output.mkdir(parents=True, exist_ok=True)
    if options.url:
        return asyncio.run(run(options.output, [f"live={options.url}"]))
    return asyncio.run(check(options.output, options.scenes or [*SCENES]))


if __name__ == "__main__":
    sys.exit(main())
