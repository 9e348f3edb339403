"""Stream tokens through a peer, and measure its CPU time and the tokens' age at the client."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from bench.figures import MedianInterval, RepeatLimits, median_interval, repeat
from bench.streams.peers import StreamPeer
from bench.streams.processes import Worker
from lab.process import free_ports

WARM_UP, SECONDS = 0.5, 1.5
MODEL = "llama"


@dataclass(frozen=True)
class StreamCase:
    """A number of streams of one form; ``rate`` is their total tokens per second."""

    form: str
    streams: int
    rate: int

    def __str__(self) -> str:
        plural = "s" if self.streams > 1 else ""
        return f"{self.streams:,} {self.form} stream{plural}, {self.rate:,} tokens/s"


@dataclass(frozen=True)
class TapCost:
    """One run: CPU seconds per token by either clock, and the age of tokens on arrival."""

    run: float
    clock: float
    p50: float
    p99: float


Costs = Mapping[str, TapCost]
"""The costs of one round, by the name of the peer."""


class StreamLoad:
    """Run the server and its clients, and measure the peer between them."""

    def __init__(self, stack: ExitStack) -> None:
        self.ports = free_ports(2)
        listen = ",".join(map(str, self.ports))
        self._server = Worker(stack, "bench.streams.server", listen)
        self._clients = Worker(stack, "bench.streams.clients")
        self._server.line()

    @property
    def pids(self) -> tuple[int, int]:
        """The processes of the server and of the clients."""
        return self._server.pid, self._clients.pid

    def measure(self, case: StreamCase, peer: StreamPeer, seconds: float = SECONDS) -> TapCost:
        """Measure one peer on one case."""
        with self.streaming(case, peer.port, WARM_UP, seconds):
            before, used = self.sent(), peer.cpu()
            after, used_then = self.sent(), peer.cpu()
        used, tokens = used_then - used, after - before
        return TapCost(used.run / tokens, used.clock / tokens, self._ages["p50"], self._ages["p99"])

    def rounds(
        self, case: StreamCase, peers: Sequence[StreamPeer], limits: RepeatLimits
    ) -> list[Costs]:
        """Measure all peers in turn in each round, until the ratios to nginx have settled."""
        return repeat(
            lambda: {peer.name: self.measure(case, peer) for peer in peers},
            lambda rounds: [
                ratio(rounds, peer.name, field)
                for peer in peers
                if peer.tap and "nginx" in rounds[0]
                for field in ("run", "p99")
            ],
            limits,
        )

    @contextmanager
    def streaming(
        self, case: StreamCase, port: int, warm_up: float, seconds: float
    ) -> Iterator[None]:
        """Start streams; ``sent`` returns first after the warm-up, then at the end."""
        command = {"form": case.form, "model": MODEL, "streams": case.streams, "warm_up": warm_up}
        self._server.send(**command, rate=case.rate, seconds=seconds)
        self._clients.send(**command, port=port)
        yield
        self._ages: Mapping[str, float] = self._clients.result()

    def sent(self) -> int:
        """Wait for the server's next report; return the number of tokens sent so far."""
        return int(self._server.line().split()[1])


def ratio(rounds: Sequence[Costs], name: str, field: str, to: str = "nginx") -> MedianInterval:
    """Return the ratio of two peers' costs; other load affects both alike in a round."""
    return median_interval(
        getattr(costs[name], field) / getattr(costs[to], field) for costs in rounds
    )
