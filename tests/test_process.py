"""Server processes: readiness, shutdown, and the end of their parent."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import pytest

from lab import process, process_supervisor
from lab.process import HOST, ServerError, ServerProcess, get, serve
from tests.polling import wait_until

# Ends with the whole group or not at all: it and its child ignore SIGTERM.
STUBBORN = """
import http.server, os, signal, subprocess, sys
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("child", subprocess.Popen(["sleep", "300"]).pid, flush=True)
http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), http.server.SimpleHTTPRequestHandler
    ).serve_forever()
"""

# Starts a server, prints its process id, and keeps it until it is killed or interrupted.
HOLDER = """
import os, sys, time
from pathlib import Path
sys.path.insert(0, {tests!r})
from test_process import start_pages
with start_pages(Path({folder!r})) as server:
    try:
        print(server.pid, flush=True)
        time.sleep(300)
    except KeyboardInterrupt:
        reached = os.getpgid(server.pid) == os.getpgrp()
        print("dead" if reached or not server.alive else "alive", flush=True)
print("stopped", flush=True)
"""


def pages(ports: Sequence[int]) -> list[str]:
    return [sys.executable, "-m", "http.server", "--bind", HOST, str(ports[0])]


def start_pages(folder: Path) -> ServerProcess:
    return serve(ServerProcess, "pages", pages, folder / "log", ready="/", cwd=folder)


def runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.fixture
def holder(tmp_path: Path) -> subprocess.Popen[str]:
    script = HOLDER.format(tests=str(Path(__file__).parent), folder=str(tmp_path))
    return subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, text=True, start_new_session=True
    )


def test_server_is_ready_inside_its_scope_and_stopped_after(tmp_path: Path) -> None:
    (tmp_path / "page").write_text("here")
    with start_pages(tmp_path) as server:
        assert server.alive
        assert server.exit_code is None
        assert get(server.ports[0], "/page") == (200, "here")
        assert Path(f"/proc/{server.pid}/cmdline").read_text().split("\0")[1:3] == [
            "-m",
            "http.server",
        ]
    assert not server.alive
    assert server.exit_code == 128 + signal.SIGTERM
    assert not runs(server.pid)
    assert '"GET /page HTTP/1.1" 200' in server.log.read_text()


def test_error_in_the_scope_stops_the_server(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt), start_pages(tmp_path) as server:
        raise KeyboardInterrupt
    assert not runs(server.pid)


def test_server_that_exits_is_not_alive_and_can_be_stopped(tmp_path: Path) -> None:
    with start_pages(tmp_path) as server:
        os.kill(server.pid, signal.SIGKILL)
        wait_until(lambda: not server.alive)
        server.stop()
    assert server.exit_code == 128 + signal.SIGKILL


def test_server_that_ignores_sigterm_is_killed_with_its_children(tmp_path: Path) -> None:
    def stubborn(ports: Sequence[int]) -> list[str]:
        return [sys.executable, "-c", STUBBORN, str(ports[0])]

    server = serve(ServerProcess, "stubborn", stubborn, tmp_path / "log", ready="/", grace=0.3)
    child = int(server.log.read_text().split()[1])
    started = time.monotonic()
    server.stop()
    assert time.monotonic() - started >= 0.3
    assert server.exit_code == 128 + signal.SIGKILL
    assert not runs(server.pid)
    wait_until(lambda: not runs(child))


def test_server_ends_when_its_parent_is_killed(holder: subprocess.Popen[str]) -> None:
    assert holder.stdout
    with holder:
        pid = int(holder.stdout.readline())
        assert runs(pid)
        holder.kill()
        holder.wait()
        wait_until(lambda: not runs(pid))


def test_server_ends_when_its_parent_dies_while_it_starts(tmp_path: Path) -> None:
    readable, writable = os.pipe()
    os.close(readable)  # as the pipe of a parent that was killed
    server = [sys.executable, "-c", "import time; time.sleep(300)", str(tmp_path)]
    with os.fdopen(writable, "wb") as stdout:
        subprocess.run(
            [sys.executable, process_supervisor.__file__, "5", *server],
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=subprocess.DEVNULL,
        )
    assert not [path for path in Path("/proc").glob("[0-9]*/cmdline") if has(path, tmp_path)]


def has(cmdline: Path, text: object) -> bool:
    with suppress(OSError):
        return str(text).encode() in cmdline.read_bytes()
    return False


def test_ctrl_c_reaches_only_the_parent(holder: subprocess.Popen[str]) -> None:
    """The terminal interrupts the whole foreground group; servers end when we end them."""
    assert holder.stdout
    with holder:
        pid = int(holder.stdout.readline())
        os.killpg(holder.pid, signal.SIGINT)
        assert holder.communicate(timeout=20)[0] == "alive\nstopped\n"
        assert not runs(pid)


def test_server_that_exits_early_shows_the_end_of_its_log(tmp_path: Path) -> None:
    def broken(_: Sequence[int]) -> list[str]:
        return ["sh", "-c", "seq 100; echo no such model >&2; exit 3"]

    with pytest.raises(ServerError) as caught:
        serve(ServerProcess, "broken", broken, tmp_path / "log", ready="/")
    lines = str(caught.value).splitlines()
    assert lines[0] == "broken ended with exit code 3 before it was ready:"
    assert lines[-2:] == ["  100", "  no such model"]
    assert len(lines) < 20


def test_server_that_is_never_ready_is_stopped(tmp_path: Path) -> None:
    def deaf(_: Sequence[int]) -> list[str]:
        return ["sh", "-c", "echo $$; exec sleep 300"]

    with pytest.raises(ServerError, match=r"deaf was not ready after 0\.3 s:\n  \d+"):
        serve(ServerProcess, "deaf", deaf, tmp_path / "log", ready="/", deadline=0.3)
    assert not runs(int((tmp_path / "log").read_text()))


def test_server_with_a_missing_ready_page_is_not_ready(tmp_path: Path) -> None:
    with pytest.raises(ServerError, match="pages was not ready"):
        serve(ServerProcess, "pages", pages, tmp_path / "log", ready="/no-such-page", deadline=1)


def test_missing_program_is_named(tmp_path: Path) -> None:
    with pytest.raises(ServerError) as caught:
        serve(ServerProcess, "ghost", lambda _: ["/no/such/program"], tmp_path / "log", ready="/")
    assert str(caught.value) == (
        "ghost did not start:\n  /no/such/program: No such file or directory"
    )


def test_port_that_was_taken_is_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also when the other program responds as if it were ready."""
    with start_pages(tmp_path) as thief:
        offers = iter([thief.ports, process.free_ports(1)])
        monkeypatch.setattr(process, "free_ports", lambda _: next(offers))
        with serve(ServerProcess, "late", pages, tmp_path / "late", ready="/") as late:
            assert late.ports != thief.ports
            assert get(late.ports[0], "/")[0] == 200


def test_serve_fails_when_every_port_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.create_server((HOST, 0)) as taken:
        monkeypatch.setattr(process, "free_ports", lambda _: taken.getsockname()[1:2])
        with pytest.raises(ServerError, match=r"ended with exit code 1(.|\n)*already in use"):
            serve(ServerProcess, "pages", pages, tmp_path / "log", ready="/")
