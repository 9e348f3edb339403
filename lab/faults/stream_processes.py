"""A server and misbehaving clients, as processes that can be killed at any time.

``python -m lab.faults.stream_processes serve PORT`` streams the tokens of each request, or aborts.
``python -m lab.faults.stream_processes churn PORT LOG SEED`` requests streams, many at a time, and
ends them in every possible way.  It appends to LOG a ``b`` before each request and an ``a`` once
its response has begun.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import socket
import struct
import sys
from collections.abc import Awaitable, Callable
from contextlib import closing, suppress

import uvloop

MODEL = "soak"
AT_A_TIME = 30
PATIENCE = 10.0
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
END = b"0\r\n\r\n"

Reader = asyncio.StreamReader
Writer = asyncio.StreamWriter


def request(tokens: int, pace: float, then: str = "end", prompt: str = "", size: int = 1) -> bytes:
    """Return a request for ``tokens`` of ``size`` bytes each, ``pace`` seconds apart.

    After the last one the server ends the response, or its connection: ``then`` is end, close or
    reset.
    """
    body = {"text_input": prompt, "tokens": tokens, "pace": pace, "then": then, "size": size}
    text = json.dumps(body).encode()
    return (
        b"POST /v2/models/%s/generate_stream HTTP/1.1\r\nHost: soak\r\nContent-Length: %d\r\n\r\n%s"
    ) % (MODEL.encode(), len(text), text)


def event(number: int, size: int = 1) -> bytes:
    """Return the chunk of a token of at least ``size`` bytes."""
    data = f'{{"model_name":"{MODEL}","model_version":"1","text_output":"{number:>{size}}"}}'
    text = f"data: {data}\n\n".encode()
    return b"%x\r\n%s\r\n" % (len(text), text)


# uvloop raises RuntimeError for a write after a client disconnect; other requests are ValueErrors.
GONE = (OSError, RuntimeError, TimeoutError, ValueError, asyncio.IncompleteReadError)


async def answer(reader: Reader, writer: Writer) -> None:
    """Answer the requests of a connection."""
    with closing(writer), suppress(*GONE):
        while True:
            head = await reader.readuntil(b"\r\n\r\n")
            length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
            fields = json.loads(await reader.readexactly(length))
            await asyncio.sleep(fields["pace"])
            writer.write(HEAD)
            for number in range(fields["tokens"]):
                writer.write(event(number, fields["size"]))
                await writer.drain()
                await asyncio.sleep(fields["pace"])
            if fields["then"] == "reset":
                reset(writer)
            if fields["then"] != "end":
                return
            writer.write(END)


def reset(writer: Writer) -> None:
    """Close a connection with RST."""
    connection = writer.get_extra_info("socket")
    if connection is None:  # already closed
        return
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


async def serve(port: int) -> None:
    """Serve, and print ``ready`` once listening."""
    server = await asyncio.start_server(answer, "127.0.0.1", port, backlog=4096)
    print("ready", flush=True)
    await server.serve_forever()


class SoakClient:
    """One connection; ``stream`` logs its requests and responses."""

    def __init__(self, reader: Reader, writer: Writer, log: int, dice: random.Random) -> None:
        self.reader, self.writer, self._log, self.dice = reader, writer, log, dice

    async def stream(
        self, tokens: int, pace: float, then: str = "end", *, wait: bool = True
    ) -> None:
        """Request a stream, and wait for the head of the response unless ``wait`` is False."""
        os.write(self._log, b"b")
        self.writer.write(request(tokens, pace, then, f"prompt {self.dice.randrange(50)}"))
        await self.writer.drain()
        if wait:
            await self.reader.readuntil(b"\r\n\r\n")
            os.write(self._log, b"a")

    async def to_the_end(self) -> None:
        """Read the rest of the response."""
        await self.reader.readuntil(END)


async def polite(client: SoakClient) -> None:
    """Read several responses to their ends."""
    for _ in range(client.dice.randint(1, 3)):
        await client.stream(client.dice.randint(1, 20), 0.005)
        await client.to_the_end()


async def disconnecting(client: SoakClient) -> None:
    """Disconnect in the middle of a stream."""
    await client.stream(100, 0.01)
    await asyncio.sleep(client.dice.uniform(0, 0.1))


async def disconnecting_at_once(client: SoakClient) -> None:
    """Disconnect before the first token."""
    await client.stream(5, 0.05, wait=False)
    await asyncio.sleep(client.dice.uniform(0, 0.02))


async def resetting(client: SoakClient) -> None:
    """Reset the connection in the middle of a stream."""
    await disconnecting(client)
    reset(client.writer)


async def half_closing(client: SoakClient) -> None:
    """Send FIN, and read the response to its end."""
    await client.stream(10, 0.005)
    client.writer.write_eof()
    await client.to_the_end()


async def not_reading(client: SoakClient) -> None:
    """Stop reading for half a second, and disconnect."""
    await client.stream(5_000, 0.0)
    client.writer.transport.pause_reading()  # type: ignore[attr-defined]
    await asyncio.sleep(0.5)


async def aborted_by_server(client: SoakClient) -> None:
    """Request a stream that the server aborts."""
    await client.stream(5, 0.005, client.dice.choice(["reset", "close"]))
    await client.reader.read()


async def sending_garbage(client: SoakClient) -> None:
    """Send bytes that are no request."""
    client.writer.write(client.dice.randbytes(200) + b"\r\n\r\n")
    await client.reader.read(1000)


async def sending_nothing(client: SoakClient) -> None:
    """Connect, and disconnect."""
    await asyncio.sleep(0.05)


HABITS: dict[Callable[[SoakClient], Awaitable[None]], int] = {
    polite: 6,
    disconnecting: 2,
    disconnecting_at_once: 2,
    resetting: 2,
    half_closing: 2,
    not_reading: 1,
    aborted_by_server: 2,
    sending_garbage: 1,
    sending_nothing: 1,
}
"""Behaviours of clients and their weights."""


async def churn(port: int, path: str, seed: str) -> None:
    """Run clients until the process is killed."""
    dice = random.Random(seed)
    log = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    async def run_clients() -> None:
        while True:
            await asyncio.sleep(dice.uniform(0, 0.2))
            (habit,) = dice.choices(list(HABITS), list(HABITS.values()))
            with suppress(*GONE):
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
                with closing(writer):
                    async with asyncio.timeout(PATIENCE):
                        await habit(SoakClient(reader, writer, log, dice))

    await asyncio.gather(*(run_clients() for _ in range(AT_A_TIME)))


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["serve", port]:
            uvloop.run(serve(int(port)))
        case ["churn", port, path, seed]:
            uvloop.run(churn(int(port), path, seed))
