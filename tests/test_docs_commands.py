"""The commands without output in the documentation run as written."""

from __future__ import annotations

import asyncio
import os
import re
import shlex
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Callable
from pathlib import Path
from socket import socket

import pytest

from tests.fake_server import fake_server
from tokenslo.cli import COMMANDS, main
from tools.docs.pages import ROOT, every_fence

STARTED = re.compile(r"metrics (http://127\.0\.0\.1:\d+)/metrics")


def free_port() -> int:
    with socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def starts_a_sidecar(words: list[str], folder: Path) -> None:
    """Start the sidecar as written, but for ports of this machine; it serves, and ends."""
    taken = [
        re.sub(r"^proxy=:\d+=", f"proxy=127.0.0.1:{free_port()}=", word)
        .replace("capture=eth0:", "capture=lo:")
        .replace("127.0.0.1:4318", "127.0.0.1:0")
        for word in words[1:]
    ]
    process = subprocess.Popen(
        [sys.executable, "-m", "tokenslo", *taken, "--listen", "127.0.0.1:0"],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        assert process.stdout
        lines: list[str] = []
        for line in process.stdout:
            lines.append(line)
            if found := STARTED.search(line):
                break
        else:
            pytest.fail("".join(lines))
        with urllib.request.urlopen(f"{found[1]}/healthz") as answer:  # noqa: S310 (our own)
            assert answer.status == 200
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=30)
        assert process.returncode == 0
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize(
    "command",
    sorted(
        {
            command
            for _, fence in every_fence("sh")
            for command in fence.commands
            if command.startswith("tokenslo exporter")
        }
    ),
)
def test_sidecars_start_as_written(command: str, tmp_path: Path) -> None:
    if "capture=" in command and os.geteuid():
        pytest.skip("needs CAP_NET_RAW")
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    starts_a_sidecar(shlex.split(command), tmp_path)


def exit_code(arguments: list[str]) -> int:
    with pytest.raises(SystemExit) as end:
        main(arguments)
    return int(end.value.code or 0)


VLLM = (ROOT / "tests/captures/vllm_standalone_by_hand.txt").read_text()
EMPTY = {"status": "success", "data": {"resultType": "matrix", "result": []}}


async def asks_a_server(words: list[str], folder: Path) -> None:
    """Run it against a server that has what the command reads."""
    said = {"/metrics": VLLM, "/api/v1/query_range": EMPTY, "/version": {"version": "0.33.0"}}
    async with fake_server(said) as server:
        command = [re.sub(r"http://[\w.]+:\d+", server.url, word) for word in words[1:]]
        assert await asyncio.to_thread(exit_code, command) in (0, 1)


SERVED = ("doctor", "init", "backtest", "lint", "validate")


@pytest.mark.parametrize(
    "command",
    sorted(
        {
            command
            for _, fence in every_fence("sh")
            for command in fence.commands
            if command.startswith("tokenslo ") and command.split()[1] in SERVED
        }
    ),
)
async def test_commands_about_servers_run_as_written(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    await asks_a_server(shlex.split(command), tmp_path)


def is_a_target_of_make(words: list[str]) -> bool:
    return f"\n{words[1]}:" in (ROOT / "Makefile").read_text()


def is_a_module(words: list[str]) -> bool:
    path = ROOT / words[2].replace(".", "/")
    return words[1] == "-m" and (path.with_suffix(".py").exists() or path.is_dir())


def installs_this_project(words: list[str]) -> bool:
    return words == ["pip", "install", "."] and (ROOT / "pyproject.toml").exists()


OTHERS: dict[str, Callable[[list[str]], bool]] = {
    "make": is_a_target_of_make,
    "python": is_a_module,
    "pip": installs_this_project,
    "tokenslo": lambda words: words[1] in COMMANDS,
    # Run by tests of their own.
    "amtool": lambda words: words == ["amtool", "check-config", "alertmanager.yml"],
    "promtool": lambda words: words[1:3] == ["test", "rules"],
    "curl": lambda words: any("$PROMETHEUS" in word for word in words),
}


def test_every_other_command_exists() -> None:
    unknown = [
        f"{page}:{fence.line}: {command}"
        for page, fence in every_fence("sh")
        for command in fence.commands
        if not OTHERS.get(shlex.split(command)[0], lambda _: False)(shlex.split(command))
    ]
    assert unknown == []


def test_the_alertmanager_configuration_is_valid(amtool: Path, tmp_path: Path) -> None:
    (config,) = (fence for _, fence in every_fence("yaml") if fence.title == "alertmanager.yml")
    file = tmp_path / config.title
    file.write_text(config.body)
    done = subprocess.run([amtool, "check-config", file], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
