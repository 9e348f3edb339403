"""Web configuration files: what is read, and how a listener serves by them."""

from __future__ import annotations

import asyncio
import base64
import shutil
import socket
import ssl
import subprocess
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import NamedTuple

import aiohttp
import bcrypt
import pytest
from aiohttp import web
from multidict import CIMultiDictProxy
from yarl import URL

from exporter import connection_limit
from exporter.http_server import add_headers, start
from exporter.sockets import Listen
from exporter.web.server import application
from exporter.web_config import ListenerAccess, basic_auth, listener_access
from exporter.web_config.basic_auth import BasicAuth
from exporter.web_config.rate_limiter import RateLimiter
from exporter.web_config.reader import read_web_config
from slos.errors import InvalidFile
from tests.polling import until
from tests.test_server import LOOPBACK, facts

PASSWORD = "correct horse"
SALT = b"$2b$04$abcdefghijklmnopqrstuu"  # constant, as hashes are in the names of tests
HASH = bcrypt.hashpw(PASSWORD.encode(), SALT).decode()
USERS = f'basic_auth_users: {{prometheus: "{HASH}"}}\n'
TLS = "tls_server_config: {cert_file: server.pem, key_file: server.key}\n"
MUTUAL = (
    "tls_server_config:\n  cert_file: server.pem\n  key_file: server.key\n"
    "  client_ca_file: client.pem\n  client_auth_type: RequireAndVerifyClientCert\n"
)


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with self-signed certificates for 127.0.0.1 and their keys."""
    folder = tmp_path_factory.mktemp("pairs")
    for name in ("server", "renewed", "client", "stranger"):
        subprocess.run(
            ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256",
             "-nodes", "-days", "2", "-subj", f"/CN={name}",
             "-addext", f"subjectAltName=IP:127.0.0.1,DNS:{name}",
             "-keyout", f"{name}.key", "-out", f"{name}.pem"],
            cwd=folder, check=True, capture_output=True, timeout=60,
        )  # fmt: skip
    return folder


@pytest.fixture
def folder(pairs: Path, tmp_path: Path) -> Path:
    """Return a folder with the certificates, to be changed."""
    shutil.copytree(pairs, tmp_path, dirs_exist_ok=True)
    return tmp_path


@pytest.fixture(autouse=True)
def reload_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listener_access, "REFRESH_SECONDS", 0.0)


def problems(folder: Path, text: str) -> list[str]:
    file = folder / "web.yaml"
    file.write_text(text)
    with pytest.raises(InvalidFile) as failed:
        read_web_config(str(file))
    return [str(each).removeprefix(f"{file}:") for each in failed.value.problems]


@asynccontextmanager
async def served(
    folder: Path, text: str = "", *, authenticated: bool = False, **options: object
) -> AsyncIterator[str]:
    file = folder / "web.yaml"
    file.write_text(text)
    access = ListenerAccess(
        str(file) if text else "",
        authenticated=authenticated,
        **options,  # type: ignore[arg-type]
    )
    url, close = await start(application(facts()), LOOPBACK, access)
    try:
        yield url
    finally:
        await close()


class Answer(NamedTuple):
    status: int
    headers: CIMultiDictProxy[str]
    body: bytes


async def get(
    url: str,
    path: str = "/metrics",
    *,
    password: str | None = None,
    tls: ssl.SSLContext | None = None,
    user: str = "prometheus",
    headers: dict[str, str] | None = None,
) -> Answer:
    auth = aiohttp.encode_basic_auth(user, password) if password is not None else None
    given = {**(headers or {}), **({"Authorization": auth} if auth else {})}
    connector = aiohttp.TCPConnector(force_close=True, ssl=tls or True)
    async with (
        aiohttp.ClientSession(connector=connector) as session,
        session.get(url + path, headers=given) as response,
    ):
        return Answer(response.status, response.headers, await response.read())


def client_tls(folder: Path, server: str = "server", own: str = "") -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=str(folder / f"{server}.pem"))
    if own:
        context.load_cert_chain(folder / f"{own}.pem", folder / f"{own}.key")
    return context


# The file


def test_every_key_of_the_format_is_read(folder: Path) -> None:
    (folder / "web.yaml").write_text(
        "tls_server_config:\n"
        "  cert_file: server.pem\n"
        "  key_file: server.key\n"
        "  client_ca_file: client.pem\n"
        "  client_auth_type: RequireAndVerifyClientCert\n"
        "  client_allowed_sans: [prometheus.example]\n"
        "  min_version: TLS13\n"
        "  max_version: TLS13\n"
        "  cipher_suites: [TLS_AES_128_GCM_SHA256, TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256]\n"
        "  prefer_server_cipher_suites: false\n"
        "  curve_preferences: [CurveP384]\n"
        "http_server_config:\n"
        "  http2: true\n"
        "  headers: {X-Frame-Options: deny, Strict-Transport-Security: max-age=60}\n"
        f"{USERS}"
        "rate_limit: {interval: 100ms, burst: 20}\n"
    )
    config = read_web_config(str(folder / "web.yaml"))
    assert config.authenticates
    assert config.users == {"prometheus": HASH}
    assert config.headers == {"X-Frame-Options": "deny", "Strict-Transport-Security": "max-age=60"}
    assert config.rate_limit
    assert (config.rate_limit.interval, config.rate_limit.burst) == (0.1, 20)
    assert config.files == tuple(
        str(folder / name) for name in ("server.pem", "server.key", "client.pem")
    )
    assert config.context
    assert config.context.minimum_version == ssl.TLSVersion.TLSv1_3
    assert config.context.verify_mode == ssl.CERT_REQUIRED
    assert "RequireAndVerify" not in HASH  # no secret in the representation
    assert HASH not in repr(config)


def test_certificates_may_be_part_of_the_file(folder: Path) -> None:
    block = {
        key: "\n".join(f"    {line}" for line in (folder / name).read_text().splitlines())
        for key, name in (("cert", "server.pem"), ("key", "server.key"))
    }
    text = "".join(f"  {key}: |\n{pem}\n" for key, pem in block.items())
    (folder / "web.yaml").write_text(f"tls_server_config:\n{text}")
    config = read_web_config(str(folder / "web.yaml"))
    assert config.context
    assert config.files == ()
    assert "PRIVATE KEY" not in repr(config)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "basic_auth_user: {a: b}\n",
            "1: basic_auth_user: is not a known key. Fix: write basic_auth_users.",
        ),
        (
            "basic_auth_users:\n  a: hunter2\n",
            "2: basic_auth_users.a: is not a bcrypt hash. Fix: write a bcrypt hash in quotes, as "
            "`htpasswd -nBC 10 USER` prints it.",
        ),
        (
            f"basic_auth_users:\n  a: {HASH.replace('$04$', '$31$')}\n",
            "2: basic_auth_users.a: has a cost that is not from 4 to 16. Fix: hash the password "
            "again with a cost of 10.",
        ),
        (
            f'basic_auth_users:\n  "a:b": {HASH}\n',
            '2: basic_auth_users["a:b"]: is not a user name. Fix: write one without colons and '
            "control characters.",
        ),
        (
            "tls_server_config:\n  cert_file: server.pem\n",
            "1: tls_server_config.key_file: is missing. Fix: add key_file: key.pem.",
        ),
        (
            "tls_server_config:\n  cert_file: server.pem\n  key_file: client.key\n",
            "2: tls_server_config.cert_file: cannot be used with its key: KEY_VALUES_MISMATCH. "
            "Fix: give a PEM certificate and the key that belongs to it.",
        ),
        (
            "tls_server_config:\n  cert_file: absent.pem\n  key_file: client.key\n",
            "2: tls_server_config.cert_file: cannot be used with its key: No such file or "
            "directory. Fix: give a PEM certificate and the key that belongs to it.",
        ),
        (
            "tls_server_config:\n  cert_file: server.pem\n  key_file: server.key\n"
            "  client_auth_type: RequireAndVerifyClientCert\n",
            "1: tls_server_config.client_ca_file: is missing, so every public CA would be trusted. "
            "Fix: add client_ca_file: ca.pem, the CA of the clients.",
        ),
        (
            "tls_server_config:\n  cert_file: server.pem\n  key_file: server.key\n"
            "  client_ca_file: client.pem\n",
            "1: tls_server_config.client_auth_type: is missing, so client_ca would have no effect. "
            "Fix: add client_auth_type: RequireAndVerifyClientCert.",
        ),
        (
            "tls_server_config:\n  cert_file: server.pem\n  key_file: server.key\n"
            "  client_auth_type: RequireAnyClientCert\n",
            "4: tls_server_config.client_auth_type: RequireAnyClientCert accepts any certificate, "
            "without verification. Fix: write RequireAndVerifyClientCert.",
        ),
        (
            "tls_server_config:\n  cert_file: server.pem\n  key_file: server.key\n"
            "  client_allowed_sans: [a]\n",
            "4: tls_server_config.client_allowed_sans: applies to required certificates only. "
            "Fix: write client_auth_type: RequireAndVerifyClientCert.",
        ),
        (
            "tls_server_config:\n  cert_file: server.pem\n  key_file: server.key\n"
            "  min_version: TLS10\n",
            "4: tls_server_config.min_version: is obsolete (RFC 8996). Fix: write TLS12 or TLS13.",
        ),
        (
            "tls_server_config:\n  cert_file: server.pem\n  key_file: server.key\n"
            "  max_version: 1.3\n",
            "4: tls_server_config.max_version: is a number. Fix: write TLS12 or TLS13.",
        ),
        (
            'tls_server_config:\n  cert_file: "a\\nb"\n  key_file: server.key\n',
            "2: tls_server_config.cert_file: is empty or holds control characters. Fix: write one "
            "line.",
        ),
        (
            "tls_server_config:\n  cert_file: server.pem\n  key_file: server.key\n"
            "  cipher_suites: [TLS_RSA_WITH_RC4_128_SHA]\n",
            "4: tls_server_config.cipher_suites[0]: is not a cipher suite, or an insecure one. "
            "Fix: use the names of Go, such as TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256.",
        ),
        (
            "tls_server_config:\n  cert_file: server.pem\n  key_file: server.key\n"
            "  curve_preferences: [X25519, CurveP256]\n",
            "4: tls_server_config.curve_preferences: does not name one curve. Fix: write one, or "
            "delete the key for the default.",
        ),
        (
            "http_server_config:\n  headers: {Server: mine}\n",
            "2: http_server_config.headers.Server: is not a header that the format permits. Fix: "
            "use Content-Security-Policy, Strict-Transport-Security, X-Content-Type-Options, "
            "X-Frame-Options, X-XSS-Protection.",
        ),
        (
            'http_server_config:\n  headers: {X-Frame-Options: "no"}\n',
            "2: http_server_config.headers.X-Frame-Options: is not deny or sameorigin. Fix: write "
            "deny or sameorigin.",
        ),
        (
            'http_server_config:\n  headers: {X-XSS-Protection: "0\\r\\nSet-Cookie: a=b"}\n',
            "2: http_server_config.headers.X-XSS-Protection: holds control or non-ASCII "
            "characters. Fix: write printable ASCII.",
        ),
        (
            "rate_limit: {interval: 1s}\n",
            "1: rate_limit.burst: admits no request, because burst is missing or 0. Fix: add "
            "burst: 20.",
        ),
        ("", " is empty. Fix: write the settings into it."),
    ],
)
def test_each_problem_names_line_field_and_fix(folder: Path, text: str, expected: str) -> None:
    assert problems(folder, text) == [expected]


def test_at_most_100_users_and_one_document_are_read(folder: Path) -> None:
    users = "".join(f'  user{number}: "{HASH}"\n' for number in range(100))
    (folder / "web.yaml").write_text(f"basic_auth_users:\n{users}")
    assert len(read_web_config(str(folder / "web.yaml")).users) == 100
    assert problems(folder, f'basic_auth_users:\n{users}  user100: "{HASH}"\n') == [
        "1: basic_auth_users: has more than 100 users. Fix: use client certificates for many "
        "clients."
    ]
    assert problems(folder, f"{USERS}---\n{USERS}") == [
        "3: a second document starts. Fix: put each document into its own file."
    ]


def test_a_problem_never_shows_the_value_of_a_user(folder: Path) -> None:
    for value in ("hunter2", '"hunter2 $2y$10$"', "[hunter2]", "|\n    hunter2"):
        assert "hunter2" not in "".join(problems(folder, f"basic_auth_users:\n  a: {value}\n"))


# Users


async def test_users_need_their_password(folder: Path) -> None:
    async with served(folder, USERS) as url:
        for path in ("/", "/metrics", "/nothing"):
            refused = await get(url, path)
            assert refused.status == 401
            assert refused.headers["WWW-Authenticate"].startswith("Basic ")
            assert refused.headers["X-Content-Type-Options"] == "nosniff"
            assert b"llm_" not in refused.body
        assert (await get(url, password="wrong")).status == 401
        assert (await get(url, password=PASSWORD, user="admin")).status == 401
        assert (await get(url, password=PASSWORD)).status == 200


@pytest.mark.parametrize(
    "given",
    ["", "Basic", "Basic !", "Bearer abc", f"Basic {base64.b64encode(b'no colon').decode()}"]
    + [
        f"Basic {base64.b64encode(each).decode()}" for each in (b"\xff:a", b"prometheus:a\0b", b":")
    ],
)
async def test_malformed_credentials_are_refused(given: str) -> None:
    assert await BasicAuth({"prometheus": HASH}).check(given) == "refused"


async def test_probes_need_no_password_and_get_no_details(folder: Path) -> None:
    async with served(folder, USERS) as url:
        assert (await get(url, "/healthz")).body == b"ok\n"
        ready = await get(url, "/readyz")
        assert (ready.status, ready.body) == (200, b"ok\n")
        detailed = await get(url, "/readyz", password=PASSWORD)
        assert b"layers" in detailed.body
        assert (await get(url, "/healthz", password="wrong")).status == 401


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> tuple[threading.Event, list[bytes]]:
    """Hold all checks of passwords until the event is set, and list those that began."""
    go, began, real = threading.Event(), [], basic_auth._matches

    def slow(password: bytes, stored: bytes) -> bool:
        began.append(password)
        go.wait(30)
        return real(password, stored)

    monkeypatch.setattr(basic_auth, "_matches", slow)
    return go, began


async def test_a_flood_of_wrong_passwords_delays_no_known_client(
    folder: Path, held: tuple[threading.Event, list[bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    go, began = held
    go.set()
    async with served(folder, USERS) as url:
        assert (await get(url, password=PASSWORD)).status == 200
        assert (await get(url, password=PASSWORD)).status == 200
        assert began == [PASSWORD.encode()]  # hashed once
        go.clear()
        monkeypatch.setattr(basic_auth, "MAX_PENDING", 1)
        guess = asyncio.create_task(get(url, password="guess"))
        await until(lambda: len(began) == 2)  # the guess is being checked
        for number in range(10):
            busy = await get(url, password=f"guess {number}")
            assert (busy.status, busy.headers["Retry-After"]) == (503, "1")
        assert (await get(url, password=PASSWORD)).status == 200
        assert (await get(url, "/healthz")).status == 200
        go.set()
        assert (await guess).status == 401


async def test_an_unknown_user_costs_the_same_check(
    held: tuple[threading.Event, list[bytes]],
) -> None:
    go, began = held
    go.set()
    auth = BasicAuth({"prometheus": HASH})
    header = aiohttp.encode_basic_auth("unknown", PASSWORD)
    assert await auth.check(header) == "refused"
    assert await auth.check(header) == "refused"  # although the password is that of another user
    assert len(began) == 2


# TLS and client certificates


async def test_tls_serves_https_only(folder: Path) -> None:
    async with served(folder, TLS) as url:
        assert url.startswith("https://")
        assert (await get(url, tls=client_tls(folder))).status == 200
        with pytest.raises(aiohttp.ClientError):
            await get(url.replace("https", "http"))


async def test_client_certificates_are_required_and_verified(folder: Path) -> None:
    async with served(folder, MUTUAL, authenticated=True) as url:
        assert (await get(url, tls=client_tls(folder, own="client"))).status == 200
        for own in ("", "stranger"):
            with pytest.raises((aiohttp.ClientError, OSError)):
                await get(url, "/healthz", tls=client_tls(folder, own=own))


@pytest.mark.parametrize(
    ("san", "permitted"), [("client", True), ("127.0.0.1", True), ("x", False)]
)
async def test_only_permitted_names_in_client_certificates_are_served(
    folder: Path, san: str, permitted: bool
) -> None:
    async with served(folder, f"{MUTUAL}  client_allowed_sans: [{san}]\n") as url:
        tls = client_tls(folder, own="client")
        if permitted:
            assert (await get(url, tls=tls)).status == 200
        else:
            with pytest.raises(aiohttp.ClientError):
                await get(url, tls=tls)


async def test_silent_tls_clients_lock_out_no_other(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection_limit, "MAX_CONNECTIONS", 4)
    async with served(folder, TLS) as url:
        port = URL(url).port
        silent = [socket.create_connection(("127.0.0.1", port)) for _ in range(10)]
        assert (await get(url, tls=client_tls(folder))).status == 200
        assert await asyncio.get_running_loop().run_in_executor(None, silent[0].recv, 1) == b""
        for each in silent:
            each.close()


# Reloads


async def test_certificates_and_users_are_reloaded(folder: Path) -> None:
    async with served(folder, TLS + USERS) as url:
        first = client_tls(folder)
        assert (await get(url, password=PASSWORD, tls=first)).status == 200
        for suffix in ("pem", "key"):
            shutil.copy(folder / f"renewed.{suffix}", folder / f"server.{suffix}")
        with pytest.raises(aiohttp.ClientError):
            await get(url, password=PASSWORD, tls=first)
        renewed = client_tls(folder, "renewed")
        assert (await get(url, password=PASSWORD, tls=renewed)).status == 200

        changed = bcrypt.hashpw(b"changed", bcrypt.gensalt(4)).decode()
        (folder / "web.yaml").write_text(f'{TLS}basic_auth_users: {{prometheus: "{changed}"}}\n')
        assert (await get(url, password=PASSWORD, tls=renewed)).status == 401
        assert (await get(url, password="changed", tls=renewed)).status == 200


@pytest.mark.parametrize(
    ("first", "own", "changed", "status"),
    [
        (TLS + USERS, "", MUTUAL, 421),
        (MUTUAL, "client", MUTUAL.replace("client.pem", "stranger.pem"), 421),
        (MUTUAL, "client", f"{MUTUAL}  client_allowed_sans: [other]\n", 421),
        (MUTUAL, "client", f"{MUTUAL}  client_allowed_sans: [client]\n", 200),
    ],
    ids=["certificates instead of users", "other CA", "other name", "same requirements"],
)
async def test_a_reload_applies_to_open_connections(
    folder: Path, first: str, own: str, changed: str, status: int
) -> None:
    auth = {"Authorization": aiohttp.encode_basic_auth("prometheus", PASSWORD)}
    async with served(folder, first, authenticated=True) as url:
        connector = aiohttp.TCPConnector(ssl=client_tls(folder, own=own))
        async with aiohttp.ClientSession(url, connector=connector, headers=auth) as session:
            async with session.get("/metrics") as served_:
                assert served_.status == 200
            (folder / "web.yaml").write_text(changed)
            async with session.get("/metrics") as answer:
                assert answer.status == status
                assert (answer.headers.get("Connection") == "close") == (status == 421)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("basic_auth_users: {prometheus: hunter2}\n", "is not a bcrypt hash"),
        ("http_server_config: {http2: true}\n", "authenticates no client"),
        (TLS + USERS, "TLS cannot be switched on or off in a running sidecar"),
    ],
)
async def test_a_bad_reload_keeps_the_previous_file(
    folder: Path, text: str, message: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with served(folder, USERS, authenticated=True) as url:
        (folder / "web.yaml").write_text(text)
        assert (await get(url)).status == 401
        assert (await get(url, password=PASSWORD)).status == 200
    assert message in caplog.text
    assert "the previous files stay in use" in caplog.text
    assert "hunter2" not in caplog.text


# Headers, rate limit, hosts


async def test_headers_replace_the_defaults(folder: Path) -> None:
    text = 'http_server_config: {headers: {X-Frame-Options: deny, Content-Security-Policy: "x"}}\n'
    async with served(folder, text) as url:
        answer = await get(url)
        assert answer.headers["X-Frame-Options"] == "deny"
        assert answer.headers.getall("Content-Security-Policy") == ["x"]


async def test_requests_beyond_the_rate_limit_are_refused(folder: Path) -> None:
    async with served(folder, "rate_limit: {interval: 1h, burst: 2}\n") as url:
        assert [(await get(url)).status for _ in range(3)] == [200, 200, 429]


def test_the_rate_limit_admits_one_request_per_interval() -> None:
    now = 0.0
    limiter = RateLimiter(0.5, 2, lambda: now)
    assert [limiter.admits() for _ in range(3)] == [True, True, False]
    now = 0.5
    assert [limiter.admits() for _ in range(2)] == [True, False]
    now = 60.0
    assert [limiter.admits() for _ in range(3)] == [True, True, False]


@pytest.mark.parametrize(
    ("host", "loopback", "other"),
    [
        ("127.0.0.1:9464", 200, 200),
        ("[::1]:9464", 200, 200),
        ("localhost", 200, 200),
        ("LOCALHOST.:1", 200, 200),
        ("allowed.example:80", 200, 200),
        ("evil.example", 421, 421),
        ("127.0.0.1.evil.example:9464", 421, 421),
        ("localhost.evil.example", 421, 421),
        ("[::1", 421, 421),
        ("triton-0", 421, 200),
        ("triton-0.triton.prod.svc:9464", 421, 200),
    ],
)
async def test_a_foreign_host_is_refused(
    folder: Path, host: str, loopback: int, other: int
) -> None:
    for private_names, expected in ((False, loopback), (True, other)):
        async with served(folder, private_names=private_names, hosts=("allowed.example",)) as url:
            for path in ("/", "/metrics", "/healthz"):
                answer = await get(url, path, headers={"Host": host})
                assert answer.status == expected
                assert answer.headers["Server"] == "tokenslo"


async def test_hosts_do_not_matter_with_users(folder: Path) -> None:
    async with served(folder, USERS) as url:
        answer = await get(url, password=PASSWORD, headers={"Host": "sidecar.example.com"})
        assert answer.status == 200


async def test_every_listener_has_the_protection(folder: Path) -> None:
    (folder / "web.yaml").write_text(USERS)
    app = web.Application()
    app.on_response_prepare.append(add_headers)

    async def receive(_: web.Request) -> web.Response:
        return web.Response(text="received")

    app.router.add_post("/v1/traces", receive)
    access = ListenerAccess(str(folder / "web.yaml"))
    url, close = await start(app, Listen("127.0.0.1", 0), access, setting="otlp-traces")
    async with aiohttp.ClientSession(url) as session:
        async with session.post("/v1/traces", data=b"{}") as refused:
            assert refused.status == 401
        auth = {"Authorization": aiohttp.encode_basic_auth("prometheus", PASSWORD)}
        async with session.post("/v1/traces", data=b"{}", headers=auth) as accepted:
            assert await accepted.text() == "received"
    await close()
