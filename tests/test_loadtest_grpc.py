"""The gRPC client of a load test against a server in the same process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import grpc
import pytest
from tritonclient.grpc import service_pb2, service_pb2_grpc

from loadtest.grpc_client import GrpcRequests
from loadtest.records import RequestRecord
from loadtest.session import UnusableEndpointError, check_endpoint
from loadtest.settings import (
    LoadEndpoint,
    PromptClass,
    RequestPlan,
    UnsupportedModelError,
    Workload,
)
from promql.client_config import HttpClientConfig

Text = bytes | grpc.StatusCode | str
PLAN = RequestPlan(1, PromptClass(3), "a b c", 2)
INPUTS = (("text_input", "BYTES", 2), ("max_tokens", "INT32", 2), ("streaming", "BOOL", 1))


@dataclass
class FakeModel(service_pb2_grpc.GRPCInferenceServiceServicer):  # type: ignore[misc]
    """Responds with texts; a status ends the call, and a string is an in-band error."""

    texts: Sequence[Text] = ()
    inputs: Sequence[tuple[str, str, int]] = INPUTS
    final: bool = True
    lengths: bool = False
    requests: list[Any] = field(default_factory=list)
    metadata: list[Any] = field(default_factory=list)

    async def ModelMetadata(self, request: Any, context: Any) -> Any:  # noqa: N802
        if request.name != "llm":
            await context.abort(grpc.StatusCode.NOT_FOUND, "unknown model")
        found = service_pb2.ModelMetadataResponse(name=request.name)
        for name, kind, dimensions in self.inputs:
            found.inputs.add(name=name, datatype=kind, shape=[-1] * dimensions)
        return found

    async def ModelStreamInfer(self, requests: Any, context: Any) -> Any:  # noqa: N802
        self.metadata.append(dict(context.invocation_metadata()))
        async for request in requests:
            self.requests.append(request)
            for text in self.texts:
                if isinstance(text, grpc.StatusCode):
                    await context.abort(text, "refused")
                yield self._response(text)
            if self.final:
                last = service_pb2.ModelStreamInferResponse()
                last.infer_response.parameters["triton_final_response"].bool_param = True
                yield last

    def _response(self, text: bytes | str) -> Any:
        message = service_pb2.ModelStreamInferResponse()
        if isinstance(text, str):
            message.error_message = text
            return message
        response = message.infer_response
        response.outputs.add(name="text_output", datatype="BYTES", shape=[1])
        response.raw_output_contents.append(len(text).to_bytes(4, "little") + text)
        if self.lengths:
            response.outputs.add(name="num_output_tokens", datatype="INT32", shape=[1])
            response.raw_output_contents.append((7).to_bytes(4, "little"))
        return message


@asynccontextmanager
async def serving(model: FakeModel) -> AsyncIterator[str]:
    server = grpc.aio.server()
    service_pb2_grpc.add_GRPCInferenceServiceServicer_to_server(model, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        await server.stop(None)


async def sent(
    url: str,
    plan: RequestPlan = PLAN,
    http: HttpClientConfig | None = None,
    model: str = "llm",
    **work: Any,
) -> RequestRecord:
    clock = asyncio.get_running_loop().time
    record = RequestRecord(plan.number, plan.prompt.name, plan.output_tokens, clock())
    endpoint = LoadEndpoint(url, "grpc", model, http or HttpClientConfig())
    async with GrpcRequests(endpoint, Workload(**{"timeout": 20.0} | work), clock) as client:
        await client.send(plan, record)
    return record


@pytest.mark.parametrize(
    ("model", "outcome", "reason", "chunks"),
    [
        (FakeModel([b"a", b"", b"b"]), "ok", "", 2),
        (FakeModel([b"a"], final=False), "truncated", "truncated", 1),
        (FakeModel([b"a", "boom"]), "error", "in_band", 1),
        (FakeModel([grpc.StatusCode.UNAVAILABLE]), "error", "UNAVAILABLE", 0),
        (FakeModel([b"a", grpc.StatusCode.INTERNAL]), "error", "INTERNAL", 1),
        (FakeModel([grpc.StatusCode.INVALID_ARGUMENT]), "invalid", "INVALID_ARGUMENT", 0),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
async def test_outcomes_of_streams(
    model: FakeModel, outcome: str, reason: str, chunks: int
) -> None:
    async with serving(model) as url:
        record = await sent(url)
    assert (record.outcome, record.reason, len(record.chunks)) == (outcome, reason, chunks)
    assert record.sent <= min(record.chunks, default=record.ended) <= record.ended


async def test_members_become_inputs_of_the_model_or_parameters() -> None:
    model = FakeModel([b"a"], lengths=True)
    async with serving(model) as url:
        record = await sent(url, extra={"temperature": 0.5})
    [request] = model.requests
    inputs = {each.name: (each.datatype, list(each.shape)) for each in request.inputs}
    assert inputs == {
        "text_input": ("BYTES", [1, 1]),
        "streaming": ("BOOL", [1]),  # the LLM API model's name of stream
        "max_tokens": ("INT32", [1, 1]),
    }
    contents = dict(zip(inputs, request.raw_input_contents, strict=True))
    assert contents["text_input"] == b"\x05\x00\x00\x00a b c"
    assert contents["max_tokens"] == b"\x02\x00\x00\x00"
    parameters = request.parameters
    assert parameters["triton_enable_empty_final_response"].bool_param
    assert parameters["ignore_eos"].bool_param
    assert parameters["min_tokens"].int64_param == 2
    assert parameters["temperature"].double_param == 0.5
    assert record.output_tokens == 7


async def test_credentials_are_metadata() -> None:
    model = FakeModel([b"a"])
    async with serving(model) as url:
        await sent(url, http=HttpClientConfig(lambda: "Bearer abc"))
    assert model.metadata[0]["authorization"] == "Bearer abc"


async def test_a_planned_cancellation_and_an_unreachable_server() -> None:
    plan = RequestPlan(1, PromptClass(3), "a b c", 9, cancel_after=2)
    async with serving(FakeModel([b"a"] * 9)) as url:
        record = await sent(url, plan)
        unknown = await sent(url, model="other")
    assert (record.outcome, len(record.chunks)) == ("client_disconnected", 2)
    assert (unknown.outcome, unknown.reason) == ("invalid", "NOT_FOUND")
    assert (await sent(url)).reason == "unreachable"


async def test_a_model_without_text_is_refused() -> None:
    async with serving(FakeModel(inputs=(("input_ids", "INT32", 2),))) as url:
        with pytest.raises(UnusableEndpointError, match="has no input text_input of strings"):
            await check_endpoint(LoadEndpoint(url, "grpc", "llm"), Workload())
    async with serving(FakeModel([b"a"])) as url:
        with pytest.raises(UnsupportedModelError, match="'many' is no value for an input of type"):
            await sent(url, extra={"max_tokens": "many"})
