"""HTTP client configuration: credentials, TLS and proxies of requests, and where secrets go."""

from __future__ import annotations

import asyncio
import base64
import re
import ssl
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from exporter.samples import SourceError
from exporter.settings import OPTIONS
from exporter.sources.http_source import HttpSource
from exporter.sources.traces.forwarding import Forwarder
from promql.client import PrometheusError, Sample, query
from promql.client_config import http_client_config
from promql.http_client import FetchLimits
from slos.errors import InvalidFile
from slos.http_client_config import read_http_client_config
from tests.polling import until
from tests.test_prometheus_client import ReceivedRequest, Reply, Server, serving
from tests.test_web_config import pairs as pairs
from tokenslo.cli import COMMANDS, cli, main


@pytest.fixture
def server() -> Iterator[Server]:
    with serving() as one:
        yield one


def use(folder: Path, text: str) -> None:
    """Write a configuration and use it for a query to ``folder``'s server."""
    (folder / "http.yaml").write_text(text)


def sent(folder: Path, text: str, server: Server) -> str | None:
    """Return the Authorization header that a query has with a configuration."""
    use(folder, text)
    with http_client_config(read_http_client_config(str(folder / "http.yaml"))):
        assert query(server.url, "1") == [Sample({}, 1.0)]
    found: str | None = server.last.headers.get("Authorization")
    return found


def test_a_bearer_token_is_read_from_its_file_for_each_request(
    tmp_path: Path, server: Server
) -> None:
    token = tmp_path / "token"
    token.write_text("first\n")
    use(tmp_path, "authorization: {credentials_file: token}\n")
    with http_client_config(read_http_client_config(str(tmp_path / "http.yaml"))):
        query(server.url, "1")
        assert server.last.headers["Authorization"] == "Bearer first"
        token.write_text("renewed\n")
        query(server.url, "1")
        assert server.last.headers["Authorization"] == "Bearer renewed"
        token.unlink()
        with pytest.raises(PrometheusError, match=r"its credentials cannot be read .*No such file"):
            query(server.url, "1")
        token.write_text("se\ncret")
        with pytest.raises(PrometheusError) as failed:
            query(server.url, "1")
        assert "is empty or holds several lines" in str(failed.value)
        assert "cret" not in str(failed.value).replace(str(token), "")
    query(server.url, "1")
    assert "Authorization" not in server.last.headers


def test_user_and_password_are_read_from_files(tmp_path: Path, server: Server) -> None:
    (tmp_path / "password").write_text("p@ss\n")
    expected = f"Basic {base64.b64encode(b'me:p@ss').decode()}"
    text = "basic_auth: {username: me, password_file: password}\n"
    assert sent(tmp_path, text, server) == expected
    (tmp_path / "user").write_text("me")
    text = "basic_auth: {username_file: user, password: p@ss}\n"
    assert sent(tmp_path, text, server) == expected
    assert sent(tmp_path, "authorization: {type: Token, credentials: x}\n", server) == "Token x"


def test_tls_verifies_the_ca_and_the_name_and_presents_a_certificate(
    pairs: Path, tmp_path: Path
) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pairs / "server.pem", pairs / "server.key")
    context.load_verify_locations(pairs / "client.pem")
    context.verify_mode = ssl.CERT_REQUIRED
    with serving(context) as server:
        url = server.url.replace("http:", "https:")

        def answer(*lines: str) -> str:
            use(tmp_path, "tls_config:\n" + "".join(f"  {line}\n" for line in lines))
            with http_client_config(read_http_client_config(str(tmp_path / "http.yaml"))):
                try:
                    return str(query(url, "1")[0].value)
                except PrometheusError as error:
                    return str(error).removeprefix(f"cannot reach Prometheus at {url}: ")

        own = (f"cert_file: {pairs}/client.pem", f"key_file: {pairs}/client.key")
        assert answer(f"ca_file: {pairs}/server.pem", *own) == "1.0"
        assert answer(f"ca_file: {pairs}/server.pem", *own, "server_name: server") == "1.0"
        assert "Hostname mismatch" in answer(
            f"ca_file: {pairs}/server.pem", *own, "server_name: other"
        )
        assert answer(*own) == "TLS failed (self-signed certificate)"
        assert answer(*own, "insecure_skip_verify: true") == "1.0"
        assert answer(f"ca_file: {pairs}/server.pem") != "1.0"


def test_a_proxy_is_used_with_its_password(tmp_path: Path, server: Server) -> None:
    use(tmp_path, f"proxy_url: {server.url.replace('//', '//proxy:p%40ss@')}\n")
    with http_client_config(read_http_client_config(str(tmp_path / "http.yaml"))):
        assert query("http://prometheus.invalid:9090", "1") == [Sample({}, 1.0)]
    assert server.last.target.startswith("http://prometheus.invalid:9090/api/v1/query?")
    secret = base64.b64encode(b"proxy:p@ss").decode()
    assert server.last.headers["Proxy-Authorization"] == f"Basic {secret}"


def test_another_server_on_the_same_host_gets_no_credentials(
    tmp_path: Path, server: Server
) -> None:
    use(tmp_path, "authorization: {credentials: secret}\n")
    with serving() as other:

        def reply(_: ReceivedRequest) -> Reply:
            return 302, {"Location": f"{other.url}/api/v1/query"}, b""

        server.reply = reply
        with http_client_config(read_http_client_config(str(tmp_path / "http.yaml"))):
            assert query(server.url, "1", headers={"X-Token": "abc"}) == [Sample({}, 1.0)]
        assert server.last.headers["Authorization"] == "Bearer secret"
        assert not {"Authorization", "X-Token"} & set(other.last.headers)


