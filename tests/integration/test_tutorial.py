"""The tutorial works as typed: the demo pages, and the runbook's queries have results."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.polling import wait_until
from tools.docs.pages import ROOT, fences

pytestmark = [pytest.mark.needs("triton", "prometheus"), pytest.mark.long]

TUTORIAL = (ROOT / "docs/tutorial.md").read_text(encoding="utf-8")
COMMANDS = [
    command for fence in fences(TUTORIAL) if fence.kind == "sh" for command in fence.commands
]
QUERIES = [command for command in COMMANDS if command.startswith("curl ")]
# The burn alerts read two recorded minutes, and each of them is recorded at its end.
PATIENCE_SECONDS = 240


def shape(line: str) -> str:
    """Return an expression for lines with the same words and other numbers."""
    words = re.sub(r"─+", "─", line).split()
    return r"\s*" + r"\s+".join(_word(word) for word in words) + r"\s*"


def _word(word: str) -> str:
    if re.fullmatch(r"m?s,?|ms,?", word):
        return r"m?s,?"
    return re.sub(r"\d[\d.,]*\d|\d", r"[\\d.,]+", re.escape(word).replace(r"\.", "."))


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[subprocess.Popen[str], Path]]:
    """Run what `make demo` runs."""
    folder = tmp_path_factory.mktemp("tutorial")
    process = subprocess.Popen(
        [sys.executable, "-m", "tokenslo", "demo", "--for", "10m"],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"},
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        yield process, folder
    finally:
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)


def eventually(command: str, prometheus: str) -> list[dict[str, object]]:
    """Run a command of the tutorial until Prometheus has a result for its query."""

    def result() -> list[dict[str, object]]:
        done = subprocess.run(
            ["bash", "-c", command],
            env=os.environ | {"PROMETHEUS": prometheus},
            capture_output=True,
            text=True,
            check=True,
        )
        found: list[dict[str, object]] = json.loads(done.stdout)["data"]["result"]
        return found

    return wait_until(result, PATIENCE_SECONDS, 1)


def test_the_demo_pages_and_its_runbook_explains_the_page(
    demo: tuple[subprocess.Popen[str], Path],
) -> None:
    process, folder = demo
    assert COMMANDS[0] == "make demo FOR=10m"
    assert process.stdout
    addresses = dict(
        re.split(r"\s{2,}", process.stdout.readline().strip(), maxsplit=1) for _ in range(4)
    )
    prometheus = addresses["Prometheus"].rstrip("/")
    firing, *steps = [eventually(command, prometheus) for command in QUERIES]
    (name,) = {one["metric"]["alertname"] for one in firing}  # type: ignore[index]
    home = folder / "demo-out/runbooks/chat"
    playbooks = [home / f"playbooks/{each}.md" for each in ("kv-pressure", "overload")]
    runbook = "".join(
        file.read_text(encoding="utf-8") for file in (home / f"{name}.md", *playbooks)
    )
    assert len(steps) == 3
    for command in QUERIES[1:]:
        query = command.partition("'query=")[2].removesuffix("'")
        assert "".join(query.split()) in "".join(runbook.split()), query
    for finding in ("KV-cache pressure", "More load than capacity"):
        assert finding in TUTORIAL
        assert f"\n# {finding}\n" in runbook

    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=60)
    (excerpt,) = (
        fence.body
        for fence in fences((ROOT / "README.md").read_text(encoding="utf-8"))
        if fence.title == "demo"
    )
    lines = [re.sub(r"─+", "─", line) for line in output.splitlines()]
    absent = [
        line
        for line in excerpt.splitlines()
        if line.strip() and not any(re.fullmatch(shape(line), other) for other in lines)
    ]
    assert [line for line in absent if not line.startswith("alerts firing:")] == []
    assert any(line.startswith("alerts firing: Chat") for line in lines)
