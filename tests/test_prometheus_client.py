"""The client of the Prometheus HTTP API, against a server that records its requests."""

from __future__ import annotations

import base64
import json
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from urllib.parse import parse_qs, urlsplit

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from promql.client import (
    PrometheusError,
    QueryResult,
    QueryTooLargeError,
    Sample,
    Series,
    query,
    query_range,
)

ONE = json.dumps({"status": "success", "data": {"resultType": "scalar", "result": [0, "1"]}})
Reply = tuple[int, dict[str, str], bytes]


def ok(body: str = ONE) -> Reply:
    return 200, {}, body.encode()


@dataclass
class ReceivedRequest:
    """A request as the server read it."""

    method: str
    target: str
    headers: dict[str, str]
    body: bytes

    @property
    def params(self) -> dict[str, str]:
        text = self.body.decode() if self.body else urlsplit(self.target).query
        return {name: values[0] for name, values in parse_qs(text).items()}


@dataclass
class Server:
    """A server and the requests that it received; ``reply`` makes its responses."""

    port: int
    requests: list[ReceivedRequest] = field(default_factory=list)
    reply: Callable[[ReceivedRequest], Reply] = lambda _: ok()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def last(self) -> ReceivedRequest:
        return self.requests[-1]


@contextmanager
def serving(tls: ssl.SSLContext | None = None) -> Iterator[Server]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"] or 0))
            one = ReceivedRequest(self.command, self.path, dict(self.headers), body)
            found.requests.append(one)
            status, headers, content = found.reply(one)
            self.send_response(status)
            for name, value in {"Content-Length": str(len(content)), **headers}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(content)

        do_POST = do_CONNECT = do_GET  # noqa: N815

        def log_message(self, *_: object) -> None:
            pass

    class QuietServer(ThreadingHTTPServer):
        def handle_error(self, *_: object) -> None:
            """Ignore clients that disconnect."""

    with QuietServer(("127.0.0.1", 0), Handler) as server:
        if tls:
            server.socket = tls.wrap_socket(server.socket, server_side=True)
        found = Server(server.server_port)
        Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}).start()
        yield found
        server.shutdown()


@pytest.fixture
def server() -> Iterator[Server]:
    with serving() as one:
        yield one


@pytest.fixture(autouse=True)
def no_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


def reason(base: str, expr: str = "1", **options: object) -> str:
    with pytest.raises(PrometheusError) as raised:
        query(base, expr, **options)  # type: ignore[arg-type]
    assert type(raised.value) is PrometheusError
    return str(raised.value)


def test_results_are_parsed(server: Server) -> None:
    vector = {"resultType": "vector", "result": [{"metric": {"a": "b"}, "value": [0, "NaN"]}]}
    server.reply = lambda _: ok(json.dumps({"status": "success", "data": vector}))
    (sample,) = query(server.url, "up")
    assert (sample.labels, str(sample.value)) == ({"a": "b"}, "nan")
    matrix = {"resultType": "matrix", "result": [{"metric": {}, "values": [[1.5, "2"]]}]}
    server.reply = lambda _: ok(json.dumps({"status": "success", "data": matrix}))
    assert query_range(server.url, "up", 1, 2, 0.5) == [Series({}, {1.5: 2.0})]
    assert server.last.params == {"query": "up", "start": "1", "end": "2", "step": "0.5"}
    assert "expected an instant vector, got a matrix" in reason(server.url, "up")


@settings(max_examples=60, deadline=None)
@given(st.text(st.characters(codec="utf-8"), min_size=1, max_size=30), st.booleans())
def test_every_query_arrives_as_it_is(expr: str, long: bool) -> None:
    text = expr + " " * 4000 + "#" if long else expr
    with serving() as server:
        assert query(f"{server.url}/prom/", text) == [Sample({}, 1.0)]
    assert server.last.params == {"query": text}
    assert server.last.method == ("POST" if long else "GET")
    assert urlsplit(server.last.target).path == "/prom/api/v1/query"


def test_credentials_and_headers_are_sent_and_never_shown(server: Server) -> None:
    base = server.url.replace("//", "//mé:p%40ss:word@")
    query(base, "1", headers={"X-Scope-OrgID": "team", "user-agent": "mine"})
    sent = {name.lower(): value for name, value in server.last.headers.items()}
    secret = base64.b64encode("mé:p@ss:word".encode()).decode()
    assert (sent["authorization"], sent["x-scope-orgid"]) == (f"Basic {secret}", "team")
    assert (sent["user-agent"], sent["accept-encoding"]) == ("mine", "identity")
    query(base, "1", headers={"Authorization": "Bearer abc"})
    assert server.last.headers["Authorization"] == "Bearer abc"
    server.reply = lambda _: (403, {}, b"no")
    assert reason(base) == f"{server.url} answered 403 Forbidden"


def test_credentials_of_netrc_are_not_used(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "netrc").write_text("machine 127.0.0.1 login me password hunter2\n")
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    query(server.url, "1")
    assert "Authorization" not in server.last.headers


