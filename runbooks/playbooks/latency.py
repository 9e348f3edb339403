"""Latency by layer: the procedure that leads to the other playbooks."""

from __future__ import annotations

from runbooks.playbook import Action, Playbook, Step

LATENCY = (
    Playbook(
        key="latency_spike",
        title="A p99 spike",
        layer="instance",
        symptoms=("A p99 spike",),
        meaning="The slowest requests have become slower, and the layer is unknown.",
        impact="Users notice what the alert's page states.",
        steps=(Step("waiting", "The result is outside its healthy range.", "instance"),),
        actions=(Action("Follow the steps of the diagnosis; mitigate what they find."),),
        verified_by="waiting",
        escalate="Call the owner when two mitigations have not helped.",
        follow_up=("Write down the cause and the mitigation that worked.",),
    ),
)
