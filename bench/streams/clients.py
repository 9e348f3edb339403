"""Clients that time the tokens they get: ``python -m bench.streams.clients``.

Each line of standard input names a port, a form, a model and a number of streams; standard output
then prints the ages of tokens on one line, in seconds since they were sent.
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

PATIENCE = 30.0
"""Seconds without a token after which something must be wrong."""


def main() -> None:
    gc.disable()
    allow_many_files()
    for line in sys.stdin:
        command = json.loads(line)
        form = FORMS[command["form"]](command["model"])
        ages = _follow(_ask(command["port"], form, command["streams"]), command["warm_up"])
        gc.collect()
        print(json.dumps(_summary(ages)), flush=True)


def _ask(port: int, form: Form, streams: int) -> dict[int, socket.socket]:
    asking = {}
    for _ in range(streams):
        client = socket.create_connection(("127.0.0.1", port))
        client.sendall(form.request)
        client.setblocking(False)
        asking[client.fileno()] = client
    return asking


def _follow(clients: dict[int, socket.socket], warm_up: float) -> list[int]:
    """Return how old each token was when it was read, in nanoseconds, after some seconds."""
    ages: list[int] = []
    rests = dict.fromkeys(clients, b"")
    poll = select.epoll()
    for number in clients:
        poll.register(number, select.EPOLLIN)
    clock, find = time.monotonic_ns, STAMP.findall
    from_then_on = 0
    while clients:
        ready = poll.poll(PATIENCE)
        if not ready:
            raise SystemExit(f"nothing came to {len(clients)} clients for {PATIENCE:g} s")
        for number, _ in ready:
            data = clients[number].recv(65536)
            now = clock()
            if not data or data.endswith(b"0\r\n\r\n"):
                poll.unregister(number)
                clients.pop(number).close()
            data = rests[number] + data
            for text in find(data):
                sent = int(text)
                from_then_on = from_then_on or sent + round(warm_up * 1e9)
                if sent > from_then_on:
                    ages.append(now - sent)
            # What ends in a stamp that was just counted must not be counted again.
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
