"""The sidecar's settings: one table, four places to set them.

A setting comes from a flag, an environment variable, a YAML file or its default, the first of these
that has it.  Its name is the same everywhere: ``--stale-after``, ``TOKENSLO_STALE_AFTER``,
``stale-after``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from urllib.parse import urlsplit

from exporter import gateway_names, genai
from exporter.gateway_names import GatewayMetric
from exporter.sockets import Listen
from exporter.taps.tap import ProxySpec, Spec
from exporter.taps.tap import parse as _tap
from slos.document import read_document
from slos.durations import parse_duration
from slos.errors import BadValue, InvalidFile, Problem, quoted

# Not every variable with this prefix is ours: for a service named "tokenslo" Kubernetes sets
# TOKENSLO_PORT, TOKENSLO_SERVICE_HOST and more, so unknown ones are no errors.
PREFIX = "TOKENSLO_"
COMMAND_LINE = "command line"
ENVIRONMENT = "environment"
PERF_METRICS = "perf-metrics"
LOG_LEVELS = ("debug", "info", "warning", "error")


@dataclass(frozen=True, slots=True)
class ExpectedModel:
    """A model that must be loaded; an empty version is any."""

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
    slo: tuple[str, ...]
    jpath: tuple[str, ...]
    listen: Listen
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
    tap_upstream_tls: str
    tap_upstream_ca: str
    inject: str
    log_level: str


def _url(text: str) -> str:
    fix = "write an address such as http://127.0.0.1:8000"
    # Not shown, because it may hold a password.
    bad = BadValue("is not an http or https address", fix)
    try:
        parts = urlsplit(text)
        valid = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:  # a port that is no number, or a bracket that is never closed
        raise bad from None
    if not valid:
        raise bad
    return text


def _listen(text: str) -> Listen:
    match = re.fullmatch(r"(?:\[([0-9a-fA-F:.]+)\]|([^\s:\[\]/]+)):([0-9]{1,5})", text)
    if not match or int(match[3]) > 65535:
        raise BadValue(
            f"{quoted(text)} is not an address to listen on",
            "write host and port, such as 127.0.0.1:9464, or [::1]:9464",
        )
    return Listen(match[1] or match[2], int(match[3]))


def _duration(text: str) -> float:
    seconds = float(parse_duration(text))
    if not 0.05 <= seconds <= 3600:
        raise BadValue(f"{quoted(text)} is out of range", "write a duration from 50ms to 1h")
    return seconds


_SIZES = {"": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}


def _size(text: str) -> int:
    match = re.fullmatch(r"([0-9]{1,12})(KiB|MiB|GiB|)", text)
    size = int(match[1]) * _SIZES[match[2]] if match else 0
    if size < 1024:
        raise BadValue(
            f"{quoted(text)} is not a size of 1 KiB or more", "write bytes, such as 8MiB or 500000"
        )
    return size


def _genai_version(text: str) -> str:
    versions = (*genai.PROFILES, genai.NONE)
    if text not in versions:
        raise BadValue(
            f"{quoted(text)} is not a supported version", f"write {' or '.join(versions)}"
        )
    return text


def _text(text: str) -> str:
    if not text.strip():
        raise BadValue("is empty", "write a value, or leave the setting out")
    return text


def _expected_model(text: str) -> ExpectedModel:
    name, colon, version = text.rpartition(":")
    if not text.strip() or (colon and not (name.strip() and version.strip())):
        raise BadValue(
            f"{quoted(text)} is not a model", "write its name, or name and version, such as chat:1"
        )
    return ExpectedModel(name, version) if colon else ExpectedModel(text)


def _header(text: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,64}", text):
        raise BadValue(f"{quoted(text)} is not the name of a header", "write one, such as X-Tenant")
    return text.lower()


def _count(text: str) -> int:
    if not re.fullmatch(r"[0-9]{1,7}", text) or not int(text):
        raise BadValue(f"{quoted(text)} is not a number from 1", "write a number, such as 10000")
    return int(text)


def _inject(text: str) -> str:
    if text != PERF_METRICS:
        raise BadValue(f"{quoted(text)} is nothing to inject", f"write {PERF_METRICS}")
    return text


def _log_level(text: str) -> str:
    if text not in LOG_LEVELS:
        raise BadValue(f"{quoted(text)} is not a log level", f"write {_one_of(LOG_LEVELS)}")
    return text


@dataclass(frozen=True, slots=True)
class Option:
    """One setting; ``many`` ones may be given several times and take the place of others whole.

    In the environment ``between``, a regular expression, separates them.  ``absent`` is the value
    of one that is neither given nor has a default.
    """

    name: str
    metavar: str
    help: str
    parse: Callable[[str], object]
    default: str = ""
    many: bool = False
    between: str = ","
    absent: object = ""

    @property
    def attribute(self) -> str:
        """The name as Python writes it."""
        return self.name.replace("-", "_")

    @property
    def variable(self) -> str:
        """The environment variable."""
        return PREFIX + self.attribute.upper()


OPTIONS = (
    Option("triton", "URL", "Triton's HTTP API, such as http://127.0.0.1:8000.", _url),
    Option(
        "triton-metrics",
        "URL",
        "Triton's metrics; without it, port 8002 of the same host.",
        _url,
    ),
    Option("trtllm", "URL", "A trtllm-serve, such as http://127.0.0.1:8000.", _url),
    Option(
        "trtllm-requests",
        "GLOB",
        "The files with the timing of its requests (perf_metrics_output_dir), such as "
        "'/var/perf/perf_metrics-*.jsonl'.",
        _text,
    ),
    Option(
        "trtllm-iterations",
        "FILE",
        "A file to which iteration records are appended, one JSON object per line; it is named "
        "after the model, such as llama-3-70b.jsonl.",
        _text,
    ),
    Option("vllm", "URL", "A vLLM server, such as http://127.0.0.1:8000.", _url),
    Option("sglang", "URL", "An SGLang server, such as http://127.0.0.1:30000.", _url),
    Option("slo", "FILE", "SLO file whose objectives to check; repeatable.", _text, many=True),
    Option(
        "jpath",
        "DIR",
        "Folder for imports of SLO files in Jsonnet, beside their own; repeatable.",
        _text,
        many=True,
    ),
    Option("listen", "HOST:PORT", "Where to serve.", _listen, "127.0.0.1:9464"),
    Option("interval", "TIME", "Time from one reading to the next.", _duration, "1s"),
    Option("timeout", "TIME", "Time an answer may take.", _duration, "2s"),
    Option("stale-after", "TIME", "Age at which readings are withdrawn.", _duration, "5s"),
    Option(
        "model",
        "GLOB",
        "Report on these models even if they neither stream nor publish engine metrics; "
        "repeatable.",
        _text,
        many=True,
    ),
    Option("max-bytes", "SIZE", "Largest answer to read.", _size, "8MiB"),
    Option(
        "expect-model",
        "NAME[:VERSION]",
        "Not ready without this model; repeatable.",
        _expected_model,
        many=True,
    ),
    Option(
        "unready-after",
        "TIME",
        "Not ready when the server has not answered for this long; a busy one may take its time.",
        _duration,
        "30s",
    ),
    Option(
        "stuck-after",
        "TIME",
        "Not ready when active sequences or streams at a tap get no token for this long; "
        "set it above the longest prefill.",
        _duration,
        "60s",
    ),
    Option(
        "probe",
        "MODEL",
        "Send a request for one token to this model now and then, and be not ready if it fails; "
        "needs a tap, because the server's own counters have it like any other request; "
        "repeatable.",
        _text,
        many=True,
    ),
    Option("probe-interval", "TIME", "Time from one probe to the next.", _duration, "30s"),
    Option("probe-timeout", "TIME", "Time the answer to a probe may take.", _duration, "15s"),
    Option(
        "otlp-traces",
        "HOST:PORT",
        "Take Triton's traces here, by OTLP/HTTP at /v1/traces.",
        _listen,
        absent=None,
    ),
    Option(
        "otlp-traces-forward",
        "URL",
        "Pass the traces on to this collector, such as http://127.0.0.1:4318/v1/traces.",
        _url,
    ),
    Option(
        "otlp-endpoint",
        "URL",
        "Push metrics to this OTLP/HTTP receiver as well; /v1/metrics is added.",
        _url,
    ),
    Option("otlp-interval", "TIME", "Time from one push to the next.", _duration, "15s"),
    Option(
        "otlp-genai",
        "VERSION",
        f"Push gen_ai.server.* as well, as this version of OpenTelemetry's conventions has them: "
        f"{', '.join(genai.PROFILES)} or {genai.NONE}.",
        _genai_version,
        genai.CURRENT,
    ),
    Option(
        "gateway-metrics",
        "NAMES",
        "Serve the gauges of the Gateway API inference extension, under the names of "
        f"{', '.join(gateway_names.NAMES)}, or each as ROLE=METRIC; repeatable.",
        gateway_names.parse,
        many=True,
    ),
    Option(
        "tap",
        "SPEC",
        "Watch every stream: proxy=LISTEN=UPSTREAM, such as proxy=:9000=127.0.0.1:8000, stands "
        "between clients and a server; capture=INTERFACE:PORTS, such as capture=eth0:8000,8001, "
        "only looks on and needs CAP_NET_RAW; repeatable.",
        _tap,
        many=True,
        between=r",(?=\s*[a-z]+=)",
    ),
    Option(
        "tap-tenant-header",
        "NAME",
        "The header of requests that names a tenant, to count by; set it where clients cannot.",
        _header,
    ),
    Option(
        "tap-drain",
        "TIME",
        "Time that streams have to end when the sidecar is told to stop.",
        _duration,
        "30s",
    ),
    Option(
        "tap-connections",
        "NUMBER",
        "Most connections that a proxy lets through at a time.",
        _count,
        "8000",
    ),
    Option(
        "tap-tls-certificate",
        "FILE",
        "Speak TLS to clients of the proxy, with this certificate chain (PEM).",
        _text,
    ),
    Option("tap-tls-key", "FILE", "The key of that certificate (PEM).", _text),
    Option(
        "tap-upstream-tls",
        "NAME",
        "Speak TLS to the server behind the proxy, whose certificate has this name.",
        _text,
    ),
    Option(
        "tap-upstream-ca",
        "FILE",
        "Who vouches for that certificate (PEM); without it, the system's CAs.",
        _text,
    ),
    Option(
        "inject",
        "WHAT",
        "perf-metrics: have the proxy ask engines for their own timing of each request, and take "
        "it out of the answers again.",
        _inject,
    ),
    Option("log-level", "LEVEL", f"How much to log: {', '.join(LOG_LEVELS)}.", _log_level, "info"),
)
_BY_NAME = {option.name: option for option in OPTIONS}
SOURCES = (
    "triton",
    "triton-metrics",
    "trtllm",
    "trtllm-iterations",
    "vllm",
    "sglang",
    "otlp-traces",
    "tap",
)
"""Options of which one must be given."""
FILES = (
    "slo",
    "jpath",
    "trtllm-requests",
    "trtllm-iterations",
    "tap-tls-certificate",
    "tap-tls-key",
    "tap-upstream-ca",
)
"""Options that name files."""


@dataclass(frozen=True, slots=True)
class _Given:
    """A setting as somewhere somebody wrote it."""

    option: Option
    texts: tuple[str, ...]
    file: str
    field: str
    line: int = 0

    def problem(self, message: str, fix: str) -> Problem:
        return Problem(self.file, self.line, self.field, message, fix)


def load_config(
    flags: Mapping[str, Sequence[str]], environ: Mapping[str, str], file: str | None = None
) -> Settings:
    """Return the settings; ``flags`` are the values given on the command line, by option name.

    ``file`` is a YAML file, and ``TOKENSLO_CONFIG`` names one too.  Raises InvalidFile with
    everything that is wrong anywhere, also with what would be overridden.
    """
    problems: list[Problem] = []
    file = file or environ.get(f"{PREFIX}CONFIG") or None
    settings: dict[str, tuple[object, _Given]] = {}
    layers = (
        _from_defaults(),
        _from_file(file, problems) if file else (),
        _from_environment(environ),
        _from_flags(flags),
    )
    for layer in layers:
        for given in layer:
            try:
                settings[given.option.attribute] = _parse(given), given
            except BadValue as bad:
                problems.append(given.problem(bad.message, bad.fix))
    if problems:
        raise InvalidFile(problems)
    config = Settings(**{name: value for name, (value, _) in settings.items()})  # type: ignore[arg-type]
    problems += _contradictions(config, {name: given for name, (_, given) in settings.items()})
    if problems:
        raise InvalidFile(problems)
    return config


def _parse(given: _Given) -> object:
    if not given.option.many:
        text = given.texts[-1]
        return given.option.parse(text) if text or given.option.default else given.option.absent
    return tuple(given.option.parse(text) for text in given.texts)


def _from_defaults() -> Iterator[_Given]:
    for option in OPTIONS:
        texts = () if option.many else (option.default,)
        yield _Given(option, texts, "defaults", option.name)


def _from_environment(environ: Mapping[str, str]) -> Iterator[_Given]:
    for option in OPTIONS:
        text = environ.get(option.variable, "")
        if text:
            parts = re.split(option.between, text) if option.many else ()
            texts = [part.strip() for part in parts] or [text]
            yield _Given(option, tuple(texts), ENVIRONMENT, option.variable)


def _from_flags(flags: Mapping[str, Sequence[str]]) -> Iterator[_Given]:
    for name, texts in flags.items():
        if texts:
            yield _Given(_BY_NAME[name], tuple(texts), COMMAND_LINE, f"--{name}")


def _from_file(file: str, problems: list[Problem]) -> Iterator[_Given]:
    """Yield what a YAML file sets; paths in it are relative to its folder."""
    document = read_document(file)
    if not isinstance(document.value, dict):
        fix = "write settings such as `triton: http://127.0.0.1:8000`"
        problems.append(Problem(file, document.line(()), "", "is not a mapping of settings", fix))
        return
    for key, value in document.value.items():
        line = document.line((key,))
        option = _BY_NAME.get(key)
        if option is None:
            problems.append(_unknown(file, line, key))
            continue
        entries = value if isinstance(value, list) and option.many else [value]
        if not all(
            isinstance(entry, str | int | float) and not isinstance(entry, bool)
            for entry in entries
        ):
            what = "a list of texts" if option.many else "a single value"
            problems.append(
                Problem(file, line, key, "has a value of the wrong type", f"write {what}")
            )
            continue
        texts = [str(entry) for entry in entries]
        if key in FILES:
            texts = [str(Path(file).parent / text) for text in texts]
        yield _Given(option, tuple(texts), file, key, line)


def _unknown(file: str, line: int, key: str) -> Problem:
    close = get_close_matches(key, _BY_NAME, n=1)
    fix = f"write {close[0]}" if close else f"use {_one_of(_BY_NAME)}"
    return Problem(file, line, "", f"{quoted(key)} is not a setting", fix)


def _contradictions(config: Settings, given: Mapping[str, _Given]) -> Iterator[Problem]:
    if not any(getattr(config, _BY_NAME[name].attribute) for name in SOURCES):
        flags = _one_of(f"--{name} {_BY_NAME[name].metavar}" for name in SOURCES)
        yield Problem(
            COMMAND_LINE,
            0,
            "",
            "there is nothing to read from",
            f"give {flags} (or as {_BY_NAME[SOURCES[0]].variable} and {SOURCES[0]} in --config "
            "FILE, for example)",
        )
    if config.trtllm_requests and not config.trtllm:
        yield given["trtllm_requests"].problem(
            "the files do not say of which model they are", "give --trtllm URL as well"
        )
    if config.otlp_traces_forward and not config.otlp_traces:
        yield given["otlp_traces_forward"].problem(
            "there are no traces to pass on", "give --otlp-traces HOST:PORT as well"
        )
    if config.probe and not (config.triton or config.trtllm or config.vllm or config.sglang):
        yield given["probe"].problem(
            "there is no server to send the request to",
            "give --triton URL, --trtllm URL, --vllm URL or --sglang URL as well",
        )
    if config.probe and not config.tap:
        yield given["probe"].problem(
            "the server would count probes among the requests of clients",
            "give --tap SPEC as well, which tells them apart",
        )
    yield from _contradictions_of_taps(config, given)
    if config.stale_after <= config.interval:
        where = given["stale_after"]
        if where.file == "defaults":
            where = given["interval"]
        yield where.problem(
            f"readings would be stale ({config.stale_after:g} s) before the next one comes "
            f"({config.interval:g} s)",
            "make stale-after longer than interval",
        )


_WITH_TAPS = {
    "tap_tenant_header": ("tap", "there are no streams to look at", "give --tap SPEC as well"),
    "tap_tls_certificate": ("tap_tls_key", "its key is missing", "give --tap-tls-key FILE as well"),
    "tap_tls_key": (
        "tap_tls_certificate",
        "its certificate is missing",
        "give --tap-tls-certificate FILE as well",
    ),
    "tap_upstream_ca": (
        "tap_upstream_tls",
        "the server is not spoken to in TLS",
        "give --tap-upstream-tls NAME as well",
    ),
}
"""Settings that need another one: which, and what is wrong without it."""
_WITH_PROXY = {
    "tap_tls_certificate": "only a proxy speaks TLS",
    "tap_upstream_tls": "only a proxy speaks TLS",
    "inject": "only a proxy can change what clients ask",
}


def _contradictions_of_taps(config: Settings, given: Mapping[str, _Given]) -> Iterator[Problem]:
    for name, (needed, message, fix) in _WITH_TAPS.items():
        if getattr(config, name) and not getattr(config, needed):
            yield given[name].problem(message, fix)
    proxies = [spec for spec in config.tap if isinstance(spec, ProxySpec)]
    if proxies and len(proxies) < len(config.tap):
        yield given["tap"].problem(
            "a proxy and a capture would count the same streams twice",
            "choose the proxy, or the capture, which nothing passes through",
        )
    for name, message in _WITH_PROXY.items():
        if getattr(config, name) and not proxies:
            yield given[name].problem(message, "give --tap proxy=LISTEN=UPSTREAM as well")


def _one_of(words: Iterable[str]) -> str:
    *most, last = words
    return f"{', '.join(most)} or {last}"
