"""The table of options: flag, environment variable and YAML key of every setting."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from exporter import gateway_names, genai
from exporter.settings import values
from exporter.taps.tap import parse as parse_tap

# Not every variable with this prefix is ours: for a service named "tokenslo" Kubernetes sets
# TOKENSLO_PORT, TOKENSLO_SERVICE_HOST and more, so unknown ones are no errors.
PREFIX = "TOKENSLO_"


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
    Option("triton", "URL", "Triton's HTTP API, such as http://127.0.0.1:8000.", values.parse_url),
    Option(
        "triton-metrics",
        "URL",
        "Triton's metrics; without it, port 8002 of the same host.",
        values.parse_url,
    ),
    Option("trtllm", "URL", "A trtllm-serve, such as http://127.0.0.1:8000.", values.parse_url),
    Option(
        "trtllm-requests",
        "GLOB",
        "The files with the timing of its requests (perf_metrics_output_dir), such as "
        "'/var/perf/perf_metrics-*.jsonl'.",
        values.parse_text,
    ),
    Option(
        "trtllm-iterations",
        "FILE",
        "A file to which iteration records are appended, one JSON object per line; it is named "
        "after the model, such as llama-3-70b.jsonl.",
        values.parse_text,
    ),
    Option("vllm", "URL", "A vLLM server, such as http://127.0.0.1:8000.", values.parse_url),
    Option("sglang", "URL", "An SGLang server, such as http://127.0.0.1:30000.", values.parse_url),
    Option(
        "slo",
        "FILE",
        "SLO file whose objectives to check; repeatable.",
        values.parse_text,
        many=True,
    ),
    Option(
        "jpath",
        "DIR",
        "Folder for imports of SLO files in Jsonnet, beside their own; repeatable.",
        values.parse_text,
        many=True,
    ),
    Option("listen", "HOST:PORT", "Where to serve.", values.parse_listen, "127.0.0.1:9464"),
    Option("interval", "TIME", "Time from one reading to the next.", values.parse_interval, "1s"),
    Option("timeout", "TIME", "Time an answer may take.", values.parse_interval, "2s"),
    Option(
        "stale-after", "TIME", "Age at which readings are withdrawn.", values.parse_interval, "5s"
    ),
    Option(
        "model",
        "GLOB",
        "Report on these models even if they neither stream nor publish engine metrics; "
        "repeatable.",
        values.parse_text,
        many=True,
    ),
    Option("max-bytes", "SIZE", "Largest answer to read.", values.parse_size, "8MiB"),
    Option(
        "expect-model",
        "NAME[:VERSION]",
        "Not ready without this model; repeatable.",
        values.parse_expected_model,
        many=True,
    ),
    Option(
        "unready-after",
        "TIME",
        "Not ready when the server has not answered for this long; a busy one may take its time.",
        values.parse_interval,
        "30s",
    ),
    Option(
        "stuck-after",
        "TIME",
        "Not ready when active sequences or streams at a tap get no token for this long; "
        "set it above the longest prefill.",
        values.parse_interval,
        "60s",
    ),
    Option(
        "probe",
        "MODEL",
        "Send a request for one token to this model now and then, and be not ready if it fails; "
        "needs a tap, because the server's own counters have it like any other request; "
        "repeatable.",
        values.parse_text,
        many=True,
    ),
    Option(
        "probe-interval", "TIME", "Time from one probe to the next.", values.parse_interval, "30s"
    ),
    Option(
        "probe-timeout",
        "TIME",
        "Time the answer to a probe may take.",
        values.parse_interval,
        "15s",
    ),
    Option(
        "otlp-traces",
        "HOST:PORT",
        "Take Triton's traces here, by OTLP/HTTP at /v1/traces.",
        values.parse_listen,
        absent=None,
    ),
    Option(
        "otlp-traces-forward",
        "URL",
        "Pass the traces on to this collector, such as http://127.0.0.1:4318/v1/traces.",
        values.parse_url,
    ),
    Option(
        "otlp-endpoint",
        "URL",
        "Push metrics to this OTLP/HTTP receiver as well; /v1/metrics is added.",
        values.parse_url,
    ),
    Option(
        "otlp-interval", "TIME", "Time from one push to the next.", values.parse_interval, "15s"
    ),
    Option(
        "otlp-genai",
        "VERSION",
        f"Push gen_ai.server.* as well, as this version of OpenTelemetry's conventions has them: "
        f"{', '.join(genai.PROFILES)} or {genai.NONE}.",
        values.parse_genai_version,
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
        parse_tap,
        many=True,
        between=r",(?=\s*[a-z]+=)",
    ),
    Option(
        "tap-tenant-header",
        "NAME",
        "The header of requests that names a tenant, to count by; set it where clients cannot.",
        values.parse_header,
    ),
    Option(
        "tap-drain",
        "TIME",
        "Time that streams have to end when the sidecar is told to stop.",
        values.parse_interval,
        "30s",
    ),
    Option(
        "tap-connections",
        "NUMBER",
        "Most connections that a proxy lets through at a time.",
        values.parse_count,
        "8000",
    ),
    Option(
        "tap-tls-certificate",
        "FILE",
        "Speak TLS to clients of the proxy, with this certificate chain (PEM).",
        values.parse_text,
    ),
    Option("tap-tls-key", "FILE", "The key of that certificate (PEM).", values.parse_text),
    Option(
        "tap-upstream-server-name",
        "NAME",
        "Speak TLS to the server behind the proxy, whose certificate has this name.",
        values.parse_text,
    ),
    Option(
        "tap-upstream-ca",
        "FILE",
        "Who vouches for that certificate (PEM); without it, the system's CAs.",
        values.parse_text,
    ),
    Option(
        "inject",
        "WHAT",
        "perf-metrics: have the proxy ask engines for their own timing of each request, and take "
        "it out of the answers again.",
        values.parse_inject,
    ),
    Option(
        "log-level",
        "LEVEL",
        f"How much to log: {', '.join(values.LOG_LEVELS)}.",
        values.parse_log_level,
        "info",
    ),
)
BY_NAME = {option.name: option for option in OPTIONS}
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
