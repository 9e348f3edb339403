"""The messages of KServe's inference.GRPCInferenceService, scanned for the few fields that matter.

Field numbers and wire types are those of grpc_service.proto (KServe's open inference protocol as
Triton extends it).  Nothing is decoded that is not asked for: tensors are stepped over by their
length.  A message may be cut off after its first bytes (``whole=False``); what follows is then
unknown, which is why every encoder's order, by field number, puts the tensors last.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

NAME_BYTES = 256
"""Longer names and ids are cut: they are kept as long as their request is under way."""
HEADS, HEAD_BYTES, HEAD_SIZES = 1024, 512, 16
"""How many beginnings of responses are remembered, how long they may be, and of how many lengths.

Each request has one of its own, because its id is in it.
"""

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_FIXED = {_FIXED64: 8, _FIXED32: 4}
_VARINT_BYTES = 10
_LEAST_BYTES, _MOST_BYTES = 4, 1 << 14  # of a response whose length takes a byte or two

# Tags: field number << 3 | wire type.
_MODEL_NAME, _MODEL_VERSION, _ID, _PARAMETERS = 0x0A, 0x12, 0x1A, 0x22  # request and response
_OUTPUTS, _RAW_CONTENTS = 0x2A, 0x32
_ERROR_MESSAGE, _INFER_RESPONSE = 0x0A, 0x12
_KEY, _VALUE = 0x0A, 0x12
_BOOL_PARAM, _OTHER_PARAMS = 0x08, {0x10, 0x1A, 0x21, 0x28}
_OUTPUT_NAME, _OUTPUT_CONTENTS = 0x0A, 0x2A
_BYTES_CONTENTS = 0x42

_ASK_FOR_FINAL = b"triton_enable_empty_final_response"
_FINAL = b"triton_final_response"
_TEXT_OUTPUT = b"text_output"

Field = tuple[int, int, int]
"""Tag; then where a value of some length starts and stops, or a varint and where it stops."""


class MalformedMessageError(ValueError):
    """It is no message of this protocol."""


@dataclass(frozen=True, slots=True)
class InferRequest:
    """A ModelInferRequest; ``id_field`` is where the field ``id`` starts and stops, tag included.

    ``asks_for_final``: the server is to send a last response even if there is nothing in it.
    """

    model: str = ""
    version: str = ""
    request_id: str = ""
    asks_for_final: bool = False
    id_field: tuple[int, int] = (0, 0)


@dataclass(slots=True)
class InferResponse:
    """A ModelInferResponse, or what a ModelStreamInferResponse has of one.

    ``final`` is the parameter ``triton_final_response``, None where it is not said.  ``outputs`` is
    how many there are, ``text`` which of them is ``text_output``, -1 for none.  ``bearing`` says
    that it bears text or, without ``text_output``, any output.  ``head`` is where the part starts
    and stops that comes before the contents of the outputs, (0, 0) if they are not all at the end.
    """

    request_id: str
    version: str
    error: bool
    final: bool | None
    outputs: int
    text: int
    bearing: bool
    head: tuple[int, int]


def scan_request(message: bytes, *, whole: bool = True) -> InferRequest:
    """Read a ModelInferRequest; raises MalformedMessageError."""
    texts = dict.fromkeys((_MODEL_NAME, _MODEL_VERSION, _ID), "")
    asks, id_field, before = False, (0, 0), 0
    for tag, start, stop in _fields(message, 0, len(message), whole):
        if tag in texts:
            texts[tag] = _text(message, start, stop)
            if tag == _ID:
                id_field = (before, stop)
        elif tag == _PARAMETERS:
            key, value = _parameter(message, start, stop)
            if key == _ASK_FOR_FINAL:
                asks = value is True
        before = stop
    return InferRequest(texts[_MODEL_NAME], texts[_MODEL_VERSION], texts[_ID], asks, id_field)


def scan_response(message: bytes, *, streamed: bool, whole: bool = True) -> InferResponse:
    """Read a ModelStreamInferResponse, or a ModelInferResponse if not ``streamed``.

    Raises MalformedMessageError.
    """
    found = _Scan(message)
    if not streamed:
        found.take(0, len(message), whole)
        return found.response(error=False)
    error, parts = False, 0
    for tag, start, stop in _fields(message, 0, len(message), whole):
        if tag == _ERROR_MESSAGE:
            error = stop > start
        elif tag == _INFER_RESPONSE:
            parts += 1
            found.take(start, min(stop, len(message)), stop <= len(message))
    if parts != 1:
        found.head = (0, 0)
    return found.response(error=error)


class _Scan:
    """What has been found of a ModelInferResponse, which may come in several parts."""

    def __init__(self, message: bytes) -> None:
        self._message = message
        self._texts = dict.fromkeys((_MODEL_VERSION, _ID), "")
        self._final: bool | None = None
        self._outputs: list[tuple[bytes, bool | None]] = []
        self._contents: list[tuple[int, int]] = []
        self.head = (0, 0)

    def take(self, start: int, stop: int, whole: bool) -> None:
        message, head, in_order = self._message, start, whole
        for tag, begin, end in _fields(message, start, stop, whole):
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

    def response(self, *, error: bool) -> InferResponse:
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
        """Whether an output has text; what was cut off, or is in shared memory, is taken for it."""
        typed = self._outputs[index][1]
        if typed is not None:
            return typed
        if index >= len(self._contents):
            return True
        return _is_text(self._message, *self._contents[index])


class Layouts:
    """Reads responses by how they begin.

    A response of a stream differs from the one before it in nothing but the contents of its
    outputs, which come last.  A head that was read once, followed by the contents of as many
    outputs and by nothing else, means what it meant then: there is nothing to read but the lengths
    of the contents, and whether there is text.  No head has text in it.
    """

    __slots__ = ("_known", "_sizes")

    def __init__(self) -> None:
        self._known: dict[bytes, tuple[str, str, int, int]] = {}
        self._sizes: list[int] = []

    def learn(self, message: bytes, response: InferResponse) -> None:
        """Remember how a ModelStreamInferResponse begins, if it has outputs and is not the last."""
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

    def read(self, data: bytes, start: int, stop: int) -> tuple[str, str, bool] | None:
        """Return id and version of a response, and whether it bears tokens; None if it is new.

        The ModelStreamInferResponse is what is in ``data`` between two offsets.
        """
        if not _LEAST_BYTES < stop - start < _MOST_BYTES or data[start] != _INFER_RESPONSE:
            return None
        length, start = data[start + 1], start + 2
        if length > 0x7F:
            length, start = length & 0x7F | data[start] << 7, start + 1
        if start + length != stop:
            return None
        for size in self._sizes:
            known = self._known.get(data[start : start + size])
            if known is not None:
                bearing = _bearing(data, start + size, stop, known[2], known[3])
                return None if bearing is None else (known[0], known[1], bearing)
        return None


def _bearing(data: bytes, start: int, stop: int, outputs: int, text: int) -> bool | None:
    """Whether there are tokens in the contents of outputs; None if that is not all there is."""
    bearing = text < 0
    for index in range(outputs):
        if stop - start < 2 or data[start] != _RAW_CONTENTS:
            return None
        length, start = data[start + 1], start + 2
        if length > 0x7F:
            try:
                length, start = _varint(data, start - 1, stop)
            except (IndexError, MalformedMessageError):
                return None
        end = start + length
        if end > stop:
            return None
        if index == text:
            # One text, the usual case, is its length in 4 bytes and itself.
            bearing = (
                length > 4 and int.from_bytes(data[start : start + 4], "little") == length - 4
            ) or _is_text(data, start, end)
        start = end
    return bearing if start == stop else None


def _is_text(data: bytes, start: int, stop: int) -> bool:
    """Whether any text of a BYTES tensor is not empty: each has its length in 4 bytes before it."""
    return stop > len(data) or data.count(0, start, stop) < stop - start


def _output(message: bytes, start: int, stop: int) -> tuple[bytes, bool | None]:
    """Return an output's name, and whether its typed contents have text, None without any."""
    name, typed = b"", None
    for tag, begin, end in _inside(message, start, stop):
        if tag == _OUTPUT_NAME:
            name = message[begin:end]
        elif tag == _OUTPUT_CONTENTS:
            texts = _inside(message, begin, end)
            filled = any(tag == _BYTES_CONTENTS and last > first for tag, first, last in texts)
            typed = bool(typed) or filled
    return name, typed


