"""Track the response to one request: text, tokens, outcome."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from exporter.outcome_rules import ERROR_BYTES, classify, outcome_of
from exporter.protocol import anthropic, kserve_http, openai, openai_responses, sglang
from exporter.protocol.event_template import EventTemplate, template_of, usage_at
from exporter.protocol.events import Listener, Stream
from exporter.protocol.json_scan import Found, Wanted, loaded
from exporter.protocol.payloads import RequestFields, ResponsePart, TokenUsage
from exporter.protocol.repeated_event import RepeatedEvent, repeated_event
from slos.outcomes import Outcome

_QUOTE = b'"'[0]
_FAILED = 400
"""The lowest HTTP status of a failure."""
_MAX_UNMATCHED_TEMPLATES = 8
"""The limit of consecutive templates that matched no later event."""


class ApiFormat(NamedTuple):
    """Format of an API's requests and responses; the trees select JSON members.

    ``ends``: streams carry an end marker, so a stream without one is truncated.
    """

    request: Mapping[str, Wanted]
    response: Mapping[str, Wanted]
    read_request: Callable[[Mapping[str, Found]], RequestFields]
    read_response: Callable[[Mapping[str, Found]], ResponsePart]
    ends: bool = True


KSERVE: Final = ApiFormat(
    kserve_http.REQUEST,
    kserve_http.RESPONSE,
    kserve_http.read_request,
    kserve_http.read_response,
    ends=False,
)
OPENAI: Final = ApiFormat(
    openai.REQUEST, openai.RESPONSE, openai.read_request, openai.read_response
)
RESPONSES: Final = ApiFormat(
    openai_responses.REQUEST,
    openai_responses.RESPONSE,
    openai_responses.read_request,
    openai_responses.read_response,
)
MESSAGES: Final = ApiFormat(
    anthropic.REQUEST, anthropic.RESPONSE, anthropic.read_request, anthropic.read_response
)
SGLANG: Final = ApiFormat(
    sglang.REQUEST, sglang.RESPONSE, sglang.read_request, sglang.read_response
)


class ResponseReader:
    """Read the events of a streaming response, or the document of a whole one.

    ``done``: the server has sent its last event.  ``repeated``: the event that the last ones
    repeated except for its text, None if unknown.  The text of an in-band error is classified at
    once, and not kept.
    """

    __slots__ = (
        "_api",
        "_attempts_left",
        "_error",
        "_finish",
        "_had_text",
        "_listener",
        "_output",
        "_skipped_event",
        "_stream",
        "_template",
        "_uncounted",
        "done",
        "repeated",
    )

    def __init__(self, api: ApiFormat, stream: Stream, listener: Listener) -> None:
        self.done = False
        self.repeated: RepeatedEvent | None = None
        self._api = api
        self._stream = stream
        self._listener = listener
        self._template: EventTemplate | None = None
        self._attempts_left = _MAX_UNMATCHED_TEMPLATES
        self._output = 0  # tokens so far, with continuous usage
        self._finish = ""
        self._error: tuple[Outcome, str] | None = None
        self._skipped_event = self._uncounted = self._had_text = False

    @property
    def held(self) -> int:
        """The number of bytes kept of earlier events."""
        return len(self._template.before) + len(self._template.after) if self._template else 0

    def event(self, name: bytes, data: bytes, time: float) -> None:
        """Read one event of a stream."""
        template = self._template
        if template and (end := template.match(data)) >= 0:
            self._attempts_left = _MAX_UNMATCHED_TEMPLATES
            has_text = data[template.start] != _QUOTE
            if not template.usage:
                if has_text:
                    self._listener.chunk(self._stream, time, 0)
                self.repeated = repeated_event(template, self._stream, self._listener)
                return
            if usage := openai.usage(usage_at(data, end)):
                self._set_usage(usage)
                self._count(has_text, usage, time)
                return
        self._read(name, data, time)

    def long_event(self, document: Mapping[str, Found], time: float) -> None:
        """Read an event that was too long to buffer and was scanned instead."""
        self._handle(self._api.read_response(document), time, b"")

    def document(self, document: Mapping[str, Found]) -> None:
        """Read the scanned members of a non-streaming response."""
        self._record(self._api.read_response(document), b"")

    @property
    def ended(self) -> bool:
        """Whether the server has sent a terminal event: its last one, a finish reason, an error.

        With several choices the finish reason is that of the first one only.
        """
        finished = bool(self._finish) and self._stream.choices == 1
        return self.done or finished or self._error is not None

    @property
    def failed(self) -> bool:
        """Whether the server has reported an in-band error."""
        return self._error is not None

    def outcome(self) -> tuple[Outcome, str]:
        """Return outcome and reason of a request whose response is complete."""
        known = self._error or (classify(f"finish:{self._finish}") if self._finish else None)
        return known or ("ok", self._finish)

    def _read(self, name: bytes, data: bytes, time: float) -> None:
        if name == openai.TIMING_EVENT:
            self._stream.stages = openai.stages(data) or self._stream.stages
            return
        if data.strip() == openai.DONE:
            self.done = True
            return
        document = loaded(data)
        if document is None:
            self._skip()
            return
        part = self._handle(self._api.read_response(document), time, data)
        if self._attempts_left and part.has_text:
            self._make_template(data, part)

    def _make_template(self, data: bytes, part: ResponsePart) -> None:
        self._attempts_left -= 1
        self.repeated = None
        if learnt := template_of(data, part, self._api.read_response):
            self._template = learnt

    def _handle(self, part: ResponsePart, time: float, data: bytes) -> ResponsePart:
        """Record an event; return the part of it that counts."""
        if part.running and self._stream.choices > 1:
            part = part._replace(usage=None)  # it is the usage of a single choice
        self._record(part, data)
        self._stream.other_chunks += part.others
        if part.first and not (part.repeats and self._had_text):
            self._count(part.has_text, part.usage, time)
        return part

    def _record(self, part: ResponsePart, data: bytes) -> None:
        stream = self._stream
        if self._error is None and (part.error or part.status >= _FAILED):
            code = "in_band" if part.error else str(part.status)
            self._error = outcome_of(code, text=data[:ERROR_BYTES])
        self.done = self.done or part.last
        self._finish = part.finish or self._finish
        # The server's name is trusted more than the client's, which may be anything.
        stream.model = part.model or stream.model
        stream.version = stream.version or part.version
        stream.stages = part.stages or stream.stages
        if part.usage:
            self._set_usage(part.usage)

    def _set_usage(self, usage: TokenUsage) -> None:
        stream = self._stream
        if usage.input is not None:
            stream.input_tokens = usage.input
        if usage.output is not None:
            stream.output_tokens = usage.output
            stream.counted = True
        if usage.cached is not None:
            stream.cached_tokens = usage.cached

    def _count(self, has_text: bool, usage: TokenUsage | None, time: float) -> None:
        """Report a chunk with text or, with continuous usage, one with more tokens.

        Usage after chunks without usage is that of the whole response, not of the chunk.
        """
        if usage and usage.output and not self._uncounted:
            grown = usage.output - self._output
            if grown > 0:
                self._had_text = True
                self._output = usage.output
                self._listener.chunk(self._stream, time, grown)
        elif has_text:
            self._uncounted = self._had_text = True
            self._listener.chunk(self._stream, time, 0)

    def _skip(self) -> None:
        if not self._skipped_event:
            self._skipped_event = True
            self._listener.skipped("event")
