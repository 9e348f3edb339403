"""Send one request of a load test over gRPC's ModelStreamInfer, and time its stream."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any
from urllib.parse import urlsplit

import grpc
from tritonclient.grpc import service_pb2, service_pb2_grpc

from loadtest.http_client import matched_work
from loadtest.records import RequestRecord
from loadtest.settings import LoadEndpoint, RequestPlan, UnsupportedModelError, Workload
from slos.outcomes import Outcome

_FINAL = "triton_final_response"
_WANT_FINAL = "triton_enable_empty_final_response"
_TEXT_INPUT, _TEXT_OUTPUT = "text_input", "text_output"
_LENGTHS = ("num_input_tokens", "num_output_tokens")
# Names of the same input in TensorRT-LLM's C++ backend, in its ensembles and in its LLM API model.
_ALTERNATIVES: Mapping[str, tuple[str, ...]] = {
    "max_tokens": ("request_output_len", "sampling_param_max_tokens"),
    "min_tokens": ("min_length", "sampling_param_min_tokens"),
    "ignore_eos": ("sampling_param_ignore_eos",),
    "stream": ("streaming",),
}
_PACKED = {"INT32": "<i", "INT64": "<q", "UINT32": "<I", "FP32": "<f", "BOOL": "?"}
_BY_STATUS: Mapping[str, Outcome] = {
    "RESOURCE_EXHAUSTED": "shed",
    "DEADLINE_EXCEEDED": "timeout",
    "INVALID_ARGUMENT": "invalid",
    "NOT_FOUND": "invalid",
    "UNAUTHENTICATED": "invalid",
    "PERMISSION_DENIED": "invalid",
}
_NOT_CONNECTED = "failed to connect"  # in gRPC's details of UNAVAILABLE


class GrpcRequests:
    """Requests of an endpoint over gRPC, each a stream of one connection.

    ``clock`` returns monotonic seconds.
    """

    def __init__(self, endpoint: LoadEndpoint, work: Workload, clock: Callable[[], float]) -> None:
        parts = urlsplit(endpoint.url)
        self._address, self._secure = parts.netloc, parts.scheme == "https"
        self._model, self._http = endpoint.model, endpoint.http
        self._work, self._clock = work, clock
        self._inputs: dict[str, tuple[str, int]] = {}
        self._channel: Any
        self._stub: Any

    async def __aenter__(self) -> GrpcRequests:
        """Open the connection."""
        if self._secure:
            credentials = grpc.ssl_channel_credentials()
            self._channel = grpc.aio.secure_channel(self._address, credentials)
        else:
            self._channel = grpc.aio.insecure_channel(self._address)
        self._stub = service_pb2_grpc.GRPCInferenceServiceStub(self._channel)
        # So that no request pays for it; a failure is that of the first request.
        with suppress(grpc.aio.AioRpcError, TimeoutError, OSError):
            async with asyncio.timeout(self._work.timeout):
                await self._read_inputs()
        return self

    async def __aexit__(self, *_: object) -> None:
        """Close the connection."""
        await self._channel.close()

    async def send(self, plan: RequestPlan, record: RequestRecord) -> None:
        """Send a request and fill its record, whatever its outcome."""
        record.sent = self._clock()
        try:
            async with asyncio.timeout(self._work.timeout):
                record.outcome, record.reason = await self._stream(plan, record)
        except TimeoutError:
            record.outcome, record.reason = "timeout", "client"
        except grpc.aio.AioRpcError as error:
            record.outcome, record.reason = _failure(error)
        except asyncio.InvalidStateError:  # a write to a call that has failed
            record.outcome, record.reason = "error", "reset"
        except OSError:  # the file of a credential
            record.outcome, record.reason = "error", "credentials"
        record.ended = self._clock()

    async def _stream(self, plan: RequestPlan, record: RequestRecord) -> tuple[Outcome, str]:
        if not self._inputs:
            await self._read_inputs()
        call = self._stub.ModelStreamInfer(metadata=self._metadata())
        try:
            await call.write(self._request(plan))
            await call.done_writing()
            return await self._read(call, plan, record)
        finally:
            call.cancel()  # nothing after the end

    async def _read(
        self, call: Any, plan: RequestPlan, record: RequestRecord
    ) -> tuple[Outcome, str]:
        while (message := await call.read()) is not grpc.aio.EOF:
            if message.error_message:
                return "error", "in_band"
            response = message.infer_response
            outputs = _outputs(response)
            if outputs.get(_TEXT_OUTPUT):
                record.chunks.append(self._clock())
                if len(record.chunks) == plan.cancel_after:
                    return "client_disconnected", "planned"
            for name, field in zip(_LENGTHS, ("input_tokens", "output_tokens"), strict=True):
                if type(outputs.get(name)) is int:
                    setattr(record, field, outputs[name])
            if response.parameters[_FINAL].bool_param:
                return "ok", ""
        return "truncated", "truncated"

    async def _read_inputs(self) -> None:
        """Read names, types and shapes of the model's inputs."""
        request = service_pb2.ModelMetadataRequest(name=self._model)
        found = await self._stub.ModelMetadata(request, metadata=self._metadata())
        inputs = {each.name: (each.datatype, len(each.shape)) for each in found.inputs}
        if inputs.get(_TEXT_INPUT, ("", 0))[0] != "BYTES":
            raise UnsupportedModelError(
                f"the model {self._model} has no input {_TEXT_INPUT} of strings. Fix: give --model "
                "the ensemble or the model that has the tokenizer"
            )
        self._inputs = inputs

    def _request(self, plan: RequestPlan) -> Any:
        """Return the request: members that are inputs of the model, the others as parameters."""
        request = service_pb2.ModelInferRequest(model_name=self._model)
        request.parameters[_WANT_FINAL].bool_param = True
        members = {
            _TEXT_INPUT: plan.text, "stream": True, **matched_work(plan), **self._work.extra
        }  # fmt: skip
        for name, value in members.items():
            names = (name, *_ALTERNATIVES.get(name, ()))
            known = next((each for each in names if each in self._inputs), None)
            if known is None:
                _set_parameter(request, name, value)
                continue
            kind, dimensions = self._inputs[known]
            request.inputs.add(name=known, datatype=kind, shape=[1] * dimensions)
            request.raw_input_contents.append(_packed(kind, value))
        return request

    def _metadata(self) -> tuple[tuple[str, str], ...]:
        header = self._http.authorization
        return (("authorization", header()),) if header else ()


