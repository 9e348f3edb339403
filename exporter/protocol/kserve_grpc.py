"""Scan protobuf messages of KServe's inference.GRPCInferenceService for a few fields.

Field numbers and wire types are those of grpc_service.proto (KServe's open inference protocol with
Triton's extensions).  Only the needed fields are decoded; tensors are skipped by their length.  A
message may be truncated (``whole=False``).  Encoders write fields by number, with the tensors last,
so the prefix has the needed fields.
"""

from __future__ import annotations

from dataclasses import dataclass

from exporter.outcome_rules import ERROR_BYTES
from exporter.protocol.prompt_size import UNMEASURED, PromptLength
from exporter.protocol.protobuf import MalformedMessageError, fields, inside, varint

NAME_BYTES = 256
"""Longer names and ids are truncated, because they are kept as long as their request is active."""
HEADS, HEAD_BYTES, HEAD_SIZES = 1024, 512, 16
"""Limits of the head cache: number of heads, bytes of a head, number of distinct lengths.

Each request has a head of its own, because the head contains the request id.
"""

_MIN_BYTES, _MAX_BYTES = 4, 1 << 14  # of a response with a length of one or two varint bytes

# Tags: field number << 3 | wire type.
_MODEL_NAME, _MODEL_VERSION, _ID, _PARAMETERS = 0x0A, 0x12, 0x1A, 0x22  # request and response
_OUTPUTS, _RAW_CONTENTS = 0x2A, 0x32
_INPUTS, _RAW_INPUTS = 0x2A, 0x3A
_INPUT_NAME, _DATATYPE, _SHAPE, _SIDE, _INPUT_CONTENTS = 0x0A, 0x12, 0x1A, 0x18, 0x2A
_ERROR_MESSAGE, _INFER_RESPONSE = 0x0A, 0x12
_KEY, _VALUE = 0x0A, 0x12
_BOOL_PARAM, _OTHER_PARAMS = 0x08, {0x10, 0x1A, 0x21, 0x28}
_OUTPUT_NAME, _OUTPUT_CONTENTS = 0x0A, 0x2A
_BYTES_CONTENTS = 0x42

_WANT_FINAL = b"triton_enable_empty_final_response"
_FINAL = b"triton_final_response"
_TEXT_OUTPUT = b"text_output"
_INPUT_IDS, _TEXT_INPUT, _TEXT_TYPE = b"input_ids", b"text_input", b"BYTES"
_LENGTH_BYTES = 4
"""Bytes of the length before each string of a BYTES tensor."""


@dataclass(frozen=True, slots=True)
class InferRequest:
    """A ModelInferRequest; ``id_field`` is start and stop of the field ``id``, tag included.

    ``wants_final``: the server sends a final response even if it is empty.  ``length`` is that of
    the prompt.
    """

    model: str = ""
    version: str = ""
    request_id: str = ""
    wants_final: bool = False
    id_field: tuple[int, int] = (0, 0)
    length: PromptLength = UNMEASURED


@dataclass(slots=True)
class InferResponse:
    """A ModelInferResponse, or the one inside a ModelStreamInferResponse.

    ``error`` is the start of the error message.  ``final`` is the parameter
    ``triton_final_response``, None if absent.  ``outputs`` is the number of outputs, ``text`` the
    index of ``text_output``, -1 for none.  ``has_text``: it has text or, without ``text_output``,
    any output.  ``head`` spans the bytes before the outputs' contents, (0, 0) if the contents are
    not all at the end.
    """

    request_id: str
    version: str
    error: bytes
    final: bool | None
    outputs: int
    text: int
    has_text: bool
    head: tuple[int, int]


def scan_request(message: bytes, *, whole: bool = True, measure: bool = False) -> InferRequest:
    """Read a ModelInferRequest, with the length of its prompt if ``measure``.

    Raises MalformedMessageError.
    """
    inputs = _Inputs(message) if measure else None
    texts = dict.fromkeys((_MODEL_NAME, _MODEL_VERSION, _ID), "")
    wants_final, id_field, before = False, (0, 0), 0
    for tag, start, stop in fields(message, 0, len(message), whole):
        if tag in texts:
            texts[tag] = _text(message, start, stop)
            if tag == _ID:
                id_field = (before, stop)
        elif tag == _PARAMETERS:
            key, value = _parameter(message, start, stop)
            if key == _WANT_FINAL:
                wants_final = value is True
        elif inputs:
            inputs.add(tag, start, stop)
        before = stop
    return InferRequest(
        texts[_MODEL_NAME],
        texts[_MODEL_VERSION],
        texts[_ID],
        wants_final,
        id_field,
        inputs.length() if inputs else UNMEASURED,
    )


