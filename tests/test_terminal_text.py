"""Names and messages from servers never reach a terminal as control characters."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from exporter.web.collector import expose
from exporter.web.status_json import status_json
from slos.terminal_text import terminal_text
from tests.test_prometheus_client import ReceivedRequest, Reply, Server, serving
from tests.test_server import status
from tests.views import busy
from tokenslo.cli import main

EVIL = "\x1b]0;owned\x07\x1b[31m\x9b2J\u202ellama"


@pytest.fixture
def server() -> Iterator[Server]:
    with serving() as one:
        yield one


def hostile_sidecar(sent: ReceivedRequest) -> Reply:
    """Answer as a sidecar that an attacker controls: a model has a hostile name."""
    if sent.target.endswith("/metrics"):
        body = expose(busy(), "1.2.3", "", compress=False).body.decode()
        return 200, {}, body.replace('model="llama"', f'model="{EVIL}"').encode()
    page = json.loads(status_json(status(busy())).replace('"llama"', json.dumps(EVIL)))
    for source in page["sources"]:
        source["error"] = EVIL
    page["layers"].append({"layer": "server", "name": EVIL, "ready": False, "reason": EVIL})
    return 200, {}, json.dumps(page).encode()


def hostile_prometheus(_: ReceivedRequest) -> Reply:
    return 422, {}, json.dumps({"status": "error", "error": EVIL}).encode()


@pytest.mark.parametrize(
    "arguments",
    [
        ("top", "--once", "--interval", "0.2", "URL"),
        ("doctor", "URL"),
        ("doctor", "--slo", "examples/chat/slo.yaml", "URL"),
        ("init", "URL"),
        ("diagnose", "--prometheus", "URL"),
        ("diagnose", "--prometheus", "URL", "--slo", "examples/chat/slo.yaml", "--sidecar", "URL"),
        ("backtest", "examples/chat/slo.yaml", "--prometheus", "URL"),
        ("report", "--days", "1", "--gpu-hour-price", "1", "--prometheus", "URL"),
        ("lint", "examples/chat", "--metrics", "URL/metrics"),
    ],
)
def test_no_output_of_a_command_controls_the_terminal(
    arguments: tuple[str, ...], server: Server, capsys: pytest.CaptureFixture[str]
) -> None:
    prometheus = "--prometheus" in arguments
    server.reply = hostile_prometheus if prometheus else hostile_sidecar
    with pytest.raises(SystemExit):
        main([each.replace("URL", server.url) for each in arguments])
    printed = capsys.readouterr()
    text = printed.out + printed.err
    assert text
    assert server.requests
    assert terminal_text(text) == text


def test_control_and_bidirectional_characters_are_replaced_one_by_one() -> None:
    assert terminal_text(EVIL) == "�]0;owned��[31m�2J�llama"
    assert terminal_text("two\nlines of ü and ▇\n") == "two\nlines of ü and ▇\n"


@pytest.mark.parametrize(
    "body", [b"", b"[]", b"{}", b'{"tokenslo": "1"}', b'{"tokenslo": "1", "layers": [1]}', b"\xff"]
)
def test_a_page_that_is_no_sidecars_is_an_error(
    body: bytes, server: Server, capsys: pytest.CaptureFixture[str]
) -> None:
    server.reply = lambda _: (200, {}, body)
    for arguments in (("top", "--once", "--interval", "0.2"), ("doctor",)):
        with pytest.raises(SystemExit) as ended:
            main([*arguments, server.url])
        printed = capsys.readouterr()
        assert arguments == ("doctor",) or ended.value.code == 2
        assert "Traceback" not in printed.out + printed.err
