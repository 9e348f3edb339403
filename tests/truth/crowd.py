"""Run many clients of one kind in a process: ``python -m tests.truth.crowd KIND PORT …``.

Prints a line when it is ready and starts on a line from standard input, so that start-up does not
delay other clients.  Then prints one JSON object: every
:class:`tests.truth.client_record.ClientRecord`, and the wake-up delays of a sleeping thread, which
estimate the delay in the measured times.
"""

from __future__ import annotations

import argparse
import json
import queue
import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict, replace
from functools import partial
from typing import Any, Literal, get_args

from tests.truth import over_http
from tests.truth.client_record import ClientRecord
from tests.truth.over_http import PATIENCE_SECONDS

Kind = Literal["triton_http", "openai_http", "openai_package", "triton_grpc", "triton_whole"]
KINDS: Sequence[Kind] = get_args(Kind)
ClientRequest = Any
"""An ``HttpClientRequest`` or ``GrpcClientRequest``; only some processes import gRPC."""
Table = Sequence[tuple[int, ClientRequest]]

LENGTHS = range(5, 13)
"""Tokens of a response; clients that disconnect mid-stream do so before the fourth."""
_DISCONNECT_AFTER = range(1, 4)
_TOKENS_WHILE_STALLED = 8
_SWITCH_SECONDS = 0.0002
_SLEEP_SECONDS = 0.005

_USAGE = {"stream_options": {"include_usage": True}}
_CONTINUOUS = {"stream_options": {"include_usage": True, "continuous_usage_stats": True}}
UNKNOWN = "absent"
"""A model that no server has."""
_SLOW = "stalled"
"""Suffix of models whose clients read late; the times of their tokens are not compared."""


def planned_requests(kind: Kind) -> Iterator[ClientRequest]:
    """Yield the requests of a kind of clients, with random lengths and points of disconnect."""
    pick = random.Random(kind)
    every = [planned for count, planned in _TABLES[kind]() for _ in range(count)]
    pick.shuffle(every)
    for planned in (*_FIRST.get(kind, ()), *every):
        stalled = _TOKENS_WHILE_STALLED if planned.model.endswith(_SLOW) else 0
        yield replace(
            planned, tokens=pick.choice(LENGTHS) + stalled, after=pick.choice(_DISCONNECT_AFTER)
        )


def _triton_http() -> Table:
    planned = over_http.HttpClientRequest("generate", "http", 0)
    stalled = replace(planned, model=f"http_{_SLOW}")
    return [
        (370, planned),
        (30, replace(planned, manner="close early")),
        (30, replace(planned, manner="reset early")),
        (50, replace(planned, manner="close")),
        (40, replace(planned, manner="reset")),
        (20, replace(planned, manner="half-close early")),
        (20, replace(planned, manner="half-close")),
        (6, replace(planned, manner="die")),
        (20, replace(planned, more={"fail_after": 3})),
        (10, replace(planned, more={"fail_after": 0})),
        (10, replace(planned, more={"max_tokens": "many"})),
        (10, replace(planned, model=UNKNOWN)),
        (20, replace(stalled, manner="close unread")),
        (20, replace(stalled, manner="pause")),
        (20, replace(stalled, manner="pause and close")),
    ]  # fmt: skip


def _openai_http() -> Table:
    chat, text = (
        over_http.HttpClientRequest("chat", "openai", 0),
        over_http.HttpClientRequest("completions", "openai", 0),
    )
    stalled = replace(chat, model=f"openai_{_SLOW}")
    return [
        (100, chat),
        (100, text),
        (60, replace(chat, more=_USAGE)),
        (60, replace(text, more=_CONTINUOUS)),
        (60, replace(chat, more=_CONTINUOUS)),
        (30, replace(chat, manner="close early")),
        (30, replace(text, manner="reset early")),
        (30, replace(chat, manner="close")),
        (30, replace(text, manner="close", more=_CONTINUOUS)),
        (40, replace(chat, manner="reset")),
        (15, replace(text, manner="half-close early")),
        (15, replace(chat, manner="half-close")),
        (6, replace(text, manner="die")),
        (15, replace(chat, more={"fail_after": 3})),
        (15, replace(text, more={"fail_after": 0})),
        (10, replace(chat, more={"n": 2})),
        (20, replace(text, stream=False)),
        (20, replace(stalled, manner="close unread")),
        (20, replace(stalled, manner="pause", more=_CONTINUOUS)),
        (20, replace(stalled, manner="pause and close")),
    ]  # fmt: skip