@dataclass(frozen=True, slots=True)
class _InputTensor:
    """A tensor of a request; ``size`` is that of typed contents in bytes, None without any."""

    name: bytes
    datatype: bytes
    elements: int
    size: int | None


class _Inputs:
    """Collect the tensors of a request, whose raw contents follow all of them in their order."""

    __slots__ = ("_message", "_raw_sizes", "_tensors")

    def __init__(self, message: bytes) -> None:
        self._message = message
        self._tensors: list[_InputTensor] = []
        self._raw_sizes: list[int] = []

    def add(self, tag: int, start: int, stop: int) -> None:
        """Add a field of the request."""
        if tag == _INPUTS:
            self._tensors.append(self._tensor(start, stop))
        elif tag == _RAW_INPUTS:
            self._raw_sizes.append(stop - start)

    def length(self) -> PromptLength:
        """Return the length of the prompt: the shape of ``input_ids``, or the bytes of its text."""
        raw_sizes = iter(self._raw_sizes)
        texts: dict[bytes, int | None] = {}
        for tensor in self._tensors:
            size = next(raw_sizes, None) if tensor.size is None else tensor.size
            if tensor.name == _INPUT_IDS:
                return PromptLength(tokens=tensor.elements)
            if tensor.datatype == _TEXT_TYPE:
                texts[tensor.name] = size
        sizes = [texts[_TEXT_INPUT]] if _TEXT_INPUT in texts else [*texts.values()]
        known = [size for size in sizes if size is not None]
        whole = bool(known) and len(known) == len(sizes)
        return PromptLength(size=sum(known)) if whole else UNMEASURED

    def _tensor(self, start: int, stop: int) -> _InputTensor:
        message, name, datatype, elements, size = self._message, b"", b"", 1, None
        for tag, begin, end in inside(message, start, stop):
            if tag == _INPUT_NAME:
                name = message[begin:end]
            elif tag == _DATATYPE:
                datatype = message[begin:end]
            elif tag == _SIDE:
                elements *= begin
            elif tag == _SHAPE:
                while begin < end:
                    side, begin = varint(message, begin, end)
                    elements *= side
            elif tag == _INPUT_CONTENTS:
                size = end - begin
        return _InputTensor(name, datatype, elements, size)


def scan_response(message: bytes, *, streamed: bool, whole: bool = True) -> InferResponse:
    """Read a ModelStreamInferResponse, or a ModelInferResponse if not ``streamed``.

    Raises MalformedMessageError.
    """
    found = _ResponseFields(message)
    if not streamed:
        found.scan(0, len(message), whole)
        return found.response(error=b"")
    error, parts = b"", 0
    for tag, start, stop in fields(message, 0, len(message), whole):
        if tag == _ERROR_MESSAGE:
            error = message[start : min(stop, start + ERROR_BYTES)]
        elif tag == _INFER_RESPONSE:
            parts += 1
            found.scan(start, min(stop, len(message)), stop <= len(message))
    if parts != 1:
        found.head = (0, 0)
    return found.response(error=error)


class _ResponseFields:
    """Collect the fields of a ModelInferResponse, which may come in several parts."""

    def __init__(self, message: bytes) -> None:
        self._message = message
        self._texts = dict.fromkeys((_MODEL_VERSION, _ID), "")
        self._final: bool | None = None
        self._outputs: list[tuple[bytes, bool | None]] = []
        self._contents: list[tuple[int, int]] = []
        self.head = (0, 0)

    def scan(self, start: int, stop: int, whole: bool) -> None:
        message, head, in_order = self._message, start, whole
        for tag, begin, end in fields(message, start, stop, whole):
            if tag == _RAW_CONTENTS:
                self._contents.append((begin, end))
                continue
            head, in_order = end, in_order and not self._contents
            if tag in self._texts:
                self._texts[tag] = _text(message, begin, end)
            elif tag == _PARAMETERS:
                key, value = _parameter(message, begin, end)
                if key == _FINAL:
                    self._final = value
            elif tag == _OUTPUTS:
                self._outputs.append(_output(message, begin, end))
        raw = all(typed is None for _, typed in self._outputs)
        if in_order and raw and len(self._contents) == len(self._outputs):
            self.head = (start, head)

    def response(self, *, error: bytes) -> InferResponse:
        names = [name for name, _ in self._outputs]
        text = names.index(_TEXT_OUTPUT) if _TEXT_OUTPUT in names else -1
        return InferResponse(
            self._texts[_ID],
            self._texts[_MODEL_VERSION],
            error,
            self._final,
            len(names),
            text,
            self._has_text(text) if text >= 0 else bool(names),
            self.head,
        )

    def _has_text(self, index: int) -> bool:
        """Whether an output has text; truncated or shared-memory contents count as text."""
        typed = self._outputs[index][1]
        if typed is not None:
            return typed
        if index >= len(self._contents):
            return True
        return _is_text(self._message, *self._contents[index])


