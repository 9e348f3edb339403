"""TLS clients of the proxy: bounded handshakes, and certificates that are renewed."""

from __future__ import annotations

import asyncio
import shutil
import ssl
import subprocess
from contextlib import suppress
from pathlib import Path

import pytest

from exporter.taps.proxy import proxy_tap
from exporter.taps.proxy.connection import MAX_REFUSED_CLIENTS
from exporter.taps.proxy.context import ProxyLimits
from exporter.taps.proxy.tls import Certificate, Verification
from tests.polling import until
from tests.proxy_setup import (
    ANSWER,
    LONG,
    REQUEST,
    ProxySetup,
    on_loop,
    proxied,
    receive,
    receive_all,
)


@pytest.fixture(autouse=True)
def quick_ticks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proxy_tap, "TICK_SECONDS", 0.05)


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with three self-signed certificates for ``x`` and their keys."""
    folder = tmp_path_factory.mktemp("pairs")
    for name in ("old", "new", "other"):
        subprocess.run(
            ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256",
             "-nodes", "-days", "2", "-subj", f"/CN={name}", "-addext", "subjectAltName=DNS:x",
             "-keyout", f"{name}.key", "-out", f"{name}.pem"],
            cwd=folder, check=True, capture_output=True, timeout=60,
        )  # fmt: skip
    return folder


@pytest.fixture
def certificate(pairs: Path, tmp_path: Path) -> Certificate:
    for suffix in ("pem", "key"):
        shutil.copy(pairs / f"old.{suffix}", tmp_path / f"tls.{suffix}")
    return Certificate(str(tmp_path / "tls.pem"), str(tmp_path / "tls.key"))


def remove(file: Path) -> None:
    file.unlink()


def link(file: Path, target: Path) -> None:
    """Replace a file by a link, as Kubernetes renews secrets."""
    file.unlink(missing_ok=True)
    file.symlink_to(target)


async def shown(port: int) -> bytes:
    """Return the certificate that a client receives."""
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
    found = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
    writer.transport.abort()
    assert isinstance(found, bytes)
    return found


def der(file: Path) -> bytes:
    return ssl.PEM_cert_to_DER_cert(file.read_text())


@on_loop()
async def test_handshakes_count_among_connections(certificate: Certificate) -> None:
    limits = ProxyLimits(connections=3, head_seconds=LONG)
    async with proxied(certificate=certificate, limits=limits) as scene:
        for _ in range(limits.connections + MAX_REFUSED_CLIENTS):
            await scene.client()
        for _ in range(5):
            with suppress(ConnectionResetError):  # at once, or a little later
                assert await receive_all(await scene.client()) == (b"", "reset")
        assert scene.refused() == {"connections": 5}


@on_loop()
async def test_handshakes_that_time_out_make_room(certificate: Certificate) -> None:
    limits = ProxyLimits(connections=3, head_seconds=0.5)
    async with proxied(certificate=certificate, limits=limits) as scene:
        silent = [await scene.client() for _ in range(limits.connections + MAX_REFUSED_CLIENTS)]
        for each in silent:
            await receive_all(each)
        await until(lambda: scene.refused().get("handshake_time") == len(silent))

        async def is_served() -> bool:
            with suppress(OSError):  # a busy machine may need longer than the time-out
                return bool(await shown(scene.tap.port))
            return False

        await until(is_served)


@on_loop()
async def test_a_handshake_that_fails_is_counted(certificate: Certificate) -> None:
    async with proxied(certificate=certificate) as scene:
        for _ in range(2):
            (await scene.client()).close()  # as a TCP health check does: that is no failure
            await receive_all(await scene.client(b"GET / HTTP/1.1\r\n\r\n"))
        await until(lambda: scene.refused() == {"handshake": 2})


@on_loop()
async def test_closing_cancels_handshakes(certificate: Certificate) -> None:
    async with proxied(certificate=certificate) as scene:
        silent = await scene.client()
        await shown(scene.tap.port)  # accepted later, so the silent client is in its handshake
        await scene.tap.close()
        await receive_all(silent)


@on_loop()
async def test_renewed_certificates_are_loaded_and_broken_ones_are_not(
    certificate: Certificate, pairs: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "tokenslo")
    chain, key = Path(certificate.chain), Path(certificate.key)
    async with proxied(certificate=certificate) as scene:
        port = scene.tap.port
        assert await shown(port) == der(pairs / "old.pem")

        shutil.copy(pairs / "new.pem", chain)
        await until(lambda: "KEY_VALUES_MISMATCH" in caplog.text)
        assert await shown(port) == der(pairs / "old.pem")
        assert "the previous files stay in use" in caplog.text

        shutil.copy(pairs / "new.key", key)
        await until(lambda: "files were reloaded" in caplog.text)
        assert await shown(port) == der(pairs / "new.pem")

        remove(chain)
        await until(lambda: "No such file" in caplog.text)
        assert await shown(port) == der(pairs / "new.pem")
        link(chain, pairs / "other.pem")
        link(key, pairs / "other.key")
        await until(lambda: caplog.text.count("files were reloaded") == 2)
        assert await shown(port) == der(pairs / "other.pem")
    problems = [r for r in caplog.records if r.levelname == "WARNING" and r.name == "tokenslo"]
    assert len(problems) == 2


@on_loop()
async def test_open_connections_survive_a_renewal(
    certificate: Certificate, pairs: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "tokenslo")
    async with proxied(certificate=certificate) as scene:
        context = ssl.create_default_context(cafile=certificate.chain)
        reader, writer = await asyncio.open_connection(
            "127.0.0.1", scene.tap.port, ssl=context, server_hostname="x"
        )
        writer.write(REQUEST)
        server = await scene.accept()
        assert await receive(server, len(REQUEST)) == REQUEST
        for suffix in ("key", "pem"):
            shutil.copy(pairs / f"new.{suffix}", Path(certificate.chain).with_suffix(f".{suffix}"))
        await until(lambda: "files were reloaded" in caplog.text)
        await asyncio.get_running_loop().sock_sendall(server, ANSWER)
        assert await reader.readexactly(len(ANSWER)) == ANSWER
        writer.transport.abort()


@on_loop()
async def test_renewed_ca_is_loaded(
    certificate: Certificate, pairs: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "tokenslo")
    ca = tmp_path / "ca.pem"
    shutil.copy(pairs / "other.pem", ca)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate.chain, certificate.key)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError, asyncio.IncompleteReadError):
            await reader.readuntil(b"{}")
            writer.write(ANSWER)
            await reader.read()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context)
    port = server.sockets[0].getsockname()[1]
    async with proxied(port=port, verification=Verification(str(ca), "x")) as scene:
        assert (await _answer(scene)).startswith(b"HTTP/1.1 502 ")
        shutil.copy(certificate.chain, ca)
        await until(lambda: "files were reloaded" in caplog.text)
        assert await _answer(scene) == ANSWER
    server.close()
    await server.wait_closed()


async def _answer(scene: ProxySetup) -> bytes:
    client = await scene.client(REQUEST)
    found = await receive(client, len(ANSWER))
    client.close()
    return found
