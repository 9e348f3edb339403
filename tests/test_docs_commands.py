"""Commands without output in the documentation run as written."""

from __future__ import annotations

import asyncio
import os
import re
import shlex
import signal
import ssl
import subprocess
import sys
import urllib.request
from collections.abc import Callable
from itertools import count
from pathlib import Path
from socket import socket

import pytest
from aiohttp import web

from tests.fake_server import fake_server
from tests.load_reports import write_report
from tests.test_loadtest_client import look_alike
from tokenslo.cli import COMMANDS, main
from tokenslo.commands import gate
from tools.docs.pages import ROOT, every_fence

STARTED = re.compile(r"metrics (https?://127\.0\.0\.1:\d+)/metrics")


def free_port() -> int:
    with socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def documented(name: str) -> list[str]:
    """Return the documented commands of one kind of ``tokenslo``."""
    commands = {command for _, fence in every_fence("sh") for command in fence.commands}
    return sorted(command for command in commands if command.startswith(f"tokenslo {name} "))


def start_and_stop_sidecar(arguments: list[str], folder: Path) -> None:
    """Start the sidecar as written, on free ports of this machine, and stop it."""
    taken = [
        re.sub(r"^proxy=:\d+=", f"proxy=127.0.0.1:{free_port()}=", word)
        .replace("capture=eth0:", "capture=lo:")
        .replace("127.0.0.1:4318", "127.0.0.1:0")
        for word in arguments[1:]
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
        unverified = ssl._create_unverified_context()  # noqa: S323 (a certificate of this test)
        with urllib.request.urlopen(f"{found[1]}/healthz", context=unverified) as answer:  # noqa: S310
            assert answer.status == 200
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=30)
        assert process.returncode == 0
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize("command", documented("exporter"))
def test_sidecars_start_as_written(command: str, tmp_path: Path) -> None:
    if "capture=" in command and os.geteuid():
        pytest.skip("needs CAP_NET_RAW")
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    if "--web-config" in command:
        write_web_config(tmp_path)
    start_and_stop_sidecar(shlex.split(command), tmp_path)


def write_web_config(folder: Path) -> None:
    """Write the documented web configuration file, and the certificate that it names."""
    (page,) = (fence for _, fence in every_fence("yaml") if fence.title == "web.yaml")
    (folder / "web.yaml").write_text(page.body)
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256",
         "-nodes", "-subj", "/CN=localhost", "-keyout", "tls.key", "-out", "tls.crt"],
        cwd=folder, check=True, capture_output=True,
    )  # fmt: skip


def test_the_container_runs_the_documented_sidecar(tmp_path: Path) -> None:
    """Without a container: what follows the image's name are arguments of `tokenslo`."""
    commands = [command for _, fence in every_fence("sh") for command in fence.commands]
    (command,) = (each for each in commands if each.startswith("podman run "))
    image, _, arguments = command.partition(" tokenslo:0.1.0 ")
    assert "--read-only" in image
    start_and_stop_sidecar(["tokenslo", *shlex.split(arguments)], tmp_path)


def exit_code(arguments: list[str]) -> int:
    with pytest.raises(SystemExit) as end:
        main(arguments)
    return int(end.value.code or 0)


VLLM = (ROOT / "tests/captures/vllm_standalone_by_hand.txt").read_text()
EMPTY = {"status": "success", "data": {"resultType": "matrix", "result": []}}
NO_SAMPLES = {"status": "success", "data": {"resultType": "vector", "result": []}}


async def run_against_server(arguments: list[str], folder: Path) -> None:
    """Run a command against a server with the pages that it reads."""
    pages = {"/metrics": VLLM, "/api/v1/query_range": EMPTY, "/version": {"version": "0.33.0"}}
    if arguments[1] == "gate":
        pages["/api/v1/query"] = NO_SAMPLES
    async with fake_server(pages) as server:
        command = [re.sub(r"http://[\w.]+:\d+", server.url, word) for word in arguments[1:]]
        codes = (3,) if arguments[1] == "gate" else (0, 1)  # a gate without data is inconclusive
        assert await asyncio.to_thread(exit_code, command) in codes


def write_capacity(folder: Path) -> None:
    """Write the SLO file and the load report that the page on overloads makes."""
    (page,) = (
        fence
        for path, fence in every_fence("yaml")
        if (path, fence.title) == ("docs/how-to/limit-overload.md", "slo.yaml")
    )
    (folder / "slo.yaml").write_text(page.body)
    (folder / "load-out").mkdir()
    write_report(folder / "load-out/load.json")


