"""The listener of the sidecar's pages and of the proxy tap."""

from __future__ import annotations

import asyncio
import socket
from collections import Counter

from exporter.connection_listener import MAX_ACCEPTS, ConnectionListener, Handshakes

CLIENTS = 3 * MAX_ACCEPTS


async def test_a_burst_is_accepted_in_turns() -> None:
    """Descriptors of clients that are neither admitted nor refused are in no limit."""
    loop = asyncio.get_running_loop()
    iteration = 0
    accepted: Counter[int] = Counter()
    all_accepted = asyncio.Event()

    def count_iteration() -> None:
        nonlocal iteration
        iteration += 1
        if not all_accepted.is_set():
            loop.call_soon(count_iteration)

    def admit(_: Handshakes) -> bool:
        accepted[iteration] += 1
        if accepted.total() == CLIENTS:
            all_accepted.set()
        return False

    with socket.create_server(("127.0.0.1", 0), backlog=CLIENTS) as listening:
        clients = [socket.create_connection(listening.getsockname()) for _ in range(CLIENTS)]
        listener = ConnectionListener(
            listening, asyncio.Protocol, lambda: None, handshake_seconds=1.0, admit=admit
        )
        listener.open()
        count_iteration()
        async with asyncio.timeout(10):
            await all_accepted.wait()
        listener.close()
        for client in clients:
            client.close()
    assert max(accepted.values()) <= MAX_ACCEPTS