def _openai_package() -> Table:
    chat, text = (
        over_http.HttpClientRequest("chat", "openai", 0),
        over_http.HttpClientRequest("completions", "openai", 0),
    )
    return [
        (80, chat),
        (60, text),
        (60, replace(chat, more=_USAGE)),
        (60, replace(text, more=_CONTINUOUS)),
        (50, replace(chat, manner="close")),
        (10, replace(chat, more={"fail_after": 2})),
        (10, replace(text, more={"n": 2})),
        (10, replace(text, stream=False)),
    ]  # fmt: skip


def _triton_grpc() -> Table:
    from tests.truth.over_grpc import GrpcClientRequest as Stream

    planned = Stream("grpc", 0)
    return [
        (100, planned),
        (100, replace(planned, final=True)),
        (40, replace(planned, manner="in turn")),
        (20, replace(planned, manner="in turn", final=True)),
        (30, replace(planned, manner="at once")),
        (30, replace(planned, manner="at once", final=True)),
        (40, replace(planned, manner="half-close")),
        (40, replace(planned, manner="cancel early")),
        (70, replace(planned, manner="cancel", final=True)),
        (3, replace(planned, manner="die")),
        (20, replace(planned, more={"fail_after": 3})),
        (20, replace(planned, more={"fail_after": 0}, final=True)),
        (10, replace(planned, model=UNKNOWN)),
    ]  # fmt: skip


def _triton_whole() -> Table:
    from tests.truth.over_grpc import GrpcClientRequest as Call

    planned = over_http.HttpClientRequest("generate", "plain", 0, stream=False)
    call = Call("plain", 0, "whole")
    slow = {"text": "sleep 0.02"}
    return [
        (20, planned),
        (20, replace(planned, model="bounded", more={"text_input": "sleep 0.02"})),
        (20, call),
        (20, replace(call, model="bounded", more=slow)),
        (5, replace(call, model=UNKNOWN)),
        (5, replace(call, more={"text": "error"})),
    ]  # fmt: skip


_TABLES: dict[Kind, Callable[[], Table]] = {
    "triton_http": _triton_http,
    "openai_http": _openai_http,
    "openai_package": _openai_package,
    "triton_grpc": _triton_grpc,
    "triton_whole": _triton_whole,
}


# The package builds its response parsers at the first response, which delays that.
_FIRST: dict[Kind, Sequence[ClientRequest]] = {
    "openai_package": [
        over_http.HttpClientRequest(api, f"openai_{_SLOW}", 0)
        for api in ("chat", "completions")
        for _ in "ab"
    ]
}


