"""The worked example of docs/explanation/diagnosis.md, computed by the evidence model."""

from __future__ import annotations

from math import exp

from diagnosis.evidence import UNKNOWN, default_evidence
from diagnosis.posterior import posterior, weight, weights
from diagnosis.verdict import title

RESULTS = {
    "alerts": True,
    "still_burning": True,
    "waiting": True,
    "no_evict_waiting": True,
    "kv": True,
    "batch": False,
    "prompts": False,
}
"""Whether each check of the example is sick; the others have no data."""
SHOWN = ("kv_pressure", "overload")


def likelihood_table() -> str:
    """Return the results with their probabilities and likelihood ratios."""
    model = default_evidence()
    lines = [
        "| check | result | group | usual | "
        + " | ".join(f"`{key}`" for key in SHOWN)
        + " | "
        + " | ".join(f"ratio of `{key}`" for key in SHOWN)
        + " |\n",
        f"|{'---|' * (4 + 2 * len(SHOWN))}\n",
    ]
    counted = {key: weights(model, RESULTS, key) for key in SHOWN}
    for check, sick in RESULTS.items():
        each = model.likelihoods[check]
        ratios = []
        for key in SHOWN:
            ratio = exp(weight(each, key, sick=sick))
            ratios.append(f"{ratio:.3g}" if check in counted[key] else f"({ratio:.3g})")
        cells = [
            f"`{check}`",
            "sick" if sick else "healthy",
            each.group,
            f"{each.of(UNKNOWN, sick=sick):.3g}",
            *(f"{each.of(key, sick=sick):.3g}" for key in SHOWN),
            *ratios,
        ]
        lines.append(f"| {' | '.join(cells)} |\n")
    return "".join(lines)


def posterior_table() -> str:
    """Return prior, product of ratios and probability of the first and the shown causes."""
    model = default_evidence()
    causes = [key for key, each in model.hypotheses.items() if each.objectives != "queries"]
    found = posterior(model, RESULTS, causes)
    lines = ["| hypothesis | prior | product of ratios | probability |\n", "|---|---|---|---|\n"]
    shown = {*list(found)[:3], *SHOWN, "healthy"}
    for key in (key for key in found if key in shown):
        product = exp(sum(weights(model, RESULTS, key).values()))
        prior = model.hypotheses[key].prior
        cells = f"{title(key)} (`{key}`)", f"{prior:g}", f"{product:.4g}", f"{found[key]:.4f}"
        lines.append(f"| {' | '.join(cells)} |\n")
    return "".join(lines)


def decision_table() -> str:
    """Return the thresholds of the verdicts."""
    model = default_evidence()
    return (
        "| threshold | value |\n|---|---|\n"
        f"| least probability of a cause | {model.likely:g} |\n"
        f"| least ratio to the next hypothesis | {model.odds:g} |\n"
    )
