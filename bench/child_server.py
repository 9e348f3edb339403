"""Serve in a child process, so that the server does not wait for the bench's own threads."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def child_port(serve: Callable[[int], None]) -> Iterator[int]:
    """Run ``serve`` in a child process; it writes its port to the given descriptor, and serves."""
    reader, writer = os.pipe()
    process = os.fork()
    if not process:
        serve(writer)
    os.close(writer)
    try:
        yield int(os.read(reader, 16))
    finally:
        os.close(reader)
        os.kill(process, signal.SIGKILL)
        os.waitpid(process, 0)
