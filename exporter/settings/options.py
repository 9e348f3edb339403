"""The table of options: flag, environment variable and YAML key of every setting."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from exporter import gateway_names, genai
from exporter.settings import values
from exporter.taps.tap import parse as parse_tap

# Unknown variables with this prefix are no errors: Kubernetes sets TOKENSLO_PORT,
# TOKENSLO_SERVICE_HOST and more for a service named "tokenslo".
PREFIX = "TOKENSLO_"


@dataclass(frozen=True, slots=True)
class Option:
    """One setting; with ``many`` it is a list, which replaces the whole list of a lower layer.

    A ``flag`` has no value on the command line.  ``separator``, a regular expression, splits the
    list in an environment variable.  ``unset`` is the value of a setting without a default that is
    not given.
    """

    name: str
    metavar: str
    help: str
    parse: Callable[[str], object]
    default: str = ""
    many: bool = False
    flag: bool = False
    separator: str = ","
    unset: object = ""

    @property
    def attribute(self) -> str:
        """The name as a field of Settings."""
        return self.name.replace("-", "_")

    @property
    def variable(self) -> str:
        """The name of the environment variable."""
        return PREFIX + self.attribute.upper()


OPTIONS = (
    Option("triton", "URL", "Triton's HTTP API, such as http://127.0.0.1:8000.", values.parse_url),
    Option(
        "triton-metrics",
        "URL",
        "Triton's metrics; default: port 8002 of the same host.",
        values.parse_url,
    ),
    Option("trtllm", "URL", "A trtllm-serve, such as http://127.0.0.1:8000.", values.parse_url),
    Option(
        "trtllm-requests",
        "GLOB",
        "Files with per-request timing of trtllm-serve (perf_metrics_output_dir), such as "
        "'/var/perf/perf_metrics-*.jsonl'.",
        values.parse_text,
    ),
    Option(
        "trtllm-iterations",
        "FILE",
        "A file with iteration records, one JSON object per line, named after the model, such as "
        "llama-3-70b.jsonl.",
        values.parse_text,
    ),
    Option("vllm", "URL", "A vLLM server, such as http://127.0.0.1:8000.", values.parse_url),
    Option("sglang", "URL", "An SGLang server, such as http://127.0.0.1:30000.", values.parse_url),
    Option(
        "http-config",
        "FILE",
        "Prometheus' HTTP client configuration (basic_auth, authorization, tls_config, proxy_url) "
        "for --triton, --triton-metrics, --trtllm, --vllm and --sglang.",
        values.parse_text,
    ),
    Option(
        "slo",
        "FILE",
        "SLO file: its thresholds become bucket boundaries and SLO events; repeatable.",
        values.parse_text,
        many=True,
    ),
    Option(
        "jpath",
        "DIR",
        "Folder for Jsonnet imports, in addition to the file's own; repeatable.",
        values.parse_text,
        many=True,
    ),
    Option("listen", "HOST:PORT", "Address to serve on.", values.parse_listen, "127.0.0.1:9464"),
    Option(
        "web-config",
        "FILE",
        "Prometheus' web configuration file: TLS, client certificates, users, headers and rate "
        "limit of --listen and --otlp-traces.",
        values.parse_text,
    ),
    Option(
        "allow-unauthenticated",
        "BOOLEAN",
        "Serve clients of other machines without authentication; only where a firewall or a "
        "NetworkPolicy limits the clients.",
        values.parse_boolean,
        "false",
        flag=True,
    ),
    Option(
        "allowed-host",
        "NAME",
        "Host name under which clients reach the sidecar without TLS and users, besides localhost "
        "and names that public DNS cannot hold; repeatable.",
        values.parse_host,
        many=True,
    ),
    Option("interval", "TIME", "Time between scrapes of the sources.", values.parse_interval, "1s"),
    Option("timeout", "TIME", "Time limit of a scrape.", values.parse_interval, "2s"),
    Option(
        "stale-after",
        "TIME",
        "Age at which the series of a source are withdrawn.",
        values.parse_interval,
        "5s",
    ),
    Option(
        "model",
        "GLOB",
        "Include these models, even if they neither stream nor publish engine metrics; repeatable.",
        values.parse_text,
        many=True,
    ),
    Option("max-bytes", "SIZE", "Size limit of a response.", values.parse_size, "8MiB"),
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
        "Not ready when a source has not responded for this long.",
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
        "Probe this model with requests for one token; not ready if they fail. Needs a tap, "
        "because the server's own counters include probes; repeatable.",
        values.parse_text,
        many=True,
    ),
    Option("probe-interval", "TIME", "Time between probes.", values.parse_interval, "30s"),
    Option(
        "probe-timeout",
        "TIME",
        "Time limit of a probe.",
        values.parse_interval,
        "15s",
    ),
    Option(
        "otlp-traces",
        "HOST:PORT",
        "Receive Triton's traces on this address, by OTLP/HTTP at /v1/traces.",
        values.parse_listen,
        unset=None,
    ),
    Option(
        "otlp-traces-forward",
        "URL",
        "Forward the traces to this collector, such as http://127.0.0.1:4318/v1/traces.",
        values.parse_url,
    ),
    Option(
        "otlp-endpoint",
        "URL",
        "Push metrics to this OTLP/HTTP receiver; /v1/metrics is added.",
        values.parse_url,
    ),
    Option("otlp-interval", "TIME", "Time between pushes.", values.parse_interval, "15s"),
    Option(
        "otlp-genai",
        "VERSION",
        f"Also push gen_ai.server.*, as in this version of OpenTelemetry's conventions: "
        f"{', '.join(genai.PROFILES)} or {genai.NONE}.",
        values.parse_genai_version,
        genai.CURRENT,
    ),
    Option(
        "gateway-metrics",
        "NAMES",
        "Serve the gauges of the Gateway API inference extension, also alone on /gateway, under "
        f"the names of {', '.join(gateway_names.NAMES)}, or each as ROLE=METRIC; repeatable.",
        gateway_names.parse,
        many=True,
    ),
    Option(
        "tap",
        "SPEC",
        "Observe streams: proxy=LISTEN=UPSTREAM, such as proxy=:9000=127.0.0.1:8000, forwards "
        "clients to a server; capture=INTERFACE:PORTS, such as capture=eth0:8000,8001, reads "
        "packets and needs CAP_NET_RAW; repeatable.",
        parse_tap,
        many=True,
        separator=r",(?=\s*[a-z]+=)",
    ),
    Option(
        "tap-tenant-header",
        "NAME",
        "Request header with the tenant, to count by; a gateway must set it.",
        values.parse_header,
    ),
    Option(
        "tap-drain",
        "TIME",
        "Time that streams have to end after SIGTERM.",
        values.parse_interval,
        "30s",
    ),
    Option(
        "tap-connections",
        "NUMBER",
        "Limit of connections through a proxy.",
        values.parse_count,
        "8000",
    ),
    Option(
        "tap-tls-certificate",
        "FILE",
        "Certificate chain (PEM) for TLS between clients and the proxy.",
        values.parse_text,
    ),
    Option("tap-tls-key", "FILE", "Private key (PEM) of that certificate.", values.parse_text),
    Option(
        "tap-upstream-server-name",
        "NAME",
        "Name in the certificate of the server, for TLS between the proxy and the server.",
        values.parse_text,
    ),
    Option(
        "tap-upstream-ca",
        "FILE",
        "Certificate authorities (PEM) of that server; default: the system's.",
        values.parse_text,
    ),
    Option(
        "tap-inject",
        "WHAT",
        "perf-metrics: the proxy requests engine timing with each request, and removes it from "
        "the responses.",
        values.parse_inject,
    ),
    Option(
        "log-level",
        "LEVEL",
        f"Log level: {', '.join(values.LOG_LEVELS)}.",
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
"""Options of which at least one is required."""
FILES = (
    "slo",
    "jpath",
    "trtllm-requests",
    "trtllm-iterations",
    "web-config",
    "http-config",
    "tap-tls-certificate",
    "tap-tls-key",
    "tap-upstream-ca",
)
"""Options whose values are paths."""
