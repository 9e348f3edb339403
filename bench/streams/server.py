"""Stream evenly spaced tokens to many clients: ``python -m bench.streams.server PORT,...``.

Each line of standard input is a command; :func:`_stream` describes the output.
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
    """Run the commands of standard input."""
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
    """Wait for ``streams`` requests, then send ``rate`` tokens per second in total.

    Prints ``begin N`` after ``warm_up`` seconds and ``end N`` after ``seconds`` more, with the
    number N of tokens sent so far.
    """
    connections = _accept(listeners, form, streams)
    for each in connections:
        each.send(form.head)
    start = time.monotonic()
    sent = 0
    for event, until in (("begin", warm_up), ("end", warm_up + seconds)):
        sent = _send(connections, form, sent, rate, start, start + until)
        print(event, sent, flush=True)
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
    """Send the tokens due before ``until``; return the number of tokens since ``start``."""
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


def _accept(listeners: Sequence[socket.socket], form: Form, count: int) -> list[socket.socket]:
    """Return connections with a request of the form; close others, such as the sidecar's."""
    request_line, _, _ = form.request.partition(b"\r\n")
    selector = selectors.DefaultSelector()
    for listener in listeners:
        selector.register(listener, selectors.EVENT_READ)
    requested: list[socket.socket] = []
    while len(requested) < count:
        for key, _ in selector.select():
            ready = key.fileobj
            assert isinstance(ready, socket.socket)
            if ready in listeners:
                connection, _ = ready.accept()
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                selector.register(connection, selectors.EVENT_READ)
                continue
            selector.unregister(ready)
            if ready.recv(65536).startswith(request_line):
                ready.setblocking(False)  # a slow reader must not block the others
                requested.append(ready)
            else:
                ready.close()
    selector.close()
    return requested


if __name__ == "__main__":
    main()
