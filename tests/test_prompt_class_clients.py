"""Prompt classes at a proxy tap, compared with the token counts that clients receive."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import openai
import pytest

from exporter.protocol.detection import observe
from exporter.protocol.events import ObserverSettings
from exporter.recording.stream_recorder import StreamRecorder
from exporter.samples import Distribution
from exporter.taps.proxy.proxy_tap import ProxyTap
from exporter.taps.tap import ProxySpec
from lab import trtllm_server
from lab.engine_settings import EngineSettings
from lab.trtllm_serve.settings import ServeSettings
from slos.prompt_classes import PromptClasses
from slos.signals import PROMPT_CLASS
from tests.polling import until
from tests.proxy_setup import on_loop
from tests.test_stream_recorder import measurements, value

HOST = "127.0.0.1"
QUICK = EngineSettings(
    step_seconds=0.002, sequence_seconds=0.0001, context_token_seconds=0.000001, kv_blocks=8000
)
MODEL = "org/model"
CLASSES = PromptClasses.of((16, 64, 256))
LENGTHS = (1, 15, 16, 17, 63, 64, 65, 255, 256, 257, 900)
"""Tokens of prompts, on both sides of each bound."""
FAR_LENGTHS = (5, 40, 150, 900)
"""Tokens of prompts far from the bounds: what an estimate cannot confuse."""
WORD = "abc "
"""A token of the server: with its space as long as a usual token."""


@pytest.fixture(scope="module")
def port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    folder: Path = tmp_path_factory.mktemp("serve")
    with trtllm_server.start(folder, ServeSettings(model=MODEL), QUICK) as server:
        yield server.ports[0]


@asynccontextmanager
async def tapped(port: int) -> AsyncIterator[tuple[openai.AsyncOpenAI, StreamRecorder]]:
    """Yield a client of a proxy tap before a server, and the recorder of the tap."""
    recorder = StreamRecorder({}, expected=[MODEL], prompt_classes=CLASSES.bounds)
    settings = ObserverSettings(measure_prompts=True)
    tap = ProxyTap(
        ProxySpec(HOST, 0, HOST, port), partial(observe, recorder, settings), recorder.skipped
    )
    await tap.start()
    client = openai.AsyncOpenAI(
        base_url=f"http://{HOST}:{tap.port}/v1", api_key="none", max_retries=0
    )
    try:
        async with client:
            yield client, recorder
    finally:
        await tap.close()


async def complete(client: openai.AsyncOpenAI, prompt: Any, **more: Any) -> int:
    """Send a completion; return the number of input tokens in its response."""
    answer = await client.completions.create(model=MODEL, prompt=prompt, max_tokens=2, **more)
    if not more.get("stream"):
        return int(answer.usage.prompt_tokens)
    tokens = [chunk.usage.prompt_tokens async for chunk in answer if chunk.usage]
    return int(tokens[-1])


def by_class(recorder: StreamRecorder, signal: str) -> Counter[str]:
    """Return the events of a signal by prompt class."""
    found: Counter[str] = Counter()
    for one in measurements(recorder):
        for labels, number in one.samples.items() if one.signal == signal else ():
            count = number.count if isinstance(number, Distribution) else number
            found[dict(labels)[PROMPT_CLASS]] += int(count)
    return +found


USAGE = {"include_usage": True}
EACH_TOKEN = {"include_usage": True, "continuous_usage_stats": True}


@pytest.mark.parametrize(
    ("exact", "more"),
    [
        pytest.param(True, {}, id="whole"),
        pytest.param(True, {"stream": True, "stream_options": EACH_TOKEN}, id="continuous-usage"),
        pytest.param(False, {"stream": True, "stream_options": USAGE}, id="usage-at-the-end"),
    ],
)
@on_loop("uvloop")
async def test_text_has_the_class_of_the_clients_count(
    port: int, exact: bool, more: dict[str, Any]
) -> None:
    async with tapped(port) as (client, recorder):
        lengths = LENGTHS if exact else FAR_LENGTHS
        counts = await asyncio.gather(
            *(complete(client, (WORD * tokens).strip(), **more) for tokens in lengths)
        )
        await until(lambda: value(recorder, "requests") == len(lengths))
        assert counts == [*lengths]
        expected = Counter(map(CLASSES.label, counts))
        signals = ("requests", "prompt_class", *(["ttft"] if more else []))
        assert {signal: by_class(recorder, signal) for signal in signals} == dict.fromkeys(
            signals, expected
        )
        assert value(recorder, "prompt_class", basis="count") == len(lengths) * exact


@on_loop("uvloop")
async def test_token_ids_have_the_class_of_the_clients_count(port: int) -> None:
    async with tapped(port) as (client, recorder):
        prompts = [[*range(tokens)] for tokens in LENGTHS]
        more = {"stream": True, "stream_options": USAGE}
        counts = await asyncio.gather(*(complete(client, prompt, **more) for prompt in prompts))
        await until(lambda: value(recorder, "requests") == len(LENGTHS))
        assert counts == [*LENGTHS]
        assert by_class(recorder, "ttft") == Counter(map(CLASSES.label, counts))
        assert value(recorder, "prompt_class", basis="count") == len(LENGTHS)