@pytest.mark.parametrize(
    "command",
    sorted(
        {
            command
            for _, fence in every_fence("sh")
            for command in fence.commands
            if command.startswith("tokenslo server-config ")
        }
    ),
)
def test_limits_are_printed_as_written(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_capacity(tmp_path)
    assert exit_code(shlex.split(command)[1:]) == 0


SERVED = ("doctor", "init", "backtest", "diagnose", "gate", "lint", "validate")


@pytest.mark.parametrize("command", [each for name in SERVED for each in documented(name)])
async def test_commands_about_servers_run_as_written(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gate, "sleep", lambda _: None)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    if "--capacity" in command:
        write_capacity(tmp_path)
    await run_against_server(shlex.split(command), tmp_path)


EMPTY_STATUS = {"tokenslo": "0.1.0", "layers": [], "sources": [], "objectives": [], "models": []}


@pytest.mark.parametrize("command", documented("top"))
async def test_sidecars_are_watched_as_written(command: str) -> None:
    async with fake_server({"/": EMPTY_STATUS, "/metrics": ""}) as server:
        urls = re.sub(r"http://[\w.-]+:\d+", server.url, command)
        arguments = [*shlex.split(urls)[1:], "--interval", "0.2"]
        assert await asyncio.to_thread(exit_code, arguments) == 0


SHORT = ("--duration", "200ms", "--warm-up", "0s", "--cool-down", "0s")
"""Options that shorten a load test."""
LENIENT = """\
apiVersion: tokenslo/v1
service: chat
selector: {model: tensorrt_llm}
objectives: [{name: first-token, indicator: ttft, threshold: 30s, target: 50%}]
"""
NUMBERS = count(step=1000)


async def other_requests(_: web.Request) -> web.StreamResponse:
    """Respond as a sidecar that records requests of other clients."""
    samples = (
        *("# TYPE tokenslo_build_info gauge", "tokenslo_build_info 1"),
        "# TYPE llm_requests_total counter",
        f'llm_requests_total{{model="tensorrt_llm",outcome="ok"}} {next(NUMBERS)}',
    )
    return web.Response(text="".join(f"{sample}\n" for sample in samples))


@pytest.mark.parametrize(
    "command", [command for command in documented("load") if "--driver" not in command]
)
async def test_load_tests_run_as_written(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "examples/chat").mkdir(parents=True)
    (tmp_path / "examples/chat/slo.yaml").write_text(LENIENT)
    (tmp_path / "slo.yaml").write_text(LENIENT)
    # One level of a few short requests is enough.
    written = re.sub(r"(--concurrency|--rate) [\d,.]+", r"\1 2", command)
    written = written.replace("--search-to 64", "--search-from 8 --search-to 8 --confidence 50%")
    if "--prompt-tokens" not in written:
        written += " --prompt-tokens 8"
    async with look_alike() as server, fake_server({"/metrics": other_requests}) as sidecar:
        arguments = [
            re.sub(r"http://[\w.-]+:\d+", sidecar.url if ":9464" in word else server, word)
            for word in shlex.split(written)[1:]
        ]
        code = await asyncio.to_thread(exit_code, [*arguments, *SHORT, "--output-tokens", "4"])
    assert code in (0, 1)


def is_a_target_of_make(arguments: list[str]) -> bool:
    return f"\n{arguments[1]}:" in (ROOT / "Makefile").read_text()


def is_a_module(arguments: list[str]) -> bool:
    path = ROOT / arguments[2].replace(".", "/")
    return arguments[1] == "-m" and (path.with_suffix(".py").exists() or path.is_dir())


def installs_this_project_or_its_tools(arguments: list[str]) -> bool:
    """Whether pip installs this folder, or packages that its tests use."""
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    return arguments[1] == "install" and all(
        re.fullmatch(r"\.(\[[a-z]+\])?", word) or f'"{word}>=' in project for word in arguments[2:]
    )


def names_files_of_this_folder(arguments: list[str]) -> bool:
    """Whether the named paths in ``deploy/`` exist."""
    return all((ROOT / word).exists() for word in arguments if word.startswith("deploy/"))


OTHERS: dict[str, Callable[[list[str]], bool]] = {
    "make": is_a_target_of_make,
    "python": is_a_module,
    "pip": installs_this_project_or_its_tools,
    "mkdir": lambda arguments: arguments[1] == "-p",
    "tokenslo": lambda arguments: arguments[1] in COMMANDS,
    # Run by tests of their own.
    "amtool": lambda arguments: arguments == ["amtool", "check-config", "alertmanager.yml"],
    "helm": names_files_of_this_folder,
    "kubectl": lambda arguments: arguments[1] in ("apply", "get", "port-forward"),
    "mkdocs": lambda arguments: arguments == ["mkdocs", "build", "--strict"],
    "pip-audit": names_files_of_this_folder,  # needs a network
    "podman": names_files_of_this_folder,
    "promtool": lambda arguments: arguments[1:3] == ["test", "rules"],
    "curl": lambda arguments: any("$PROMETHEUS" in word for word in arguments),
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
