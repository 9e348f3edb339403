"""The sidecar's interpreter settings, in a process of its own."""

from __future__ import annotations

import subprocess
import sys

SCRIPT = """
import asyncio, gc, sys
from exporter import app
from exporter.settings import load_config

full = []
kept = []

async def watch(*_, **__):
    gc.callbacks.append(lambda phase, about: full.append(1) if about["generation"] == 2 else None)
    kept.extend({"series": [number]} for number in range(500_000))

app.watch = watch
config = load_config({"vllm": ("http://127.0.0.1:1",)}, {}, None)
asyncio.run(app.run(config, (), "0"))
print(len(full), gc.get_freeze_count() > 0, sys.getswitchinterval() <= 0.001)
"""


def test_growing_heap_causes_no_full_garbage_collection() -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", SCRIPT], capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["0", "True", "True"]
