"""Time the tokens of many streams: ``python -m bench.streams.clients``.

Each line of standard input is a command: port, form, model, number of streams.  Each line of
standard output has the quantiles of the tokens' age on arrival, in seconds.
"""

from __future__ import annotations

import gc
import json
import select
import socket
import sys
import time

from bench.streams.forms import FORMS, STAMP, STAMP_BYTES, Form
from bench.streams.processes import allow_many_files

IDLE_SECONDS = 30.0
"""Time-out in seconds without a token."""


def main() -> None:
    """Run the commands of standard input."""
    gc.disable()
    allow_many_files()
    for line in sys.stdin:
        command = json.loads(line)
        form = FORMS[command["form"]](command["model"])
        ages = _read(_connect(command["port"], form, command["streams"]), command["warm_up"])
        gc.collect()
        print(json.dumps(_summary(ages)), flush=True)


def _connect(port: int, form: Form, streams: int) -> dict[int, socket.socket]:
    connected = {}
    for _ in range(streams):
        client = socket.create_connection(("127.0.0.1", port))
        client.sendall(form.request)
        client.setblocking(False)
        connected[client.fileno()] = client
    return connected


def _read(clients: dict[int, socket.socket], warm_up: float) -> list[int]:
    """Return the age of each token on arrival, in nanoseconds, after the warm-up in seconds."""
    ages: list[int] = []
    rests = dict.fromkeys(clients, b"")
    poll = select.epoll()
    for number in clients:
        poll.register(number, select.EPOLLIN)
    clock, find = time.monotonic_ns, STAMP.findall
    measured_from = 0
    while clients:
        ready = poll.poll(IDLE_SECONDS)
        if not ready:
            raise SystemExit(f"{len(clients)} clients received nothing for {IDLE_SECONDS:g} s")
        for number, _ in ready:
            data = clients[number].recv(65536)
            now = clock()
            if not data or data.endswith(b"0\r\n\r\n"):
                poll.unregister(number)
                clients.pop(number).close()
            data = rests[number] + data
            for text in find(data):
                sent = int(text)
                measured_from = measured_from or sent + round(warm_up * 1e9)
                if sent > measured_from:
                    ages.append(now - sent)
            # Keep no complete stamp, which would be counted twice.
            rests[number] = b"" if data.endswith(b"\n\r\n") else data[-STAMP_BYTES + 1 :]
    return ages


def _summary(ages: list[int]) -> dict[str, float]:
    ages.sort()
    last = len(ages) - 1
    return {"count": len(ages)} | {
        f"p{percent}": ages[round(last * percent / 100)] / 1e9 for percent in (50, 99)
    }


if __name__ == "__main__":
    main()
