"""Settings that playbooks name: accepted by the real nginx, HAProxy, Triton and sidecar."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path

import click
import pytest

from lab import toolchain
from runbooks.playbooks import PLAYBOOKS
from tokenslo.cli import COMMANDS, cli

Part = Callable[[str], Path]

NGINX = """\
events {{}}
http {{
    access_log off;
    client_body_temp_path {folder}; proxy_temp_path {folder}; fastcgi_temp_path {folder};
    uwsgi_temp_path {folder}; scgi_temp_path {folder};
    {maps}
    upstream servers {{ server 127.0.0.1:1 {parameters}; }}
    server {{ listen 127.0.0.1:1; location / {{ proxy_pass http://127.0.0.1:1; {directives} }} }}
}}
"""
HAPROXY = """\
defaults
    mode http
    timeout connect 5s
    timeout client 60s
    timeout server 60s
listen gateway
    bind 127.0.0.1:1
    server server 127.0.0.1:1 check {parameters}
"""
UNKNOWN_KEYWORD = r"unknown keyword|\(got "
PRODUCTS = "(?:Envoy|HAProxy|NGINX|Istio|in )"
NGINX_SERVER = {"max_conns": "max_conns=1"}
HAPROXY_SERVER = {"slowstart": "slowstart 10s"}
"""Parameters of a server, with a value."""
OTHER_SERVERS = {
    "--enable-kserve-frontends",  # Triton's OpenAI front end
    "--shutdown-timeout",  # vLLM
    "--config",  # trtllm-serve
    "--chat_template",
    "--enable_chunked_prefill",
    "--extra_llm_api_options",
    "--kv_cache_free_gpu_memory_fraction",
    "--max_batch_size",
    "--max_num_tokens",
    "--num_postprocess_workers",
    "--tokenizer",
}
OTHER_PROGRAMS = "kubectl|nvidia-smi|py-spy"


def texts(value: object) -> Iterator[str]:
    match value:
        case str():
            yield value
        case dict():
            for each in value.values():
                yield from texts(each)
        case tuple() | list():
            for each in value:
                yield from texts(each)


def spans() -> Iterator[str]:
    """Yield every code span of the playbooks."""
    for playbook in PLAYBOOKS.values():
        for text in texts(asdict(playbook)):
            yield from re.findall(r"`([^`\n]+)`", text)


def settings(program: str) -> list[str]:
    """Return the code spans of a program's settings: `NAME: …` or `NAME …, OTHER …`."""
    parts = (
        part
        for playbook in PLAYBOOKS.values()
        for action in playbook.actions
        for line in action.setting.splitlines()
        for part in re.findall(rf"^{program}: .*|\b{program} .*?(?=, {PRODUCTS}|;|$)", line)
    )
    return list(dict.fromkeys(span for part in parts for span in re.findall("`([^`]+)`", part)))


def run(*command: str | Path) -> str:
    env = toolchain.environment(Path(command[0]))
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=env)
    return done.stdout + done.stderr


def test_nginx_has_the_directives_of_playbooks(part: Part, tmp_path: Path):
    program, config = part("nginx"), tmp_path / "nginx.conf"

    def check(directives: str, maps: str = "") -> str:
        parts = {
            "directives": directives,
            "maps": maps,
            "parameters": " ".join(NGINX_SERVER.values()),
        }
        config.write_text(NGINX.format(folder=tmp_path, **parts))
        return run(program, "-t", "-e", "stderr", "-p", tmp_path, "-c", config)

    found = settings("NGINX")
    maps = "".join(span for span in found if span.startswith("map "))
    assert NGINX_SERVER.keys() <= set(found)
    directives = [
        span
        for span in found
        if re.match(r"[a-z]+_[a-z_]+( |$)", span) and span not in NGINX_SERVER
    ]
    assert maps
    assert len(directives) > 5
    for directive in directives:
        message = check(f"{directive};", maps)
        # A name alone lacks its value.
        assert "test is successful" in message or " " not in directive, message
        assert "unknown directive" not in message
    assert "unknown directive" in check("proxy_idle_timeout;")


def test_haproxy_has_the_keywords_of_playbooks(part: Part, tmp_path: Path):
    program, config = part("haproxy"), tmp_path / "haproxy.cfg"

    def is_known(keyword: str) -> bool:
        parameters = " ".join(HAPROXY_SERVER.values())
        config.write_text(f"{HAPROXY.format(parameters=parameters)}    {keyword}\n")
        return not re.search(UNKNOWN_KEYWORD, run(program, "-c", "-f", config))

    found = settings("HAProxy")
    assert HAPROXY_SERVER.keys() <= set(found)
    for keyword in found:
        assert keyword in HAPROXY_SERVER or is_known(keyword), keyword
    assert not is_known("timeout idle")


@pytest.mark.needs("triton")
def test_options_in_playbooks_exist(part: Part):
    server = part("triton") / "pytriton/tritonserver/bin/tritonserver"
    options = set(re.findall(r"--[a-z][\w-]+", run(server, "--help")))
    for name in COMMANDS:
        command = cli.get_command(click.Context(cli), name)
        assert command
        options |= {option for parameter in command.params for option in parameter.opts}
    named = {
        option
        for span in spans()
        if not re.match(OTHER_PROGRAMS, span)
        for option in re.findall(r"(?<!\S)--[a-z][\w-]+", span)
    }
    assert "--metrics-port" in options
    assert len(named) > 10
    assert named <= options | OTHER_SERVERS
