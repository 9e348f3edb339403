"""Files of a rollout's controllers: Argo Rollouts and Flagger."""

from __future__ import annotations

from gates import argo, flagger, recording_rules
from gates.criteria import RolloutGate, gate_of
from slos.generated_yaml import document
from slos.plan import Plan
from slos.yaml_text import Commented

FOLDER = "rollouts"


def files(plan: Plan, *, source: str, version: str) -> dict[str, str]:
    """Return the objects of the controllers: text by path; empty without a rollout."""
    gate = _gate(plan)
    if gate is None:
        return {}
    about = {"source": source, "version": version}
    service = plan.service.service
    made = {"argo": document(argo.ABOUT.format(service), argo.analysis_template(gate), **about)}
    if gate.rollout.prometheus:  # Flagger has no default
        made["flagger"] = "---\n".join(
            document(f"MetricTemplate {name} of Flagger.", body, **about)
            for name, body in flagger.metric_templates(gate).items()
        )
        canary = document(flagger.ABOUT.format(service), flagger.canary(gate), **about)
        made["flagger-canary"] = canary
    return {f"{FOLDER}/{service}.{name}.yaml": text for name, text in made.items()}


def groups(plan: Plan) -> list[dict[str, object]]:
    """Return the groups of recording rules that the objects read; empty without a rollout."""
    gate = _gate(plan)
    if gate is None:
        return []
    rules = list(recording_rules.rules(gate))
    about = "Bounds of bad shares, for every arm of a rollout."
    group = {"name": f"{plan.service.service}/rollout", "interval": "30s", "rules": rules}
    return [Commented(about, group)]


def patterns(service: str) -> tuple[str, ...]:
    """Return the file patterns of a service's objects, to remove those of a former rollout."""
    return tuple(
        f"{FOLDER}/{service}.{name}.yaml" for name in ("argo", "flagger", "flagger-canary")
    )


def _gate(plan: Plan) -> RolloutGate | None:
    rollout = plan.service.rollout
    return None if rollout is None else gate_of(plan, rollout)
