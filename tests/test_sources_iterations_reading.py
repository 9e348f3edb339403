"""Read iteration records over HTTP and from files, and handle failures."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from exporter.samples import Distribution, Measurement, Missing, Snapshot, SourceError
from exporter.sources.trtllm.iterations_source import (
    IterationsFileSource,
    IterationsSource,
    pause_for,
    served_model,
)
from exporter.store.store import Store
from promql.http_client import FetchLimits
from tests.polling import until
from tests.tcp_server import listening
from tests.test_sources_iterations import Json, cpp, pytorch

MIB = 2**20
PATIENCE = 30.0


@dataclass
class FakeServe:
    """A trtllm-serve that hands out ``records`` once; ``answer`` replaces what it does on a GET.

    ``answer`` gets the connection after the request was read.
    """

    records: list[Json] = field(default_factory=list)
    answer: Callable[[asyncio.StreamWriter], Awaitable[None]] | None = None
    models: str = '{"data": [{"id": "llama"}]}'
    requested: int = 0
    url: str = ""

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        request = await reader.readuntil(b"\r\n\r\n")
        try:
            if b"/v1/models" in request:
                await reply(writer, self.models.encode())
            else:
                self.requested += 1
                await (self.answer or self.drain)(writer)
        except ConnectionError:
            pass
        finally:
            writer.close()

    async def drain(self, writer: asyncio.StreamWriter) -> None:
        drained, self.records = self.records, []
        await reply(writer, json.dumps(drained).encode())


async def reply(writer: asyncio.StreamWriter, body: bytes, length: int | None = None) -> None:
    size = len(body) if length is None else length
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % size + body)
    await writer.drain()


@asynccontextmanager
async def fake_serve(*records: Json, **options: Any) -> AsyncIterator[FakeServe]:
    fake = FakeServe([*records], **options)
    async with listening(fake.handle) as port:
        fake.url = f"http://127.0.0.1:{port}"
        yield fake


def source(fake: FakeServe, **options: Any) -> IterationsSource:
    options.setdefault("limits", FetchLimits(timeout=5.0))
    return IterationsSource(fake.url, **options)


def value(snapshot: Snapshot, signal: str) -> Any:
    """Return the value of a signal, or the reason why there is none."""
    by_signal: dict[str, Measurement | Missing] = {gap.signal: gap for gap in snapshot.missing}
    by_signal.update({one.signal: one for one in snapshot.measurements})
    found = by_signal[signal]
    return found.samples[()] if isinstance(found, Measurement) else found.reason


def problems(snapshot: Snapshot) -> dict[str, str]:
    return {name: str(error) for name, error in snapshot.parts.items() if error}


async def test_records_are_read_and_reported_under_the_served_name() -> None:
    async with fake_serve(cpp(1), cpp(2)) as fake, source(fake) as reader:
        snapshot = await reader.snapshot(0.0)
    assert {(one.model, one.version) for one in snapshot.measurements} == {("llama", "")}
    assert [(info.model, info.backend) for info in snapshot.models] == [("llama", "trtllm-serve")]
    assert value(snapshot, "sequences_active") == 3
    assert value(snapshot, "output_tokens") == 4
    assert snapshot.engine_stats_age[("llama", "")] < 5.0
    assert (snapshot.lost_records, problems(snapshot)) == (0, {})


async def test_counts_continue_between_scrapes() -> None:
    async with fake_serve(cpp(1), cpp(2)) as fake, source(fake, model="m", version="3") as reader:
        await reader.snapshot(0.0)
        fake.records += [cpp(3), cpp(4)]
        snapshot = await reader.snapshot(1.0)
    itl = value(snapshot, "itl")
    assert isinstance(itl, Distribution)
    assert (itl.count, round(itl.sum, 6)) == (6, 0.12)
    assert {(one.model, one.version) for one in snapshot.measurements} == {("m", "3")}


@pytest.mark.parametrize(("before", "counted"), [(0, 4), (3, 0)])
async def test_records_after_an_empty_read_are_newer_than_the_sidecar(
    before: int, counted: float
) -> None:
    """Records of the first read may be older: they do not count."""
    store = Store(stale_after=60.0)
    async with fake_serve(*map(cpp, range(before))) as fake, source(fake, model="m") as reader:
        store.update(await reader.snapshot(0.0), 0.0, 0.1)
        if not before:
            fake.records += [cpp(1), cpp(2)]
        store.update(await reader.snapshot(1.0), 1.0, 0.1)
    [state] = [one for one in store.view(1.0).signals if one.signal == "output_tokens"]
    assert state.samples == {(): counted}


async def test_thresholds_are_bucket_boundaries() -> None:
    async with (
        fake_serve(*(cpp(n, 60.0) for n in range(5))) as fake,
        source(fake, thresholds={"itl": [0.06]}) as reader,
    ):
        itl = value(await reader.snapshot(0.0), "itl")
    assert itl.counts[itl.boundaries.index(0.06)] == itl.count == 8


async def test_server_without_records_has_a_fix() -> None:
    async with fake_serve() as fake, source(fake) as reader:
        snapshot = await reader.snapshot(0.0)
    assert value(snapshot, "itl") == "no iteration record was read yet"
    assert snapshot.engine_stats_age == {}


async def test_another_reader_shows_as_lost_records() -> None:
    async with fake_serve(cpp(1), cpp(2)) as fake, source(fake) as one, source(fake) as other:
        await one.snapshot(0.0)
        for first in range(3, 60, 6):
            fake.records = [cpp(n) for n in range(first, first + 3)]
            await other.snapshot(1.0)
            fake.records = [cpp(n) for n in range(first + 3, first + 6)]
            snapshot = await one.snapshot(1.0)
        assert snapshot.lost_records == 30
        assert problems(snapshot)["records"].startswith(
            "3 iteration records are missing: each is handed out once, so another reader"
        )
        fake.records = [cpp(63), cpp(64)]
        snapshot = await one.snapshot(2.0)
        assert (snapshot.lost_records, problems(snapshot)) == (30, {})
        assert "30 records are lost" in next(
            r.note for r in snapshot.measurements if r.signal == "itl"
        )


class TestSlowServers:
    async def test_held_request_continues_after_the_scrape(self) -> None:
        release = asyncio.Event()

        async def held(writer: asyncio.StreamWriter) -> None:
            await release.wait()
            await reply(writer, json.dumps([cpp(1), cpp(2)]).encode())

        quick = FetchLimits(timeout=0.5)
        async with fake_serve(answer=held) as fake, source(fake, limits=quick) as reader:
            snapshot = await reader.snapshot(0.0)
            assert value(snapshot, "output_tokens") == "no iteration record was read yet"
            await reader.snapshot(1.0)
            assert fake.requested == 1
            fake.answer = None
            release.set()

            async def is_read() -> bool:
                return value(await reader.snapshot(2.0), "output_tokens") == 4

            await until(is_read)

    async def test_long_hold_is_reported_and_withdraws_gauges_only(self) -> None:
        now = 100.0

        async def held(writer: asyncio.StreamWriter) -> None:
            await writer.wait_closed()

        quick = FetchLimits(timeout=0.5)
        async with (
            fake_serve(cpp(1), cpp(2)) as fake,
            source(fake, limits=quick, clock=lambda: now) as reader,
        ):
            await reader.snapshot(0.0)
            fake.answer = held
            snapshot = await reader.snapshot(1.0)
            assert value(snapshot, "sequences_active") == 3
            now = 104.0
            snapshot = await reader.snapshot(2.0)
        assert problems(snapshot)["metrics"].startswith(
            f"{fake.url}/metrics has not answered for 4 s"
        )
        assert value(snapshot, "output_tokens") == 4
        assert str(value(snapshot, "sequences_active")).startswith(fake.url)
        assert next(gap for gap in snapshot.missing if gap.signal == "sequences_active").unread

    async def test_records_before_a_timeout_are_used(self) -> None:
        body = json.dumps([cpp(n) for n in range(4)]).encode()

        async def drip(writer: asyncio.StreamWriter) -> None:
            await reply(writer, b"", len(body))
            for start in range(0, len(body), 400):
                writer.write(body[:-10][start : start + 400])
                await writer.drain()
                await asyncio.sleep(0)  # let the source read each part by itself
            await writer.wait_closed()

        async with fake_serve(answer=drip) as fake, source(fake, hold=0.4) as reader:
            with pytest.raises(SourceError, match=r"did not answer completely within 0\.4 s"):
                await reader.snapshot(0.0)
            fake.answer = None
            assert value(await reader.snapshot(1.0), "output_tokens") == 6


class TestBrokenAnswers:
    async def after(self, *answers: Callable[[asyncio.StreamWriter], Awaitable[None]]) -> Snapshot:
        """Return the snapshot after a good response and then these."""
        async with fake_serve(cpp(1)) as fake, source(fake, limits=FetchLimits(5.0, MIB)) as reader:
            snapshot = await reader.snapshot(0.0)
            for answer in answers:
                fake.answer = answer
                snapshot = await reader.snapshot(1.0)
            return snapshot

    async def test_truncated_body_has_its_complete_records(self) -> None:
        body = json.dumps([cpp(n) for n in range(2, 6)]).encode()

        async def cut(writer: asyncio.StreamWriter) -> None:
            await reply(writer, body[: int(len(body) * 0.8)], len(body))

        snapshot = await self.after(cut)
        assert value(snapshot, "output_tokens") == 8
        assert "closed the connection in mid-answer" in problems(snapshot)["metrics"]

    async def test_records_lost_by_truncation_are_counted(self) -> None:
        body = json.dumps([cpp(n) for n in range(2, 6)]).encode()

        async def cut(writer: asyncio.StreamWriter) -> None:
            await reply(writer, body[: int(len(body) * 0.4)], len(body))

        async def rest(writer: asyncio.StreamWriter) -> None:
            await reply(writer, json.dumps([cpp(n) for n in (6, 7)]).encode())

        snapshot = await self.after(cut, rest)
        assert snapshot.lost_records == 3

    async def test_reset_connection_fails_one_scrape(self) -> None:
        async def reset(writer: asyncio.StreamWriter) -> None:
            writer.transport.abort()

        snapshot = await self.after(reset)
        assert "metrics" in problems(snapshot)
        assert value(snapshot, "output_tokens") == 2
        assert str(value(snapshot, "sequences_active")).startswith("http://127.0.0.1")

    async def test_a_hundred_megabytes_are_not_read(self) -> None:
        sent = 0

        async def flood(writer: asyncio.StreamWriter) -> None:
            nonlocal sent
            await reply(writer, b"[", 100 * MIB)
            for number in range(2, 70_000):
                writer.write(json.dumps(cpp(number)).encode() + b",")
                sent = number
                await writer.drain()

        snapshot = await self.after(flood)
        assert problems(snapshot)["metrics"].endswith("answered more than 1048576 bytes")
        assert 2 * MIB / len(json.dumps(cpp(2))) / 4 < value(snapshot, "output_tokens") / 2 < 2000
        assert sent < 60_000

    @pytest.mark.parametrize(
        "body",
        [
            b"",
            b"null",
            b"[null, 7, [], {}]",
            b"<html>no</html>",
            b'{"error": "no"}',
            b"\xff\xfe\x00",
            b'[{"iter": "x"}, {"iter": -1}, {"iter": 1.5}, {"iter": NaN}]',
            b"[" * 5000,
        ],
    )
    async def test_invalid_records_are_skipped(self, body: bytes) -> None:
        async def odd(writer: asyncio.StreamWriter) -> None:
            await reply(writer, body)

        snapshot = await self.after(odd)
        assert value(snapshot, "output_tokens") == 2
        assert set(problems(snapshot)) <= {"records"}

    async def test_nan_and_infinity_leave_the_rest_of_a_record(self) -> None:
        odd = json.dumps([cpp(2, gpuMemUsage=float("nan"), iterLatencyMS=float("inf"))])
        assert "NaN" in odd
        assert "Infinity" in odd

        async def not_json(writer: asyncio.StreamWriter) -> None:
            await reply(writer, odd.encode())

        snapshot = await self.after(not_json)
        assert value(snapshot, "output_tokens") == 4
        assert value(snapshot, "itl").count == 0
        assert value(snapshot, "memory_gpu") == "the iteration records do not hold it"

    async def test_restarted_server_is_followed(self) -> None:
        async def again(writer: asyncio.StreamWriter) -> None:
            await reply(writer, json.dumps([pytorch(0), pytorch(1), pytorch(2)]).encode())

        snapshot = await self.after(again)
        assert (snapshot.lost_records, value(snapshot, "output_tokens")) == (0, 8)

    async def test_unreachable_server_is_an_error(self) -> None:
        async with fake_serve() as fake:
            url = fake.url
        async with IterationsSource(url) as reader:
            with pytest.raises(SourceError, match="nothing listens there"):
                await reader.snapshot(0.0)

    async def test_a_record_at_the_very_end_after_a_broken_one_counts(self) -> None:
        async def broken(writer: asyncio.StreamWriter) -> None:
            await reply(writer, b'{"a":,}{"iter":5}')

        async def rest(writer: asyncio.StreamWriter) -> None:
            await reply(writer, json.dumps([cpp(6)]).encode())

        assert (await self.after(broken, rest)).lost_records == 3

    @pytest.mark.parametrize("models", ["{}", '{"data": []}', '{"data": [{"id": 7}]}', "no"])
    async def test_server_without_a_model_name_needs_the_setting(self, models: str) -> None:
        async with fake_serve(cpp(1), models=models) as fake, source(fake) as reader:
            with pytest.raises(SourceError, match="/v1/models"):
                await reader.snapshot(0.0)

    async def test_address_is_reported_without_credentials(self) -> None:
        async with fake_serve() as fake:
            url = fake.url.replace("//", "//user:hunter2@")
        async with IterationsSource(url) as reader:
            with pytest.raises(SourceError) as raised:
                await reader.snapshot(0.0)
            assert "hunter2" not in f"{raised.value} {reader.where}"


class TestReadPause:
    @pytest.mark.parametrize(
        ("records", "seconds", "pause"),
        [(0, 1.0, 1.0), (50, 1.0, 1.0), (500, 1.0, 0.5), (1000, 1.0, 0.25), (1000, 0.1, 0.05)],
    )
    def test_the_queue_is_read_again_when_it_is_a_quarter_full(
        self, records: int, seconds: float, pause: float
    ) -> None:
        assert pause_for(records, seconds) == pause

    async def test_fast_engine_is_read_between_scrapes(self) -> None:
        """Time passes only with records, 1,000 a second: the queue is full after a second."""
        numbers, now, fourth = iter(range(10**9)), 0.0, asyncio.Event()

        async def fast(writer: asyncio.StreamWriter) -> None:
            nonlocal now
            now += 0.9
            if fake.requested == 4:
                fourth.set()
            await reply(writer, json.dumps([cpp(next(numbers)) for _ in range(900)]).encode())

        async with fake_serve(answer=fast) as fake, source(fake, clock=lambda: now) as reader:
            await reader.snapshot(0.0)
            async with asyncio.timeout(PATIENCE):
                await fourth.wait()
            snapshot = await reader.snapshot(1.0)
        assert snapshot.lost_records == 0

    async def test_closed_source_sends_no_request(self) -> None:
        async with fake_serve() as fake:
            before = asyncio.all_tasks()
            async with source(fake) as reader:
                await reader.snapshot(0.0)
                assert asyncio.all_tasks() > before
            await until(lambda: asyncio.all_tasks() == before)


@pytest.mark.parametrize(
    ("document", "name"),
    [({"data": [{"id": "a"}, {"id": "b"}]}, "a"), ([], None), ({"data": {"id": "a"}}, None)],
)
def test_the_served_model_is_the_first(document: object, name: str | None) -> None:
    assert served_model(document) == name


class TestFiles:
    @staticmethod
    def append(path: Path, *values: object) -> None:
        with path.open("a") as file:
            for one in values:
                file.write(one if isinstance(one, str) else json.dumps(one) + "\n")

    async def test_lines_count_as_they_are_appended(self, tmp_path: Path) -> None:
        path = tmp_path / "llama.jsonl"
        self.append(path, cpp(1), cpp(2))
        async with IterationsFileSource(str(path)) as reader:
            await reader.snapshot(0.0)
            self.append(path, cpp(3), json.dumps(cpp(4))[:50])
            snapshot = await reader.snapshot(1.0)
            assert value(snapshot, "output_tokens") == 2
            self.append(path, json.dumps(cpp(4))[50:] + "\n", "no record\n", cpp(5))
            snapshot = await reader.snapshot(2.0)
        assert value(snapshot, "output_tokens") == 6
        assert value(snapshot, "itl").count == 4
        assert {one.model for one in snapshot.measurements} == {"llama"}
        assert list(problems(snapshot)) == ["records"]

    async def test_a_file_that_is_truncated_is_read_from_its_start(self, tmp_path: Path) -> None:
        path = tmp_path / "records.log"
        self.append(path, *(cpp(n) for n in range(9)))
        async with IterationsFileSource(str(path), model="m") as reader:
            await reader.snapshot(0.0)
            path.write_text("")
            self.append(path, cpp(0), cpp(1))
            snapshot = await reader.snapshot(1.0)
        assert (value(snapshot, "output_tokens"), snapshot.lost_records) == (4, 0)

    async def test_no_file_is_an_error_until_there_is_one(self, tmp_path: Path) -> None:
        path = tmp_path / "records.jsonl"
        async with IterationsFileSource(str(path)) as reader:
            with pytest.raises(SourceError, match="there is no file"):
                await reader.snapshot(0.0)
            self.append(path, cpp(1))
            assert value(await reader.snapshot(1.0), "output_tokens") == 2
