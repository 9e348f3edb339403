"""Values of settings, and their parsers."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from urllib.parse import urlsplit

from exporter import genai
from exporter.gateway_names import GatewayMetric
from exporter.sockets import Listen
from exporter.taps.tap import Spec
from slos.durations import parse_duration
from slos.errors import BadValue, quoted

PERF_METRICS = "perf-metrics"
LOG_LEVELS = ("debug", "info", "warning", "error")


@dataclass(frozen=True, slots=True)
class ExpectedModel:
    """A model that must be loaded; an empty version matches any."""

    name: str
    version: str = ""


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of a sidecar; durations are in seconds."""

    triton: str
    triton_metrics: str
    trtllm: str
    trtllm_requests: str
    trtllm_iterations: str
    vllm: str
    sglang: str
    http_config: str
    slo: tuple[str, ...]
    jpath: tuple[str, ...]
    listen: Listen
    web_config: str
    allow_unauthenticated: bool
    allowed_host: tuple[str, ...]
    interval: float
    timeout: float
    stale_after: float
    model: tuple[str, ...]
    max_bytes: int
    expect_model: tuple[ExpectedModel, ...]
    unready_after: float
    stuck_after: float
    probe: tuple[str, ...]
    probe_interval: float
    probe_timeout: float
    otlp_traces: Listen | None
    otlp_traces_forward: str
    otlp_endpoint: str
    otlp_interval: float
    otlp_genai: str
    gateway_metrics: tuple[tuple[GatewayMetric, ...], ...]
    tap: tuple[Spec, ...]
    tap_tenant_header: str
    tap_drain: float
    tap_connections: int
    tap_tls_certificate: str
    tap_tls_key: str
    tap_upstream_server_name: str
    tap_upstream_ca: str
    tap_inject: str
    log_level: str


def parse_url(text: str) -> str:
    """Parse the URL of a server; raises BadValue."""
    fix = "write an address such as http://127.0.0.1:8000"
    # The message leaves the URL out, because it may contain a password.
    bad = BadValue("is not an http or https address", fix)
    try:
        parts = urlsplit(text)
        valid = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:  # an invalid port or an unclosed bracket
        raise bad from None
    if not valid:
        raise bad
    return text


def parse_listen(text: str) -> Listen:
    """Parse an address to listen on; raises BadValue."""
    match = re.fullmatch(r"(?:\[([0-9a-fA-F:.]+)\]|([^\s:\[\]/]+)):([0-9]{1,5})", text)
    if not match or int(match[3]) > 65535:
        raise BadValue(
            f"{quoted(text)} is not an address to listen on",
            "write host and port, such as 127.0.0.1:9464, or [::1]:9464",
        )
    return Listen(match[1] or match[2], int(match[3]))


def parse_interval(text: str) -> float:
    """Parse a duration from 50 ms to 1 h, in seconds; raises BadValue."""
    seconds = float(parse_duration(text))
    if not 0.05 <= seconds <= 3600:
        raise BadValue(f"{quoted(text)} is out of range", "write a duration from 50ms to 1h")
    return seconds


_SIZES = {"": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}


def parse_size(text: str) -> int:
    """Parse a size in bytes; raises BadValue."""
    match = re.fullmatch(r"([0-9]{1,12})(KiB|MiB|GiB|)", text)
    size = int(match[1]) * _SIZES[match[2]] if match else 0
    if size < 1024:
        raise BadValue(
            f"{quoted(text)} is not a size of 1 KiB or more", "write bytes, such as 8MiB or 500000"
        )
    return size


def parse_genai_version(text: str) -> str:
    """Parse a version of the GenAI conventions; raises BadValue."""
    versions = (*genai.PROFILES, genai.NONE)
    if text not in versions:
        raise BadValue(
            f"{quoted(text)} is not a supported version", f"write {' or '.join(versions)}"
        )
    return text


def parse_text(text: str) -> str:
    """Parse a string that is not empty; raises BadValue."""
    if not text.strip():
        raise BadValue("is empty", "write a value, or leave the setting out")
    return text


def parse_boolean(text: str) -> bool:
    """Parse ``true`` or ``false``; raises BadValue."""
    if text not in ("true", "false"):
        raise BadValue(f"{quoted(text)} is not true or false", "write true or false")
    return text == "true"


def parse_host(text: str) -> str:
    """Parse a host name without a port; raises BadValue."""
    if not re.fullmatch(r"[A-Za-z0-9_-]{1,63}(?:\.[A-Za-z0-9_-]{1,63}){0,9}", text):
        raise BadValue(
            f"{quoted(text)} is not a host name", "write one without a port, such as triton-0.chat"
        )
    return text.lower()


def parse_expected_model(text: str) -> ExpectedModel:
    """Parse a model with an optional version; raises BadValue."""
    name, colon, version = text.rpartition(":")
    if not text.strip() or (colon and not (name.strip() and version.strip())):
        raise BadValue(
            f"{quoted(text)} is not a model", "write its name, or name and version, such as chat:1"
        )
    return ExpectedModel(name, version) if colon else ExpectedModel(text)


def parse_header(text: str) -> str:
    """Parse the name of an HTTP header, in lower case; raises BadValue."""
    if not re.fullmatch(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,64}", text):
        raise BadValue(f"{quoted(text)} is not the name of a header", "write one, such as X-Tenant")
    return text.lower()


def parse_count(text: str) -> int:
    """Parse a number from 1; raises BadValue."""
    if not re.fullmatch(r"[0-9]{1,7}", text) or not int(text):
        raise BadValue(f"{quoted(text)} is not a number from 1", "write a number, such as 10000")
    return int(text)


def parse_inject(text: str) -> str:
    """Parse the feature that the proxy injects into requests; raises BadValue."""
    if text != PERF_METRICS:
        raise BadValue(f"{quoted(text)} cannot be injected", f"write {PERF_METRICS}")
    return text


def parse_log_level(text: str) -> str:
    """Parse a log level; raises BadValue."""
    if text not in LOG_LEVELS:
        raise BadValue(f"{quoted(text)} is not a log level", f"write {one_of(LOG_LEVELS)}")
    return text


def one_of(alternatives: Iterable[str]) -> str:
    """Join alternatives with commas and ``or``."""
    *most, last = alternatives
    return f"{', '.join(most)} or {last}"