@pytest.mark.parametrize("status", [301, 302, 307, 308])
@pytest.mark.parametrize("expr", ["1", "1" + " " * 4000 + "#"])
def test_a_redirect_keeps_the_query_and_the_credentials(
    server: Server, status: int, expr: str
) -> None:
    def reply(sent: ReceivedRequest) -> Reply:
        target = sent.target.replace("/old/", "/new/")
        return ok() if "/new/" in sent.target else (status, {"Location": target}, b"")

    server.reply = reply
    base = server.url.replace("//", "//me:secret@")
    assert query(f"{base}/old", expr, headers={"X-Scope-OrgID": "team"}) == [Sample({}, 1.0)]
    assert server.last.params == {"query": expr}
    assert server.last.headers["X-Scope-OrgID"] == "team"
    assert server.last.headers["Authorization"].startswith("Basic ")


def test_another_host_gets_no_credentials(server: Server) -> None:
    elsewhere = f"http://localhost:{server.port}/api/v1/query"

    def reply(sent: ReceivedRequest) -> Reply:
        return (302, {"Location": elsewhere}, b"") if len(server.requests) == 1 else ok()

    server.reply = reply
    base = server.url.replace("//", "//me:secret@")
    assert query(base, "1", headers={"X-Token": "abc"}) == [Sample({}, 1.0)]
    assert server.last.headers["Host"] == f"localhost:{server.port}"
    assert not {"Authorization", "X-Token"} & set(server.last.headers)


def test_redirects_in_a_circle_end(server: Server) -> None:
    server.reply = lambda sent: (302, {"Location": sent.target}, b"")
    error = reason(server.url)
    assert error == f"cannot reach Prometheus at {server.url}: redirects more than 10 times"
    assert len(server.requests) == 11


def test_a_proxy_from_the_environment_is_used(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("http_proxy", server.url.replace("//", "//proxy:p%40ss@"))
    assert query("http://prometheus.invalid:9090/x", "1") == [Sample({}, 1.0)]
    assert server.last.target.startswith("http://prometheus.invalid:9090/x/api/v1/query?")
    secret = base64.b64encode(b"proxy:p@ss").decode()
    assert server.last.headers["Proxy-Authorization"] == f"Basic {secret}"
    assert "Authorization" not in server.last.headers
    monkeypatch.setenv("no_proxy", "prometheus.invalid")
    assert "cannot reach Prometheus at http://prometheus.invalid" in reason(
        "http://prometheus.invalid:9090"
    )
    assert len(server.requests) == 1


def test_a_proxy_that_refuses_is_named(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    server.reply = lambda _: (407, {}, b"")
    monkeypatch.setenv("https_proxy", server.url.replace("//", "//me:secret@"))
    base = "https://prometheus.invalid"
    assert reason(base) == f"cannot reach Prometheus at {base}: the proxy answered 407"
    assert (server.last.method, server.last.target) == ("CONNECT", "prometheus.invalid:443")
    secret = base64.b64encode(b"me:secret").decode()
    assert server.last.headers["Proxy-Authorization"] == f"Basic {secret}"
    monkeypatch.setenv("https_proxy", "127.0.0.1:9")
    assert reason(base).endswith(": no connection to the proxy: Connection refused")


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tls")
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256",
         "-nodes", "-keyout", "both.pem", "-out", "cert.pem", "-days", "1", "-subj", "/CN=x",
         "-addext", "subjectAltName=IP:127.0.0.1"],
        cwd=folder, check=True, capture_output=True,
    )  # fmt: skip
    with (folder / "both.pem").open("a") as both:
        both.write((folder / "cert.pem").read_text())
    return folder


def test_the_certificate_is_verified(certificate: Path) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate / "both.pem")
    with serving(context) as server:
        base = server.url.replace("http", "https")
        assert reason(base) == (
            f"cannot reach Prometheus at {base}: TLS failed (self-signed certificate)"
        )


def test_the_environment_names_the_authority(certificate: Path) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate / "both.pem")
    code = (
        "import sys; from promql.client import query;"
        "print(*(query(sys.argv[1], '1')[0].value for _ in range(2)))"
    )
    with serving(context) as server:
        done = subprocess.run(
            [sys.executable, "-X", "dev", "-W", "error", "-c", code, f"https://127.0.0.1:{server.port}"],
            env={"SSL_CERT_FILE": str(certificate / "cert.pem")},
            capture_output=True, text=True, cwd=Path(__file__).parent.parent, check=False,
        )  # fmt: skip
    assert (done.stdout, done.stderr) == ("1.0 1.0\n", "")


@pytest.mark.parametrize(
    ("status", "body", "message", "kind"),
    [
        (422, '{"status": "error", "error": "too many samples"}',
         "Prometheus at {url} refused the query: too many samples", QueryTooLargeError),
        (503, "<html>", "{url} answered 503 Service Unavailable", QueryTooLargeError),
        (413, "", "{url} answered 413", QueryTooLargeError),
        (400, '{"status": "error", "error": "parse error"}',
         "Prometheus at {url} refused the query: parse error", PrometheusError),
        (502, "", "{url} answered 502 Bad Gateway", PrometheusError),
        (599, "", "{url} answered 599", PrometheusError),
        (200, "<html>", "{url} did not answer like a Prometheus", PrometheusError),
        (200, "[]", "{url} did not answer like a Prometheus", PrometheusError),
    ],
)  # fmt: skip
def test_a_refusal_is_one_clear_error(
    server: Server, status: int, body: str, message: str, kind: type[PrometheusError]
) -> None:
    server.reply = lambda _: (status, {}, body.encode())
    with pytest.raises(PrometheusError) as raised:
        query(server.url, "1")
    assert str(raised.value).startswith(message.format(url=server.url))
    assert type(raised.value) is kind