def _failure(error: Any) -> tuple[Outcome, str]:
    status = error.code().name
    if status == "UNAVAILABLE" and _NOT_CONNECTED in (error.details() or ""):
        return "error", "unreachable"
    return _BY_STATUS.get(status, "error"), status


def _packed(kind: str, value: Any) -> bytes:
    """Return a value as the raw content of a tensor with one element."""
    if kind == "BYTES":
        text = str(value).encode()
        return struct.pack("<I", len(text)) + text
    if kind not in _PACKED:
        raise UnsupportedModelError(f"inputs of type {kind} are not supported")
    try:
        return struct.pack(_PACKED[kind], value)
    except struct.error:
        raise UnsupportedModelError(
            f"{value!r} is no value for an input of type {kind}. Fix: correct --extra-body"
        ) from None


def _outputs(response: Any) -> dict[str, object]:
    """Return the first element of each output that is a string or an integer."""
    found: dict[str, object] = {}
    for output, raw in zip(response.outputs, response.raw_output_contents, strict=False):
        if output.datatype == "BYTES":
            found[output.name] = raw[4 : 4 + int.from_bytes(raw[:4], "little")]
        elif output.datatype in ("INT32", "INT64"):
            found[output.name] = struct.unpack_from(_PACKED[output.datatype], raw)[0]
    return found


def _set_parameter(request: Any, name: str, value: Any) -> None:
    fields = {bool: "bool_param", int: "int64_param", float: "double_param", str: "string_param"}
    field = fields.get(type(value))
    if field:
        setattr(request.parameters[name], field, value)
