"""Send one request of a load test over HTTP, and time its stream."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from typing import Any

import aiohttp

from loadtest.apis import APIS, LoadApi
from loadtest.records import RequestRecord, outcome_of_status
from loadtest.settings import LoadEndpoint, RequestPlan, Workload
from promql.http_client import HttpError, new_session
from slos.outcomes import Outcome

_DONE = b"[DONE]"
_KEEP_ALIVE = 2.0  # seconds; below those of servers, which would close a connection first


class HttpRequests:
    """Requests of an endpoint over HTTP; ``clock`` returns monotonic seconds."""

    def __init__(self, endpoint: LoadEndpoint, work: Workload, clock: Callable[[], float]) -> None:
        assert endpoint.api != "grpc"  # noqa: S101 - it has a class of its own
        self._api: LoadApi = APIS[endpoint.api]
        self._url = endpoint.url + self._api.path(endpoint.model, "")
        self._model = endpoint.model
        self._config = endpoint.http
        self._work = work
        self._clock = clock
        self._session: aiohttp.ClientSession

    async def __aenter__(self) -> HttpRequests:
        """Open the session."""
        self._session = new_session(self._config, connections=0, keep_alive=_KEEP_ALIVE)
        return self

    async def __aexit__(self, *_: object) -> None:
        """Close the session."""
        await self._session.close()

    async def send(self, plan: RequestPlan, record: RequestRecord) -> None:
        """Send a request and fill its record, whatever its outcome."""
        body = request_body(self._api, self._model, plan, self._work.extra)
        record.sent = self._clock()
        try:
            async with asyncio.timeout(self._work.timeout), self._post(body) as response:
                record.outcome, record.reason = await self._read(response, plan, record)
        except TimeoutError:
            record.outcome, record.reason = "timeout", "client"
        except HttpError as error:
            record.outcome, record.reason = "error", error.kind
        except aiohttp.ClientConnectorError:
            record.outcome, record.reason = "error", "unreachable"
        except aiohttp.ClientError:
            record.outcome, record.reason = "error", "reset"
        except ValueError:
            record.outcome, record.reason = "error", "malformed"
        record.ended = self._clock()

    def _post(self, body: object) -> AbstractAsyncContextManager[aiohttp.ClientResponse]:
        timeout = aiohttp.ClientTimeout(total=None)
        return self._session.post(self._url, json=body, timeout=timeout, allow_redirects=False)

    async def _read(
        self, response: aiohttp.ClientResponse, plan: RequestPlan, record: RequestRecord
    ) -> tuple[Outcome, str]:
        """Read the stream; return outcome and reason."""
        if response.status != 200:
            return outcome_of_status(response.status), str(response.status)
        api, chunks, clock = self._api, record.chunks, self._clock
        complete = api.finished is None
        async for line in response.content:
            if not line.startswith(b"data:"):
                continue
            data = line[5:].strip()
            if data == _DONE:
                complete = True
                continue
            event = json.loads(data)
            if not isinstance(event, dict) or event.get("error"):
                return "error", "in_band"
            if api.text(event):
                chunks.append(clock())
                if len(chunks) == plan.cancel_after:
                    response.close()
                    return "client_disconnected", "planned"
            if api.finished and api.finished(event):
                complete = True
            if reported := api.tokens(event):
                record.input_tokens = reported.input
                record.output_tokens = reported.output
        return ("ok", "") if complete else ("truncated", "truncated")


def request_body(
    api: LoadApi, model: str, plan: RequestPlan, extra: Mapping[str, object]
) -> dict[str, Any]:
    """Return the body of a request whose response has exactly the planned length."""
    return {
        **api.prompt(model, plan.text),
        "stream": True,
        **api.usage,
        **matched_work(plan),
        **extra,
    }


def matched_work(plan: RequestPlan) -> dict[str, Any]:
    """Return the parameters that make a response exactly as long as planned."""
    tokens = plan.output_tokens
    return {"max_tokens": tokens, "min_tokens": tokens, "ignore_eos": True}
