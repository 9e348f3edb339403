"""The catalogue of incidents, and the machinery that plays them, without servers."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from lab.incidents.catalogue import CATALOGUE
from lab.incidents.incident import COLUMNS, Column, Incident
from lab.incidents.stage import service_name, slo_file
from runbooks.checks import CHECKS
from runbooks.playbooks import PLAYBOOKS
from slos.causes import CAUSE_ALERTS
from slos.load import load_file

ALERTS = Path(__file__).parents[1] / "examples/chat/alerts"
INCIDENTS = [pytest.param(each, id=each.key) for each in CATALOGUE.values()]


def alert_names() -> set[str]:
    """Return the names of the example's alerts, and of the lab's own objective."""
    lines = [line for file in ALERTS.glob("*rules.yaml") for line in file.read_text().splitlines()]
    names = {line.split("alert: ")[1] for line in lines if "- alert: " in line}
    return {name.removeprefix("Chat") for name in names} | {"DisconnectsErrorBudgetBurn"}


@pytest.mark.parametrize("incident", INCIDENTS)
def test_an_incident_has_its_expectations(incident: Incident) -> None:
    assert {each.name for each in incident.alerts} <= alert_names()
    assert incident.confusions.keys() <= alert_names()
    assert all(incident.confusions.values())
    assert {key for keys in incident.diagnosis.values() for key in keys} <= PLAYBOOKS.keys()
    assert {*incident.symptoms} <= CHECKS.keys()
    assert bool(incident.alerts) == bool(incident.symptoms) == incident.harmful
    assert (incident.diagnosis.keys() == {*COLUMNS}) == incident.harmful


@pytest.mark.parametrize("incident", INCIDENTS)
def test_a_seed_draws_one_script_that_ends_in_two_minutes(incident: Incident) -> None:
    scripts = [incident.script(random.Random(f"{seed}")) for seed in (1, 1, 2, 3)]
    assert scripts[0].parameters == scripts[1].parameters
    assert len({str(script.parameters) for script in scripts}) > 1
    for script in scripts:
        assert script.healthy_seconds >= 30
        assert script.healthy_seconds + script.fault_seconds <= 110
        assert all(0 <= step.at < script.fault_seconds for step in script.steps)
        assert all(each.seconds <= script.fault_seconds for each in incident.alerts)


def test_every_cause_alert_is_expected_in_an_incident() -> None:
    expected = {each.name for incident in CATALOGUE.values() for each in incident.alerts}
    needs_a_gpu = {"GpuMemoryNearFull"}
    assert {each.name for each in CAUSE_ALERTS} - expected == needs_a_gpu


def test_services_are_distinct() -> None:
    assert len({service_name(column) for column in COLUMNS}) == len(COLUMNS)


@pytest.mark.parametrize("column", COLUMNS)
def test_the_slo_file_of_a_column_is_valid(column: Column, tmp_path: Path) -> None:
    script = CATALOGUE["healthy"].script(random.Random(1))
    [service] = load_file(slo_file(script, tmp_path, column)).services
    assert service.service == service_name(column)
