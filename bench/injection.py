"""Measure the cost of ``--tap-inject perf-metrics`` by event size, next to the observer's.

Run ``python -m bench.injection`` from the checkout; README.md explains the table.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable

from exporter.protocol.detection import observe
from exporter.protocol.events import CLIENT, SERVER, ObserverSettings
from exporter.protocol.injection import Injection
from exporter.recording.stream_recorder import StreamRecorder

ROUNDS = 5
READ_BYTES, CHUNK_BYTES = 65_536, 4096
SMALL = 200
SIZES = (SMALL, 2**16, 2**20, 2**21, 2**22)
TOTAL = 2**22
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
REQUESTS = {
    "kserve": b"POST /v2/models/m/generate_stream HTTP/1.1\r\nContent-Length: 18\r\n\r\n"
    b'{"text_input":"a"}',
    "openai": b"POST /v1/chat/completions HTTP/1.1\r\nContent-Length: 2\r\n\r\n{}",
}


def _response(form: str, size: int) -> tuple[bytes, int]:
    """Return a response with events of about a size, and their number."""
    text = "x" * size
    delta = {"index": 0, "delta": {"content": text}, "finish_reason": None}
    document = {"choices": [delta]} if form == "openai" else {"text_output": text}
    event = b"data: " + json.dumps({"model": "m", **document}).encode() + b"\n\n"
    number = max(1, TOTAL // size)
    chunks = [event[at : at + CHUNK_BYTES] for at in range(0, len(event), CHUNK_BYTES)]
    body = b"".join(b"%x\r\n%b\r\n" % (len(chunk), chunk) for chunk in chunks)
    return HEAD + body * number, number


def _cost(prepare: Callable[[], Callable[[bytes], object]], data: bytes) -> tuple[float, float]:
    """Return the least CPU seconds for all data, and those of the longest read."""
    best = worst = float("inf")
    for _ in range(ROUNDS):
        feed = prepare()
        total = longest = 0.0
        for at in range(0, len(data), READ_BYTES):
            read = data[at : at + READ_BYTES]
            start = time.process_time()
            feed(read)
            taken = time.process_time() - start
            total, longest = total + taken, max(longest, taken)
        best, worst = min(best, total), min(worst, longest)
    return best, worst


def _injecting(request: bytes) -> Callable[[bytes], object]:
    injection = Injection(lambda _: "return_perf_metrics")
    injection.from_client(request)
    return injection.from_server


def _observing(request: bytes) -> Callable[[bytes], object]:
    observer = observe(StreamRecorder({}), ObserverSettings())
    observer.feed(CLIENT, request, 0.0)
    return lambda data: observer.feed(SERVER, data, 1.0)


def main() -> None:
    """Print the table."""
    print(
        f"CPU in milliseconds per event in reads of {READ_BYTES:,} bytes and chunks of at most "
        f"{CHUNK_BYTES:,}, the least\nof {ROUNDS} rounds; the longest read; and the ratio to the "
        "observer of the same bytes.\n"
    )
    print(f"{'form':<7} {'bytes':>9}  {'inject':>9} {'longest':>9}  {'observe':>9}  {'ratio':>6}")
    for form, request in REQUESTS.items():
        for size in SIZES:
            data, number = _response(form, size)
            ours, longest = _cost(lambda request=request: _injecting(request), data)  # type: ignore[misc]
            theirs, _ = _cost(lambda request=request: _observing(request), data)  # type: ignore[misc]
            print(
                f"{form:<7} {size:>9,}  {ours / number * 1e3:>9.4f} {longest * 1e3:>9.1f}  "
                f"{theirs / number * 1e3:>9.4f}  {ours / theirs:>6.2f}"
            )


if __name__ == "__main__":
    main()