async def test_sources_send_credentials_and_the_collector_of_traces_gets_none(
    tmp_path: Path, server: Server
) -> None:
    use(tmp_path, "authorization: {credentials: secret}\n")
    server.reply = lambda _: (200, {}, b"{}")
    with http_client_config(read_http_client_config(str(tmp_path / "http.yaml"))):
        source = HttpSource("triton", server.url, FetchLimits())
        await source.get_json("/v2")
        await source.close()
        assert server.last.headers["Authorization"] == "Bearer secret"
        forwarder = Forwarder(f"{server.url}/v1/traces", timeout=5.0, max_bytes=1000)
        forwarder.offer(b"{}", {})
        running = asyncio.create_task(forwarder.run())
        await until(lambda: server.last.target == "/v1/traces")
        running.cancel()
    assert "Authorization" not in server.last.headers


async def test_an_unreadable_token_fails_the_scrape_without_showing_it(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("hunter2")
    use(tmp_path, "authorization: {credentials_file: token}\n")
    config = read_http_client_config(str(tmp_path / "http.yaml"))
    (tmp_path / "token").write_text("hunter2\nhunter2")
    with http_client_config(config):
        source = HttpSource("triton", "http://127.0.0.1:1", FetchLimits())
        with pytest.raises(SourceError) as failed:
            await source.get("/v2")
        await source.close()
    assert failed.value.kind == "credentials"
    assert "hunter2" not in str(failed.value)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("oauth2: {}\n", "1: oauth2: is not a known key. Fix: use one of basic_auth, "
         "authorization, tls_config, proxy_url."),
        ("basic_auth: {username: me}\n", "1: basic_auth.password_file: is missing. Fix: add "
         "password_file: password."),
        ("basic_auth: {username: me, password_file: absent}\n", "1: basic_auth: has a file that "
         "cannot be read: No such file or directory. Fix: correct its path."),
        ("authorization: {credentials: hunter2, credentials_file: x}\n",
         "1: authorization.credentials: is given twice: credentials_file is another one. Fix: "
         "delete one of them."),
        ("authorization: {type: Basic, credentials: hunter2}\n",
         "1: authorization.type: is Basic. Fix: use basic_auth."),
        ("authorization: {credentials: hunter2}\nbasic_auth: {username: me, password: hunter2}\n",
         "2: basic_auth: conflicts with authorization. Fix: delete one of them."),
        ("tls_config: {ca_file: absent.pem}\n", "1: tls_config.ca_file: cannot be used: No such "
         "file or directory. Fix: give PEM files that belong together."),
        ("tls_config: {cert_file: a.pem}\n", "1: tls_config.key_file: is missing. Fix: add "
         "key_file: FILE."),
        ('tls_config: {min_version: TLS10}\n', "1: tls_config.min_version: is obsolete (RFC 8996). "
         "Fix: write TLS12 or TLS13."),
        ("proxy_url: socks5://me:hunter2@x\n", "1: proxy_url: is not an http or https address. "
         "Fix: write one such as http://proxy:3128."),
    ],
)  # fmt: skip
def test_each_problem_names_line_field_and_fix(tmp_path: Path, text: str, expected: str) -> None:
    use(tmp_path, text)
    with pytest.raises(InvalidFile) as failed:
        read_http_client_config(str(tmp_path / "http.yaml"))
    assert str(failed.value) == f"{tmp_path}/http.yaml:{expected}"
    assert "hunter2" not in str(failed.value)


# Secrets on the command line

# Numbers of tokens and tokenizers are no secrets.
_SECRET = re.compile(
    r"passw|secret|token(?!s$|izer)|credential|bearer|api.?key|-key$", re.IGNORECASE
)


def test_no_option_takes_a_secret() -> None:
    context = click.Context(cli)
    options = {
        (name, option)
        for name in COMMANDS
        for parameter in cli.get_command(context, name).params  # type: ignore[union-attr]
        for option in parameter.opts
        if _SECRET.search(option) and parameter.metavar != "FILE"
    }
    assert options == set()
    assert {one.name for one in OPTIONS if _SECRET.search(one.name) and one.metavar != "FILE"} == (
        set()
    )


@pytest.mark.parametrize(
    "arguments",
    [
        ("exporter", "--triton", "URL"),
        ("exporter", "--triton", "http://x", "--otlp-endpoint", "URL"),
        ("doctor", "URL"),
        ("init", "URL"),
        ("top", "URL"),
        ("diagnose", "--prometheus", "URL"),
        ("diagnose", "--prometheus", "http://x", "--sidecar", "URL"),
        ("diagnose", "--prometheus", "http://x", "--header", "Authorization: Bearer hunter2"),
        ("backtest", "examples/chat/slo.yaml", "--prometheus", "URL"),
        ("report", "--gpu-hour-price", "1", "--prometheus", "URL"),
        ("validate", "examples/chat/slo.yaml", "--metrics", "URL"),
        ("lint", "examples/chat/slo.yaml", "--metrics", "URL"),
    ],
)
def test_a_secret_on_the_command_line_is_refused_and_not_repeated(
    arguments: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    given = [each.replace("URL", "http://me:hunter2@127.0.0.1:1") for each in arguments]
    with pytest.raises(SystemExit) as ended:
        main(given)
    printed = capsys.readouterr()
    assert ended.value.code == 2
    assert "process list" in printed.err
    assert "hunter2" not in printed.out + printed.err
