"""The generated files in the hands of the tools that will read them, old releases and new."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from dataclasses import replace
from decimal import Decimal
from pathlib import Path

import pytest
from service_example import example, objective

import alerts
from alerts.formats import RELEASES, Options
from slos.model import Alerting, Overrides, PolicyStep, Tier
from tests import libyaml

PART_OF_RELEASE = {
    "2.42": "promtool@bookworm",
    "2.53": "promtool@trixie",
    "3": "promtool@forky",
}
PLAN = example(
    objective("availability"), objective("ttft", "0.95"), objective("kv_headroom", "0.9")
)
SMALL = example(objective("availability"), alerting=Alerting(disable=frozenset({"causes"})))
STEPS = (PolicyStep(Decimal(1), "stop"),)
Install = Callable[[str], Path]


def write(folder: Path, options: Options | None = None, plan: object = PLAN) -> Path:
    """Write the files of a plan into a folder."""
    made = alerts.files(plan, source="slo.yaml", version="0.1.0", options=options or Options())
    for path, text in made.items():
        (folder / Path(path).name).write_text(text)
    return folder


def run(program: Path, *arguments: object, cwd: Path) -> str:
    """Return what a tool says, which must be content."""
    command = [program, *map(str, arguments)]
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


NEWER = [
    pytest.param(oldest, release, marks=pytest.mark.long if "2.53" in (oldest, release) else ())
    for index, oldest in enumerate(RELEASES)
    for release in RELEASES[index:]
    if release == oldest or oldest == "2.42"
]


@pytest.mark.parametrize(("oldest", "release"), NEWER)
def test_rules_pass_their_tests_on_every_release_they_are_for(
    part: Install, tmp_path: Path, oldest: str, release: str
) -> None:
    promtool = part(PART_OF_RELEASE[release])
    version = run(promtool, "--version", cwd=tmp_path)
    assert version.startswith(f"promtool, version {release}.")
    # Newer releases read the same formats, so a part of the scenarios is enough there.
    plan = PLAN if release == oldest else SMALL
    folder = write(tmp_path, Options(min_prometheus=oldest), plan)
    run(promtool, "check", "rules", "chat.rules.yaml", cwd=folder)
    run(promtool, "test", "rules", "chat.test.yaml", cwd=folder)


def test_rules_for_release_3_are_refused_by_earlier_releases(part: Install, tmp_path: Path) -> None:
    folder = write(tmp_path, Options(min_prometheus="3"))
    command = [part("promtool@trixie"), "check", "rules", "chat.rules.yaml"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert "labels" in done.stderr


def test_vmalert_accepts_the_rules(part: Install, tmp_path: Path) -> None:
    vmalert = part("vmalert")
    for folder, options in (("plain", Options()), ("lifted", Options(min_prometheus="3"))):
        (tmp_path / folder).mkdir()
        write(tmp_path / folder, options, example(policy=STEPS))
    rules = tmp_path / "plain/chat.rules.yaml"
    run(vmalert, f"-rule={tmp_path}/*/chat.rules.yaml", "-dryRun", cwd=tmp_path)
    rules.write_text(rules.read_text().replace("sum(", "sun(", 1))
    refused = subprocess.run([vmalert, f"-rule={rules}", "-dryRun"], capture_output=True)
    assert refused.returncode != 0


@pytest.fixture
def alertmanager_yml(tmp_path: Path) -> Path:
    """Put both fragments into an Alertmanager's configuration, as their first lines say."""
    alerting = Alerting(page=Tier({"severity": "critical"}), ticket=Tier({"severity": "warning"}))
    # What others call a page is a ticket here; and text that needs quoting.
    own = Overrides(page=Tier({"severity": 'p1 "é" \\'}), ticket=Tier({"severity": "critical"}))
    special = replace(objective("ttft"), alerting=own)
    plan = example(objective("availability"), special, alerting=alerting, policy=STEPS)
    write(tmp_path, plan=plan)
    routes, inhibited = (
        libyaml.load((tmp_path / f"chat.{name}.yaml").read_text()) for name in ("route", "inhibit")
    )
    file = tmp_path / "alertmanager.yml"
    receivers = ("everybody", "chat-page", "chat-ticket")
    configuration = {
        "route": {"receiver": "everybody", **routes},
        "receivers": [{"name": name} for name in receivers],
        **inhibited,
    }
    file.write_text(libyaml.dump(configuration))
    return file


def test_alertmanager_accepts_routes_and_inhibition(amtool: Path, alertmanager_yml: Path) -> None:
    output = run(amtool, "check-config", alertmanager_yml, cwd=alertmanager_yml.parent)
    inhibitions = libyaml.load(alertmanager_yml.read_text())["inhibit_rules"]
    assert f"{len(inhibitions)} inhibit rules" in output
    assert "3 receivers" in output


def alerts_of(folder: Path) -> list[dict[str, str]]:
    """Return the labels of every alert in a rule file, in file order."""
    groups = libyaml.load((folder / "chat.rules.yaml").read_text())["groups"]
    return [
        {"alertname": rule["alert"], **rule["labels"]}
        for group in groups
        for rule in group["rules"]
        if "alert" in rule and "slo" in rule["labels"]
    ]


def test_pages_and_tickets_have_different_receivers(amtool: Path, alertmanager_yml: Path) -> None:
    folder = alertmanager_yml.parent
    reported: dict[tuple[str, str], set[str]] = {}
    # Where an alert goes depends on no more than this.
    labels_ = ("service", "slo", "severity")
    for alert in {tuple(each[name] for name in labels_) for each in alerts_of(folder)}:
        words = [f"{name}={json.dumps(value)}" for name, value in zip(labels_, alert, strict=True)]
        flags = ("config", "routes", "test", f"--config.file={alertmanager_yml}")
        receiver = run(amtool, *flags, *words, cwd=folder).strip()
        reported.setdefault((alert[1], receiver), set()).add(alert[2])
    assert reported == {
        ("availability", "chat-page"): {"critical"},
        ("availability", "chat-ticket"): {"warning"},
        ("ttft", "chat-page"): {'p1 "é" \\'},
        ("ttft", "chat-ticket"): {"critical"},
    }


def test_other_alerts_keep_their_receivers(amtool: Path, alertmanager_yml: Path) -> None:
    flags = ("config", "routes", "test", f"--config.file={alertmanager_yml}")
    for labels in (("alertname=Other", "severity=critical"), ("service=shop", "slo=x")):
        output = run(amtool, *flags, *labels, cwd=alertmanager_yml.parent)
        assert output.strip() == "everybody"