class HeadCache:
    """Cache of response heads, to avoid parsing every response of a stream.

    A response of a stream differs from the one before only in the contents of its outputs, which
    come last.  A known head, followed by the contents of the same number of outputs and by nothing
    else, has a known meaning: only the lengths of the contents and the presence of text are read.
    Heads contain no text.
    """

    __slots__ = ("_known", "_sizes")

    def __init__(self) -> None:
        self._known: dict[bytes, tuple[str, str, int, int]] = {}
        self._sizes: list[int] = []

    def add(self, message: bytes, response: InferResponse) -> None:
        """Cache the head of a ModelStreamInferResponse that has outputs and is not the last."""
        start, stop = response.head
        if stop - start > HEAD_BYTES or not response.outputs or response.final or response.error:
            return
        if len(self._known) == HEADS or len(self._sizes) == HEAD_SIZES:
            self._known.clear()
            self._sizes.clear()
        if stop > start:
            self._known[message[start:stop]] = (
                response.request_id,
                response.version,
                response.outputs,
                response.text,
            )
            if stop - start not in self._sizes:
                self._sizes.append(stop - start)

    def lookup(self, data: bytes, start: int, stop: int) -> tuple[str, str, bool] | None:
        """Return id and version of a response, and whether it has tokens; None on a cache miss.

        The ModelStreamInferResponse is ``data`` between two offsets.
        """
        if not _MIN_BYTES < stop - start < _MAX_BYTES or data[start] != _INFER_RESPONSE:
            return None
        length, start = data[start + 1], start + 2
        if length > 0x7F:
            length, start = length & 0x7F | data[start] << 7, start + 1
        if start + length != stop:
            return None
        for size in self._sizes:
            known = self._known.get(data[start : start + size])
            if known is not None:
                has_text = _contents_have_text(data, start + size, stop, known[2], known[3])
                return None if has_text is None else (known[0], known[1], has_text)
        return None


def _contents_have_text(data: bytes, start: int, stop: int, outputs: int, text: int) -> bool | None:
    """Whether the contents of outputs have tokens; None if other fields come with them."""
    has_text = text < 0
    for index in range(outputs):
        if stop - start < 2 or data[start] != _RAW_CONTENTS:
            return None
        length, start = data[start + 1], start + 2
        if length > 0x7F:
            try:
                length, start = varint(data, start - 1, stop)
            except (IndexError, MalformedMessageError):
                return None
        end = start + length
        if end > stop:
            return None
        if index == text:
            # Fast path: a tensor of one string is its length in 4 bytes and the string.
            has_text = (
                length > 4 and int.from_bytes(data[start : start + 4], "little") == length - 4
            ) or _is_text(data, start, end)
        start = end
    return has_text if start == stop else None


def _is_text(data: bytes, start: int, stop: int) -> bool:
    """Whether a BYTES tensor has a non-empty string; each has a length prefix of 4 bytes."""
    return stop > len(data) or data.count(0, start, stop) < stop - start


def _output(message: bytes, start: int, stop: int) -> tuple[bytes, bool | None]:
    """Return an output's name, and whether its typed contents have text, None without contents."""
    name, typed = b"", None
    for tag, begin, end in inside(message, start, stop):
        if tag == _OUTPUT_NAME:
            name = message[begin:end]
        elif tag == _OUTPUT_CONTENTS:
            texts = inside(message, begin, end)
            filled = any(tag == _BYTES_CONTENTS and last > first for tag, first, last in texts)
            typed = bool(typed) or filled
    return name, typed


def _parameter(message: bytes, start: int, stop: int) -> tuple[bytes, bool | None]:
    """Return an entry of a map of parameters; the value is None if it is not a boolean."""
    key, value = b"", None
    for tag, begin, end in inside(message, start, stop):
        if tag == _KEY:
            key = message[begin:end]
        elif tag == _VALUE:
            for kind, number, _ in inside(message, begin, end):
                if kind == _BOOL_PARAM:
                    value = number != 0
                elif kind in _OTHER_PARAMS:
                    value = None
    return key, value


def _text(message: bytes, start: int, stop: int) -> str:
    return message[start : min(stop, start + NAME_BYTES)].decode(errors="replace")
