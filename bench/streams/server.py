"""A server that streams to every client, one evenly spaced token after the other.

``python -m bench.streams.server PORT,...`` listens on some ports; each line of standard
input is a command, and standard output reports progress: see :func:`_stream`.
"""

from __future__ import annotations

import gc
import json
import selectors
import socket
import sys
import time
from collections.abc import Sequence
from itertools import cycle, islice

from bench.streams.forms import FORMS, Form
from bench.streams.processes import allow_many_files

LONGEST_SLEEP = 0.1


def main() -> None:
    ports, commands = map(int, sys.argv[1].split(",")), sys.stdin
    listeners = [socket.create_server(("127.0.0.1", port), backlog=4096) for port in ports]
    print("listening", flush=True)
    gc.disable()
    allow_many_files()
    for line in commands:
        command = json.loads(line)
        form = FORMS[command.pop("form")](command.pop("model"))
        _stream(listeners, form, **command)


def _stream(
    listeners: Sequence[socket.socket],
    form: Form,
    *,
    streams: int,
    rate: float,
    warm_up: float,
    seconds: float,
) -> None:
    """Wait for ``streams`` requests, and send ``rate`` tokens per second to all in total.

    Prints ``begin N`` after ``warm_up`` seconds, and ``end N`` after ``seconds`` more: N is the
    number of tokens sent so far.
    """
    connections = _accept(listeners, streams)
    for each in connections:
        each.send(form.head)
    start = time.monotonic()
    sent = 0
    for mark, until in (("begin", warm_up), ("end", warm_up + seconds)):
        sent = _send(connections, form, sent, rate, start, start + until)
        print(mark, sent, flush=True)
    for each in connections:
        each.send(form.end)
        each.close()


def _send(
    connections: list[socket.socket],
    form: Form,
    sent: int,
    rate: float,
    start: float,
    until: float,
) -> int:
    """Send what is due before a time; return how many tokens were sent since ``start``."""
    clock, stamp, sleep = time.monotonic, time.monotonic_ns, time.sleep
    before, after = form.before, form.after
    turns = islice(cycle(connections), sent % len(connections), None)
    for connection in turns:
        due = start + sent / rate
        while (wait := due - clock()) > 0:
            sleep(min(wait, LONGEST_SLEEP))
        if due >= until:
            break
        connection.send(b"%b%018d%b" % (before, stamp(), after))
        sent += 1
    return sent


def _accept(listeners: Sequence[socket.socket], count: int) -> list[socket.socket]:
    """Return connections on which a request has come."""
    selector = selectors.DefaultSelector()
    for listener in listeners:
        selector.register(listener, selectors.EVENT_READ)
    asking: list[socket.socket] = []
    while len(asking) < count:
        for key, _ in selector.select():
            ready = key.fileobj
            assert isinstance(ready, socket.socket)
            if ready in listeners:
                connection, _ = ready.accept()
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                selector.register(connection, selectors.EVENT_READ)
                continue
            selector.unregister(ready)
            if b"\r\n\r\n" in ready.recv(65536):
                ready.setblocking(False)  # who does not read what is sent must not stop the others
                asking.append(ready)
            else:
                ready.close()
    selector.close()
    return asking


if __name__ == "__main__":
    main()
