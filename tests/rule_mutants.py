"""Judge which mutants of the generated rules the generated tests kill.

    python -m tests.rule_mutants [TEXT]

judges every mutant whose name contains the text, prints those that survive with the reason, and
exits 1 if another one survives, or less than 91 % of all are killed.  A mutant is judged with the
rules and tests of the objectives that it reads, or with those of causes.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from subprocess import run

import alerts
from lab import toolchain
from slos.load import load_file
from slos.model import Service
from slos.plan import plan
from tests import libyaml
from tests.rule_mutant_table import Mutant, Rule, mutants

LEAST_KILLED = 0.91
CHAT = Path(__file__).parent.parent / "examples" / "chat" / "slo.yaml"
SHOP = """\
apiVersion: tokenslo/v1
service: shop
selector: {model: llama}
window: 28d
budget_policy: [{when: 50%, do: Slow down.}]
objectives:
  - {name: answers, indicator: availability, target: 99%, group_by: [version]}
  - name: minutes
    indicator: ttft
    threshold: 800ms
    target: 99.9%
    time_slices: {window: 1m, target: 95%}
  - name: checkout
    indicator: {bad: 'http_errors_total{job="shop"}', total: 'http_requests_total{job="shop"}'}
    target: 99%
"""


def edited(mutant: Mutant) -> tuple[Rule, Rule | None]:
    """Return the rule of a mutant as it is generated, and with the fault."""
    service, objective = _concerned(mutant)
    rules = _rules(service, (objective,))[mutant.group]
    (rule,) = (each for each in rules if _is(each, mutant.rule))
    return rule, mutant.edit(rule)


def mutated(mutant: Mutant) -> dict[str, str]:
    """Return the generated files of the objectives that a mutant reads, with its rule in them."""
    service, objective = _concerned(mutant)
    rule, changed = edited(mutant)
    read = tuple(
        each.name
        for each in _services()[service].objectives
        if objective and (each.name == objective or f'slo="{each.name}"' in str(changed))
    )
    groups = [
        {"name": name, "interval": "1m", "rules": [*_replaced(rules, rule, changed)]}
        for name, rules in _rules(service, read).items()
    ]
    text = json.dumps({"groups": groups})  # which is YAML
    return {**generated(service, read), _file(service, read): text}


def _concerned(mutant: Mutant) -> tuple[str, str]:
    """Return the service and the objective of a group; signals have any, causes none."""
    service, _, objective = mutant.group.partition("/")
    return service, {"signals": "availability", "causes": ""}.get(objective, objective)


def _file(service: str, objectives: tuple[str, ...]) -> str:
    """Return the name of the rule file of objectives, or of causes if there are none."""
    return f"{service}.rules.yaml" if any(objectives) else f"{service}.causes.rules.yaml"


def _replaced(rules: Sequence[Rule], rule: Rule, changed: Rule | None) -> Iterator[Rule]:
    for each in rules:
        if each != rule:
            yield each
        elif changed is not None:
            yield changed


@cache
def _rules(service: str, objectives: tuple[str, ...]) -> dict[str, Sequence[Rule]]:
    """Return the rules of each group."""
    text = generated(service, objectives)[_file(service, objectives)]
    groups = libyaml.load(text)["groups"]
    assert {group["interval"] for group in groups} == {"1m"}
    return {group["name"]: group["rules"] for group in groups}


def _is(rule: Rule, name: str) -> bool:
    name, _, value = name.partition(" ")
    if "record" in rule:
        return bool(rule["record"] == name)
    return rule["alert"].endswith(name) and (not value or value in rule["labels"].values())


@cache
def _services() -> dict[str, Service]:
    with tempfile.TemporaryDirectory() as folder:
        shop = Path(folder) / "slo.yaml"
        shop.write_text(SHOP)
        loaded = [service for path in (CHAT, shop) for service in load_file(path).services]
    return {service.service: service for service in loaded}


@cache
def generated(service: str, objectives: tuple[str, ...]) -> dict[str, str]:
    """Return the generated files of some objectives of a service, or of causes if none is given."""
    whole, of_causes = _services()[service], not any(objectives)
    chosen = tuple(each for each in whole.objectives if of_causes or each.name in objectives)
    service_plan = plan(replace(whole, objectives=chosen))
    files = alerts.files(service_plan, source="slo.yaml", version="0.1.0")
    return {
        Path(path).name: text for path, text in files.items() if (".causes." in path) == of_causes
    }


def is_killed(promtool: str, mutant: Mutant) -> bool:
    """Whether the generated tests fail on a mutant."""
    with tempfile.TemporaryDirectory() as folder:
        return bool(failure(promtool, mutated(mutant), Path(folder)))


def failure(promtool: str, files: Mapping[str, str], folder: Path) -> str:
    """Return promtool's output on the first of generated tests that fail, empty if all pass."""
    for name, text in files.items():
        (folder / name).write_text(text)
    for name in sorted((name for name in files if name.endswith(".test.yaml")), reverse=True):
        done = run([promtool, "test", "rules", name], cwd=folder, capture_output=True, check=False)
        if done.returncode:
            output = (done.stdout + done.stderr).decode()
            assert "FAILED" in output
            assert "parse error" not in output, output
            return output
    return ""


def main(text: str = "") -> int:
    """Judge mutants and print those that survive."""
    promtool = str(toolchain.program("promtool", lambda line: print(line, file=sys.stderr)))
    judged = [each for each in mutants() if text in each.name]
    killed, unexpected = 0, 0
    for mutant in judged:
        if is_killed(promtool, mutant):
            killed += 1
            unexpected += bool(mutant.survives)
        else:
            unexpected += not mutant.survives
            print(f"survives: {mutant.name} ({mutant.survives or 'unexpected'})", flush=True)
    share = killed / max(len(judged), 1)
    print(f"{killed} of {len(judged)} killed ({share:.1%}), {unexpected} not as expected")
    return int(share < LEAST_KILLED or unexpected > 0)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
