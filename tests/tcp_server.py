"""A TCP server for a test, which closes all connections."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

Handle = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def listening(handle: Handle) -> AsyncIterator[int]:
    """Serve every connection to the yielded port with ``handle``, and await all handlers.

    asyncio holds no reference to handlers; one that is collected unfinished would warn in a later
    test.
    """
    serving: dict[asyncio.Future[None], asyncio.StreamWriter] = {}

    def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        serving[asyncio.ensure_future(handle(reader, writer))] = writer

    server = await asyncio.start_server(connected, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        for each in serving:
            each.cancel()
        await asyncio.gather(*serving, return_exceptions=True)
        for writer in serving.values():
            writer.transport.abort()
        await asyncio.sleep(0)  # asyncio closes sockets in the next iteration