class Crowd:
    """Concurrent clients, each with one request after the other."""

    def __init__(self, kind: Kind, ports: Sequence[int], every: Sequence[ClientRequest]) -> None:
        self.seen: list[ClientRecord] = []
        self.wakeup_delays: list[float] = []
        self._kind, self._ports = kind, ports
        self._remaining: queue.SimpleQueue[ClientRequest] = queue.SimpleQueue()
        self._problem: BaseException | None = None
        for planned in every:
            self._remaining.put(planned)

    def run(self, at_once: int) -> None:
        """Run all requests with ``at_once`` clients; raise the first exception of a client."""
        over = threading.Event()
        watch = threading.Thread(target=self._measure_wakeups, args=(over,))
        threads = [threading.Thread(target=self._work, args=(number,)) for number in range(at_once)]
        for thread in (watch, *threads):
            thread.start()
        for thread in threads:
            thread.join()
        over.set()
        watch.join()
        if self._problem:
            raise self._problem

    def _work(self, number: int) -> None:
        pick = random.Random(number)
        try:
            with _client(self._kind, self._ports) as run:
                while not self._problem:
                    time.sleep(pick.uniform(0, 0.02))
                    self.seen += run(self._remaining.get_nowait())
        except queue.Empty:
            pass
        except BaseException as problem:
            self._problem = problem

    def _measure_wakeups(self, over: threading.Event) -> None:
        while not over.is_set():
            began = time.monotonic()
            time.sleep(_SLEEP_SECONDS)
            self.wakeup_delays.append(time.monotonic() - began - _SLEEP_SECONDS)


Run = Callable[[ClientRequest], list[ClientRecord]]


@contextmanager
def _client(kind: Kind, ports: Sequence[int]) -> Iterator[Run]:
    """Yield a function that runs a request as a client of a kind.

    ``ports`` are Triton's for HTTP and gRPC, or those of two servers with OpenAI's API: each has
    one model, and the second serves the clients that read late.
    """
    if kind == "openai_package":
        from tests.truth.over_openai import OpenAIPackageClient as Package

        with closing(Package(ports[0])) as prompt, closing(Package(ports[1])) as slow:
            yield lambda planned: [(slow if planned.model.endswith(_SLOW) else prompt).run(planned)]
    elif kind == "openai_http":
        yield lambda planned: _over_http(ports[planned.model.endswith(_SLOW)], planned)
    elif kind == "triton_http":
        yield partial(_over_http, ports[0])
    else:
        from tests.truth.over_grpc import GrpcStreamClient as Streams

        with closing(Streams(ports[1])) as streams:

            def run(planned: ClientRequest) -> list[ClientRecord]:
                if isinstance(planned, over_http.HttpClientRequest):
                    return _over_http(ports[0], planned)
                return _killed("over_grpc", ports[1], planned) or streams.run(planned)

            yield run


def _over_http(port: int, planned: over_http.HttpClientRequest) -> list[ClientRecord]:
    return _killed("over_http", port, planned) or [over_http.HttpStreamClient(port, planned).run()]


def _killed(module: str, port: int, planned: ClientRequest) -> list[ClientRecord]:
    """Send a request from a separate process that is killed; return nothing for other manners."""
    if planned.manner != "die":
        return []
    command = [
        sys.executable,
        "-m",
        f"tests.truth.{module}",
        str(port),
        json.dumps(asdict(planned)),
    ]
    printed = subprocess.run(command, stdout=subprocess.PIPE, timeout=2 * PATIENCE_SECONDS).stdout
    return [ClientRecord(**json.loads(printed))]


def main() -> None:
    """Run a crowd of clients, and print their results."""
    # Short switch intervals keep the delay between threads out of the measured times.
    sys.setswitchinterval(_SWITCH_SECONDS)
    parser = argparse.ArgumentParser(prog="python -m tests.truth.crowd")
    parser.add_argument("kind", choices=KINDS)
    parser.add_argument("ports", type=int, nargs="+")
    parser.add_argument("--at-once", type=int, default=4)
    parser.add_argument("--share", type=float, default=1.0, help="of all requests of the kind")
    given = parser.parse_args()
    every = list(planned_requests(given.kind))
    crowd = Crowd(given.kind, given.ports, every[: round(given.share * len(every))])
    with _client(given.kind, given.ports):  # imports the clients
        print("ready", flush=True)
    sys.stdin.readline()
    crowd.run(given.at_once)
    found = {"seen": [asdict(seen) for seen in crowd.seen], "wakeup_delays": crowd.wakeup_delays}
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main()
