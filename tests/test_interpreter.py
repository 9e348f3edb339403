"""The sidecar's interpreter settings, in a process of its own."""

from __future__ import annotations

import subprocess
import sys

SCRIPT = """
import asyncio, gc, sys
from exporter import app
from exporter.settings import load_settings

full = []
most = 0
kept = []

def collecting(phase, about):
    global most
    if phase == "start":
        full.extend([1] * (about["generation"] == 2))
        searched = range(about["generation"] + 1)
        most = max(most, sum(len(gc.get_objects(generation)) for generation in searched))

async def watch(*_, **__):
    gc.callbacks.append(collecting)
    kept.extend({"series": [number]} for number in range(500_000))

app.watch = watch
config = load_settings({"vllm": ("http://127.0.0.1:1",)}, {}, None)
asyncio.run(app.run(config, (), "0"))
print(len(full), most < 10_000, gc.get_freeze_count() > 0, sys.getswitchinterval() <= 0.0002)
"""


def test_growing_heap_causes_only_small_garbage_collections() -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", SCRIPT], capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["0", "True", "True", "True"]


CONNECTIONS = """
import gc
from exporter.interpreter import TAP_OLD_THRESHOLD, limit_garbage_collection

class Connection:
    alive = 0

    def __init__(self):
        self.itself, self.parts = self, [[number] for number in range(20)]
        Connection.alive += 1

    def __del__(self):
        Connection.alive -= 1

limit_garbage_collection(TAP_OLD_THRESHOLD)
most, live = 0, []
for _ in range(20_000):
    live.append(Connection())
    if len(live) > 1_000:
        del live[0]
    most = max(most, Connection.alive)
print(most)
"""


def test_ended_connections_of_taps_are_freed_although_they_grew_old() -> None:
    """A thousand live at a time; without full collections all twenty thousand stay."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", CONNECTIONS],
        capture_output=True,
        text=True,
        check=True,
    )
    assert int(done.stdout) < 8_000