def _parameter(message: bytes, start: int, stop: int) -> tuple[bytes, bool | None]:
    """Return an entry of a map of parameters; the value is None if it is not a boolean."""
    key, value = b"", None
    for tag, begin, end in _inside(message, start, stop):
        if tag == _KEY:
            key = message[begin:end]
        elif tag == _VALUE:
            for kind, number, _ in _inside(message, begin, end):
                if kind == _BOOL_PARAM:
                    value = number != 0
                elif kind in _OTHER_PARAMS:
                    value = None
    return key, value


def _text(message: bytes, start: int, stop: int) -> str:
    return message[start : min(stop, start + NAME_BYTES)].decode(errors="replace")


def _inside(message: bytes, start: int, stop: int) -> Iterator[Field]:
    """Yield the fields of a value, of which the end may have been cut off."""
    return _fields(message, start, min(stop, len(message)), stop <= len(message))


def _fields(message: bytes, start: int, stop: int, whole: bool) -> Iterator[Field]:
    """Yield the fields between two offsets; where they are not whole, the last may stop later."""
    while start < stop:
        try:
            tag, start = _varint(message, start, stop)
            kind = tag & 7
            if kind == _BYTES:
                length, start = _varint(message, start, stop)
            elif kind == _VARINT:
                number, start = _varint(message, start, stop)
                if not tag >> 3:
                    raise MalformedMessageError("a field has no number")
                yield tag, number, start
                continue
            elif kind in _FIXED:
                length = _FIXED[kind]
            else:
                raise MalformedMessageError("a wire type that is not in use")
        except IndexError:
            if whole:
                raise MalformedMessageError("a field is cut off") from None
            return
        end = start + length
        if not tag >> 3 or (whole and end > stop):
            raise MalformedMessageError("a field has no number, or more than its message")
        yield tag, start, end
        start = end


def _varint(data: bytes, start: int, stop: int) -> tuple[int, int]:
    """Return a varint and where it stops; raises IndexError if that is not before ``stop``."""
    if start >= stop:
        raise IndexError
    value = data[start]
    if value < 0x80:
        return value, start + 1
    value &= 0x7F
    for index in range(1, _VARINT_BYTES):
        if start + index >= stop:
            raise IndexError
        byte = data[start + index]
        value |= (byte & 0x7F) << 7 * index
        if byte < 0x80:
            return value, start + index + 1
    raise MalformedMessageError("a number of more than 64 bits")