@pytest.mark.parametrize(
    "body",
    [
        '{"status": "success", "data": {}}',
        '{"status": "success", "data": {"resultType": "scalar", "result": [1]}}',
        '{"status": "success", "data": {"resultType": "vector", "result": '
        '[{"value": [1, "1"], "values": [[1, "1"]]}]}}',
        '{"status": "success", "data": {"resultType": "vector", "result": '
        '[{"metric": {"a": 1}, "value": [1, "1"], "values": [[1, "1"]]}]}}',
        '{"status": "success", "data": {"resultType": "vector", "result": 5}}',
        "[" * 100_000,
    ],
)
def test_a_malformed_result_is_one_clear_error(server: Server, body: str) -> None:
    server.reply = lambda _: ok(body)
    for send in (partial(query, server.url, "1"), partial(query_range, server.url, "1", 0, 1, 1)):
        with pytest.raises(PrometheusError, match="did not answer like a Prometheus"):
            send()


def test_response_above_the_limit_suggests_a_smaller_query(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("promql.client._MAX_BYTES", 2 << 20)
    server.reply = lambda _: ok(" " * (2 << 20) + ONE)
    with pytest.raises(QueryTooLargeError, match="is larger than 2 MiB"):
        query(server.url, "1")


def test_slow_response_suggests_a_smaller_query(server: Server) -> None:
    def slow(_: ReceivedRequest) -> Reply:
        time.sleep(1)
        return ok()

    server.reply = slow
    with pytest.raises(QueryTooLargeError) as raised:
        query(server.url, "1", timeout=0.3)
    assert str(raised.value) == f"Prometheus at {server.url} has not answered in 0.3 s"


def test_a_host_that_takes_no_connection_is_unreachable() -> None:
    with socket.socket() as full:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        url = f"http://127.0.0.1:{full.getsockname()[1]}"
        with socket.create_connection(full.getsockname()):  # fills the backlog
            error = reason(url, timeout=0.6)
    assert error == f"cannot reach Prometheus at {url}: no connection within 0.3 s"


def test_what_does_not_answer_in_http_is_one_clear_error() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"

        def greet() -> None:
            with listener.accept()[0] as client:
                client.recv(65536)
                client.sendall(b"SSH-2.0-OpenSSH\r\n\r\n")

        thread = Thread(target=greet)
        thread.start()
        assert reason(url).startswith(f"cannot reach Prometheus at {url}: not HTTP")
        thread.join()
    assert reason(url) == f"cannot reach Prometheus at {url}: Connection refused"


@pytest.mark.parametrize(
    ("base", "message"),
    [
        ("ftp://x", "not an http(s) URL: ftp://x"),
        ("http://[", "that is no URL"),
        ("http://", "cannot reach Prometheus at http://: not an http or https address"),
        ("http://x:99999", "cannot reach Prometheus at http://x:99999: "),
        ("http://me:secret@no-such-host.invalid", "Prometheus at http://no-such-host.invalid: "),
    ],
)
def test_a_wrong_url_is_one_clear_error(base: str, message: str) -> None:
    error = reason(base)
    assert message in error
    assert "secret" not in error
    assert not error.endswith((": ", "None"))


def test_headers_that_http_does_not_allow_are_refused(server: Server) -> None:
    error = reason(server.url, headers={"X": "a\r\nY: b"})
    assert error.startswith(f"cannot reach Prometheus at {server.url}: ")
    assert server.requests == []


def test_warnings_and_the_time_of_a_query(server: Server) -> None:
    document = {
        "status": "success",
        "data": {"resultType": "vector", "result": [{"metric": {}, "value": [0, "1"]}]},
        "warnings": ["store is unreachable", "PromQL info: metric might not be a counter"],
    }
    server.reply = lambda _: ok(json.dumps(document))
    found = query(server.url, "up", time=12.5)
    assert found == [Sample({}, 1.0)]
    assert found.warnings == ("store is unreachable",)
    assert server.requests[-1].params == {"query": "up", "time": "12.5"}
    query(server.url, "up")
    assert server.requests[-1].params == {"query": "up"}
    del document["warnings"]
    assert query(server.url, "up").warnings == ()
    assert QueryResult([Sample({}, 1.0)]) == [Sample({}, 1.0)]


def test_native_histogram_has_no_value(server: Server) -> None:
    result = [{"metric": {"a": "b"}, "histogram": [0, {"count": "1"}]}]
    data = {"resultType": "vector", "result": result}
    server.reply = lambda _: ok(json.dumps({"status": "success", "data": data}))
    assert query(server.url, "up") == []
