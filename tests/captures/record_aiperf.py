"""Record what aiperf exports: ``python -m tests.captures.record_aiperf``.

Writes ``aiperf_profile_export.jsonl`` to the folder of this file: the export of one level of
``tokenslo load --driver aiperf``, byte for byte.  The server answers by the number of the request:
see :func:`_answer`.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import tempfile
from pathlib import Path

from aiohttp import web

from lab import aiperf
from loadtest.aiperf import aiperf_arguments
from loadtest.settings import LoadEndpoint, LoadLevel, PromptClass, Workload
from tests.fake_server import serving

FILE = Path(__file__).parent / "aiperf_profile_export.jsonl"
LEVEL = LoadLevel("rate", 4)
WORK = Workload((PromptClass(8),), 4, warm_up=1.0, duration=5.0, timeout=1.0, seed=1)
KINDS = ("whole", "whole", "uncounted", "unavailable", "truncated", "stalled")
"""What happens to the first request, the second one, and so on; then again."""


async def _answer(request: web.Request, kind: str) -> web.StreamResponse:
    """Answer a chat request with four chunks."""
    if kind == "unavailable":
        return web.json_response({"error": {"message": "queue full"}}, status=503)
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await response.prepare(request)
    for number in range(4):
        await asyncio.sleep(0.02)
        delta = {"index": 0, "delta": {"content": f"{number} "}, "finish_reason": None}
        await _send(response, {"object": "chat.completion.chunk", "choices": [delta]})
        if number == 1 and kind == "truncated":
            assert request.transport
            request.transport.abort()
            return response
        if number == 1 and kind == "stalled":
            await asyncio.sleep(10)
    if kind == "whole":
        usage = {"prompt_tokens": 8, "completion_tokens": 4, "total_tokens": 12}
        await _send(response, {"object": "chat.completion.chunk", "choices": [], "usage": usage})
    await response.write(b"data: [DONE]\n\n")
    return response


async def _send(response: web.StreamResponse, event: dict[str, object]) -> None:
    await response.write(b"data: " + json.dumps(event).encode() + b"\n\n")


async def _run(program: Path, folder: Path) -> None:
    """Run aiperf on the server; its tokenizer is in the folder."""
    kinds = itertools.cycle(KINDS)

    async def handle(request: web.Request) -> web.StreamResponse:
        if not request.path.endswith("/chat/completions"):
            return web.Response(status=404)
        return await _answer(request, next(kinds))

    async with serving(handle) as url:
        endpoint = LoadEndpoint(url, "chat", "llama")
        tokenizer = str(folder / "tokenizer")
        arguments = aiperf_arguments(endpoint, LEVEL, WORK, tokenizer, str(folder))
        process = await asyncio.create_subprocess_exec(str(program), *arguments)
        await process.wait()


def main() -> None:
    program = aiperf.program(print)
    with tempfile.TemporaryDirectory() as scratch:
        aiperf.write_tokenizer(program, Path(scratch, "tokenizer"))
        asyncio.run(_run(program, Path(scratch)))
        [export] = Path(scratch).rglob("profile_export.jsonl")
        FILE.write_bytes(export.read_bytes())


if __name__ == "__main__":
    main()
