"""Settings: their sources, precedence and errors."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from exporter.gateway_names import GatewayMetric
from exporter.settings import OPTIONS, ExpectedModel, Settings, load_settings
from exporter.sockets import Listen
from exporter.taps.tap import CaptureSpec, ProxySpec
from slos.errors import InvalidFile

Write = Callable[[str], Path]

TRITON = {"triton": ["http://127.0.0.1:8000"]}


def problems(
    flags: dict[str, list[str]], environ: dict[str, str] | None = None, file: Path | None = None
) -> list[str]:
    with pytest.raises(InvalidFile) as failed:
        load_settings(flags, environ or {}, str(file) if file else None)
    return [str(problem) for problem in failed.value.problems]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def _write(text: str) -> Path:
        path = tmp_path / "tokenslo.yaml"
        path.write_text(text)
        return path

    return _write


def test_defaults() -> None:
    assert load_settings(TRITON, {}) == Settings(
        triton="http://127.0.0.1:8000",
        triton_metrics="",
        trtllm="",
        trtllm_requests="",
        trtllm_iterations="",
        vllm="",
        sglang="",
        http_config="",
        slo=(),
        jpath=(),
        listen=Listen("127.0.0.1", 9464),
        web_config="",
        allow_unauthenticated=False,
        allowed_host=(),
        interval=1.0,
        timeout=2.0,
        stale_after=5.0,
        model=(),
        max_bytes=8 * 2**20,
        expect_model=(),
        unready_after=30.0,
        stuck_after=60.0,
        probe=(),
        probe_interval=30.0,
        probe_timeout=15.0,
        otlp_traces=None,
        otlp_traces_forward="",
        otlp_endpoint="",
        otlp_interval=15.0,
        otlp_genai="1.41",
        gateway_metrics=(),
        tap=(),
        tap_tenant_header="",
        tap_drain=30.0,
        tap_connections=8_000,
        tap_tls_certificate="",
        tap_tls_key="",
        tap_upstream_server_name="",
        tap_upstream_ca="",
        tap_inject="",
        log_level="info",
    )


def test_everything_from_the_environment(tmp_path: Path) -> None:
    web_config = tmp_path / "web.yaml"
    web_config.write_text("http_server_config: {http2: true}\n")
    environ = {
        "TOKENSLO_TRITON": "http://a:1",
        "TOKENSLO_TRITON_METRICS": "https://b/metrics",
        "TOKENSLO_TRTLLM": "http://c:2",
        "TOKENSLO_TRTLLM_REQUESTS": "/var/perf/*.jsonl",
        "TOKENSLO_TRTLLM_ITERATIONS": "/var/log/llama.jsonl",
        "TOKENSLO_VLLM": "http://d:3",
        "TOKENSLO_SGLANG": "http://e:4",
        "TOKENSLO_HTTP_CONFIG": "http.yaml",
        "TOKENSLO_SLO": "a.yaml, b.yaml",
        "TOKENSLO_JPATH": "vendor",
        "TOKENSLO_LISTEN": "[::]:80",
        "TOKENSLO_WEB_CONFIG": str(web_config),
        "TOKENSLO_ALLOW_UNAUTHENTICATED": "true",
        "TOKENSLO_ALLOWED_HOST": "triton-0.chat, Tokenslo",
        "TOKENSLO_INTERVAL": "500ms",
        "TOKENSLO_TIMEOUT": "1.5s",
        "TOKENSLO_STALE_AFTER": "1m",
        "TOKENSLO_MODEL": "llama*",
        "TOKENSLO_MAX_BYTES": "64KiB",
        "TOKENSLO_EXPECT_MODEL": "chat, big:llama:2",
        "TOKENSLO_UNREADY_AFTER": "10s",
        "TOKENSLO_STUCK_AFTER": "2m",
        "TOKENSLO_PROBE": "chat",
        "TOKENSLO_PROBE_INTERVAL": "1m",
        "TOKENSLO_PROBE_TIMEOUT": "5s",
        "TOKENSLO_OTLP_TRACES": "[::1]:4318",
        "TOKENSLO_OTLP_TRACES_FORWARD": "http://collector:4318/v1/traces",
        "TOKENSLO_OTLP_ENDPOINT": "http://collector:4318",
        "TOKENSLO_OTLP_INTERVAL": "1m",
        "TOKENSLO_OTLP_GENAI": "none",
        "TOKENSLO_GATEWAY_METRICS": "queued=waiting{kind=all}",
        "TOKENSLO_TAP": "proxy=:9000=127.0.0.1:8000, proxy=[::1]:9001=[::1]:8001",
        "TOKENSLO_TAP_TENANT_HEADER": "X-Tenant",
        "TOKENSLO_TAP_DRAIN": "2m",
        "TOKENSLO_TAP_CONNECTIONS": "500",
        "TOKENSLO_TAP_TLS_CERTIFICATE": "chain.pem",
        "TOKENSLO_TAP_TLS_KEY": "key.pem",
        "TOKENSLO_TAP_UPSTREAM_SERVER_NAME": "triton.internal",
        "TOKENSLO_TAP_UPSTREAM_CA": "ca.pem",
        "TOKENSLO_TAP_INJECT": "perf-metrics",
        "TOKENSLO_LOG_LEVEL": "debug",
    }
    assert set(environ) == {option.variable for option in OPTIONS}
    assert load_settings({}, environ) == Settings(
        triton="http://a:1",
        triton_metrics="https://b/metrics",
        trtllm="http://c:2",
        trtllm_requests="/var/perf/*.jsonl",
        trtllm_iterations="/var/log/llama.jsonl",
        vllm="http://d:3",
        sglang="http://e:4",
        http_config="http.yaml",
        slo=("a.yaml", "b.yaml"),
        jpath=("vendor",),
        listen=Listen("::", 80),
        web_config=str(web_config),
        allow_unauthenticated=True,
        allowed_host=("triton-0.chat", "tokenslo"),
        interval=0.5,
        timeout=1.5,
        stale_after=60.0,
        model=("llama*",),
        max_bytes=65536,
        expect_model=(ExpectedModel("chat"), ExpectedModel("big:llama", "2")),
        unready_after=10.0,
        stuck_after=120.0,
        probe=("chat",),
        probe_interval=60.0,
        probe_timeout=5.0,
        otlp_traces=Listen("::1", 4318),
        otlp_traces_forward="http://collector:4318/v1/traces",
        otlp_endpoint="http://collector:4318",
        otlp_interval=60.0,
        otlp_genai="none",
        gateway_metrics=((GatewayMetric("queued", "waiting", (("kind", "all"),)),),),
        tap=(
            ProxySpec("", 9000, "127.0.0.1", 8000),
            ProxySpec("::1", 9001, "::1", 8001),
        ),
        tap_tenant_header="x-tenant",
        tap_drain=120.0,
        tap_connections=500,
        tap_tls_certificate="chain.pem",
        tap_tls_key="key.pem",
        tap_upstream_server_name="triton.internal",
        tap_upstream_ca="ca.pem",
        tap_inject="perf-metrics",
        log_level="debug",
    )


def test_flags_win_over_the_environment_and_that_over_the_file(write: Write) -> None:
    file = write(
        "triton: http://file:1\ntimeout: 3s\ninterval: 3s\nmodel: [f, g]\nslo: ../slo.yaml\n"
        "max-bytes: 4096\n"
    )
    environ = {"TOKENSLO_TIMEOUT": "4s", "TOKENSLO_INTERVAL": "4s", "TOKENSLO_CONFIG": str(file)}
    config = load_settings({"interval": ["4.5s"], "model": ["x"]}, environ)
    assert (config.triton, config.timeout, config.interval) == ("http://file:1", 4.0, 4.5)
    assert config.model == ("x",)
    assert config.slo == (str(file.parent / "../slo.yaml"),)
    assert config.max_bytes == 4096


def test_empty_variables_and_those_of_kubernetes_are_none() -> None:
    environ = {
        "TOKENSLO_TIMEOUT": "",
        "TOKENSLO_PORT": "tcp://10.0.0.1:9464",
        "TOKENSLO_SERVICE_HOST": "10.0.0.1",
    }
    assert load_settings(TRITON, environ) == load_settings(TRITON, {})


def test_missing_source_is_one_error() -> None:
    assert problems({}) == [
        "command line: no source is configured. Fix: give --triton URL, --triton-metrics "
        "URL, --trtllm URL, --trtllm-iterations FILE, --vllm URL, --sglang "
        "URL, --otlp-traces HOST:PORT or --tap "
        "SPEC (or as TOKENSLO_TRITON and triton in --config FILE, for example)."
    ]


def test_files_of_requests_need_the_server_of_their_model() -> None:
    assert problems(TRITON | {"trtllm-requests": ["*.jsonl"]}) == [
        "command line: --trtllm-requests: the files do not name their model. "
        "Fix: give --trtllm URL as well."
    ]


def test_each_invalid_value_is_named_with_its_place(write: Write) -> None:
    file = write("# settings\ntriton: 7\nmodel: [a, {b: c}]\nstale_after: 5s\nfoo: 1\ntimeout: 5\n")
    environ = {"TOKENSLO_INTERVAL": "2"}
    unit = "Fix: write a number with its unit, such as 800ms, 2.5s or 1h30m."
    *most, last = (option.name for option in OPTIONS)
    names = f"{', '.join(most)} or {last}"
    assert problems({"listen": ["9464"], "log-level": ["loud"]}, environ, file) == [
        f"{file}:2: triton: is not an http or https address. "
        "Fix: write an address such as http://127.0.0.1:8000.",
        f"{file}:3: model: has a value of the wrong type. Fix: write a list of strings.",
        f'{file}:4: "stale_after" is not a setting. Fix: write stale-after.',
        f'{file}:5: "foo" is not a setting. Fix: use {names}.',
        f'{file}:6: timeout: "5" has no unit. {unit}',
        f'environment: TOKENSLO_INTERVAL: "2" has no unit. {unit}',
        'command line: --listen: "9464" is not an address to listen on. '
        "Fix: write host and port, such as 127.0.0.1:9464, or [::1]:9464.",
        'command line: --log-level: "loud" is not a log level. '
        "Fix: write debug, info, warning or error.",
    ]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("triton", "127.0.0.1:8000"),
        ("triton", "ftp://host"),
        ("triton", "http://"),
        ("triton", "http://[::1"),
        ("triton", "http://host:99999"),
        ("listen", ":9464"),
        ("listen", "::1:9464"),
        ("listen", "host:65536"),
        ("listen", "http://host:1"),
        ("interval", "0s"),
        ("interval", "2h"),
        ("interval", ""),
        ("max-bytes", "1"),
        ("max-bytes", "32MB"),
        ("max-bytes", "-5"),
        ("slo", " "),
        ("expect-model", "chat:"),
        ("expect-model", ":1"),
        ("gateway-metrics", "dynamo"),
        ("gateway-metrics", "queued="),
        ("gateway-metrics", "queued=a b"),
        ("log-level", "INFO"),
    ],
)
def test_invalid_values_are_refused(name: str, text: str) -> None:
    [problem] = problems(TRITON | {name: [text]})
    assert problem.startswith(f"command line: --{name}: ")


def test_invalid_url_is_not_printed() -> None:
    assert "secret" not in problems({"triton": ["htp://me:secret@host"]})[0]


def test_stale_after_must_exceed_the_interval(write: Write) -> None:
    end = "before the next scrape (5 s). Fix: make stale-after longer than interval."
    assert problems(TRITON | {"interval": ["5s"]}) == [
        f"command line: --interval: series would be stale (5 s) {end}"
    ]
    assert problems(TRITON, {"TOKENSLO_INTERVAL": "5s"}, write("stale-after: 1s")) == [
        f"{write('stale-after: 1s')}:1: stale-after: series would be stale (1 s) {end}"
    ]


@pytest.mark.parametrize("text", ["- a\n", "just text\n"])
def test_file_without_a_mapping_is_refused(write: Write, text: str) -> None:
    [problem] = problems(TRITON, {}, write(text))
    assert "is not a mapping of settings" in problem


def test_missing_file_is_one_error() -> None:
    [problem] = problems(TRITON, {}, Path("nowhere.yaml"))
    assert problem.startswith("nowhere.yaml: cannot be read: No such file")


PROXY = "proxy=:9000=127.0.0.1:8000"
CAPTURE = "capture=eth0:8000,8001"


def test_a_tap_alone_is_enough_and_commas_of_ports_do_not_separate_taps(write: Write) -> None:
    eth, lo = CaptureSpec("eth0", (8000, 8001)), CaptureSpec("lo", (8000,))
    assert load_settings({"tap": [CAPTURE]}, {}).tap == (eth,)
    assert load_settings({}, {"TOKENSLO_TAP": f"{CAPTURE}, capture=lo:8000"}).tap == (eth, lo)
    assert load_settings({}, {}, str(write(f"tap: [{PROXY}]"))).tap == (
        ProxySpec("", 9000, "127.0.0.1", 8000),
    )


def test_files_of_certificates_are_relative_to_the_file_that_names_them(write: Write) -> None:
    file = write(f"tap: {PROXY}\ntap-tls-certificate: chain.pem\ntap-tls-key: key.pem\n")
    config = load_settings({}, {}, str(file))
    assert config.tap_tls_certificate == str(file.parent / "chain.pem")
    assert config.tap_tls_key == str(file.parent / "key.pem")


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        (
            {"tap": [PROXY, CAPTURE]},
            "command line: --tap: a proxy and a capture would count the same streams twice. Fix: "
            "choose either the proxy or the capture.",
        ),
        (
            {"tap": ["eth0"]},
            'command line: --tap: "eth0" is not a tap. Fix: write proxy=LISTEN=UPSTREAM, such as '
            "proxy=:9000=127.0.0.1:8000, or capture=INTERFACE:PORTS.",
        ),
        (
            {**TRITON, "tap-tenant-header": ["X-Tenant"]},
            "command line: --tap-tenant-header: there are no streams to observe. "
            "Fix: give --tap SPEC as well.",
        ),
        (
            {"tap": [PROXY], "tap-tenant-header": ["X Tenant"]},
            'command line: --tap-tenant-header: "X Tenant" is not the name of a header. '
            "Fix: write one, such as X-Tenant.",
        ),
        (
            {"tap": [PROXY], "tap-tls-certificate": ["chain.pem"]},
            "command line: --tap-tls-certificate: its key is missing. "
            "Fix: give --tap-tls-key FILE as well.",
        ),
        (
            {"tap": [PROXY], "tap-tls-key": ["key.pem"]},
            "command line: --tap-tls-key: its certificate is missing. "
            "Fix: give --tap-tls-certificate FILE as well.",
        ),
        (
            {"tap": [PROXY], "tap-upstream-ca": ["ca.pem"]},
            "command line: --tap-upstream-ca: the proxy does not use TLS with the server. "
            "Fix: give --tap-upstream-server-name NAME as well.",
        ),
        (
            {"tap": [CAPTURE], "tap-inject": ["perf-metrics"]},
            "command line: --tap-inject: only a proxy can change requests. "
            "Fix: give --tap proxy=LISTEN=UPSTREAM as well.",
        ),
        (
            {"tap": [PROXY], "tap-inject": ["timing"]},
            'command line: --tap-inject: "timing" cannot be injected. Fix: write perf-metrics.',
        ),
        (
            {"tap": [CAPTURE], "tap-upstream-server-name": ["triton"]},
            "command line: --tap-upstream-server-name: only a proxy connects to the server. "
            "Fix: give --tap proxy=LISTEN=UPSTREAM as well.",
        ),
        (
            {"tap": [PROXY], "tap-connections": ["0"]},
            'command line: --tap-connections: "0" is not a number from 1. '
            "Fix: write a number, such as 10000.",
        ),
    ],
)
def test_invalid_taps_are_refused(flags: dict[str, list[str]], expected: str) -> None:
    assert problems(flags) == [expected]


USERS = "basic_auth_users: {a: $2y$10$X0h1gDsPszWURQaxFh.zoubFi6DXncSjhoQNJgRrnGs7EsimhC7zG}\n"
OPEN = (
    "would serve clients of other machines without authentication. Fix: give --web-config FILE "
    "with basic_auth_users or required client certificates; or give --allow-unauthenticated if a "
    "firewall or a NetworkPolicy limits the clients."
)


OTHERS = ("0.0.0.0", "[::]", "10.0.0.7", "triton-0", "[::ffff:10.0.0.7]", "127.0.0.1.example")  # noqa: S104


@pytest.mark.parametrize("host", OTHERS)
def test_other_machines_are_served_only_with_authentication(host: str, tmp_path: Path) -> None:
    flags = TRITON | {"listen": [f"{host}:9464"]}
    assert problems(flags) == [f"command line: --listen: {host}:9464 {OPEN}"]
    assert problems(TRITON, {"TOKENSLO_OTLP_TRACES": f"{host}:4318"}) == [
        f"environment: TOKENSLO_OTLP_TRACES: {host}:4318 {OPEN}"
    ]
    web = tmp_path / "web.yaml"
    web.write_text("http_server_config: {http2: true}\n")
    assert problems(flags | {"web-config": [str(web)]}) == [
        f"command line: --listen: {host}:9464 {OPEN}"
    ]
    web.write_text(USERS)
    assert load_settings(flags | {"web-config": [str(web)]}, {}).web_config == str(web)


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.0.1", "[::1]", "localhost"])
def test_this_machine_needs_no_authentication(host: str) -> None:
    flags = TRITON | {"listen": [f"{host}:9464"], "otlp-traces": [f"{host}:4318"]}
    assert not load_settings(flags, {}).allow_unauthenticated


def test_unauthenticated_clients_can_be_allowed_in_each_place(write: Write) -> None:
    flags = TRITON | {"listen": ["0.0.0.0:9464"]}
    name, variable = "allow-unauthenticated", "TOKENSLO_ALLOW_UNAUTHENTICATED"
    assert load_settings(flags | {name: ["true"]}, {}).allow_unauthenticated
    assert load_settings(flags, {variable: "true"}).allow_unauthenticated
    assert load_settings(flags, {}, str(write(f"{name}: true\n"))).allow_unauthenticated
    assert problems(flags, {variable: "false"}) == [f"command line: --listen: 0.0.0.0:9464 {OPEN}"]
    assert problems(flags, {variable: "1"}) == [
        f'environment: {variable}: "1" is not true or false. Fix: write true or false.'
    ]


def test_the_listener_of_a_tap_needs_no_authentication() -> None:
    assert load_settings({"tap": ["proxy=0.0.0.0:9000=127.0.0.1:8000"]}, {}).tap


def test_problems_of_the_web_configuration_are_reported(tmp_path: Path) -> None:
    web = tmp_path / "web.yaml"
    web.write_text("basic_auth_users: {a: hunter2}\n")
    assert problems(TRITON | {"web-config": [str(web)], "timeout": ["2s"]}) == [
        f"{web}:1: basic_auth_users.a: is not a bcrypt hash. Fix: write a bcrypt hash in quotes, "
        "as `htpasswd -nBC 10 USER` prints it."
    ]
    [missing] = problems(TRITON | {"web-config": [str(tmp_path / "absent.yaml")]})
    assert missing.startswith(f"{tmp_path}/absent.yaml: cannot be read: No such file")
