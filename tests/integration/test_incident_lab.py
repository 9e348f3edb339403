"""Incidents on real servers: alerts, diagnosis, and the processes after an interrupt."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from lab.incidents.catalogue import CATALOGUE
from lab.incidents.play import play
from lab.incidents.result import IncidentResult, read_result
from lab.incidents.stage import available_columns
from tests.packet_capture import need_capture
from tests.polling import wait_until

pytestmark = [pytest.mark.long, pytest.mark.needs("triton", "prometheus", "promtool")]

ROOT = Path(__file__).parents[2]
PATIENCE = 120.0


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> IncidentResult:
    need_capture()
    folder = tmp_path_factory.mktemp("stuck-decode")
    return play(CATALOGUE["stuck-decode"], 7, folder / "run")


def test_every_column_pages_in_time_and_finds_the_cause(result: IncidentResult) -> None:
    assert result.columns.keys() == {*available_columns()}
    for column in result.columns.values():
        assert column.missed == ()
        assert column.pages
        assert min(alert.seconds for alert in column.alerts) > 0
        assert column.diagnosis["verdict"] == "likely"
        assert column.diagnosis["causes"][0]["key"] == "stuck_decode"


def test_a_result_survives_json(result: IncidentResult) -> None:
    assert read_result(json.loads(json.dumps(result.json()))) == result


def test_a_run_stays_cheap(result: IncidentResult) -> None:
    assert result.fault_seconds < 75
    assert sum(result.cpu_seconds.values()) < 0.5 * result.wall_seconds


def processes_with(text: str) -> dict[int, str]:
    """Return the command lines of processes that contain a text."""
    found = {}
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            command = path.read_bytes().replace(b"\0", b" ").decode(errors="replace")
            if text in command:
                found[int(path.parent.name)] = command
    return found


@pytest.fixture(params=[signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def interrupted(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """Interrupt a run whose servers have started; return the folder of their files."""
    command = [sys.executable, "-m", "lab.incidents", "healthy", "--one"]
    environment = os.environ | {"TMPDIR": str(tmp_path)}
    with subprocess.Popen(command, cwd=ROOT, env=environment, start_new_session=True) as process:
        try:
            wait_until(lambda: len(processes_with(f"{tmp_path}/")) > 6, PATIENCE)
            os.killpg(process.pid, request.param)
            process.wait(PATIENCE)
        finally:
            process.kill()
    return tmp_path


def test_an_interrupted_run_leaves_no_process(interrupted: Path) -> None:
    wait_until(lambda: not processes_with(f"{interrupted}/"), PATIENCE)


def test_the_demo_plays_an_incident_and_ends_with_its_diagnosis(tmp_path: Path) -> None:
    command = ["demo", "--incident", "stuck-decode", "--seed", "7", "-o", tmp_path]
    done = subprocess.run(
        [sys.executable, "-m", "tokenslo", *command], capture_output=True, text=True, cwd=ROOT
    )
    assert (done.returncode, done.stderr) == (0, "")
    alerts, diagnosis = done.stdout.split("\nAlerts, by seconds after the onset:\n")[1].split(
        "\nChecks:\n"
    )
    assert re.search(r"^ +\d+\.\d  page    .*DecodeStuck$", alerts, re.MULTILINE)
    # The diagnosis is made at the first page, when a cause may not be certain yet.
    assert re.search(r"^Verdict: .*Decoding is stuck", diagnosis, re.MULTILINE)
    assert "\nFirst mitigation: " in diagnosis
    assert processes_with(str(tmp_path)) == {}
