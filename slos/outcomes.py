"""Outcomes of requests: one taxonomy for servers, engines and gateways.

:mod:`exporter.outcome_rules` recognises them; this module defines what they mean for objectives.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, Literal, get_args

Outcome = Literal[
    "ok",
    "error",
    "shed",
    "quota",
    "draining",
    "timeout",
    "truncated",
    "cancelled",
    "invalid",
    "client_disconnected",
]
OUTCOMES: Final[tuple[Outcome, ...]] = get_args(Outcome)
Budget = Literal["good", "bad", "not counted"]


@dataclass(frozen=True, slots=True)
class OutcomeMeaning:
    """What an outcome means, and how the error budget counts it unless an SLO file says otherwise.

    ``reasons`` are the values of the label ``reason`` that the sidecar itself gives.
    """

    meaning: str
    budget: Budget
    reasons: tuple[str, ...] = ()


MEANINGS: Final[dict[Outcome, OutcomeMeaning]] = {
    "ok": OutcomeMeaning("The response is complete.", "good"),
    "error": OutcomeMeaning("The server or a gateway failed.", "bad"),
    "shed": OutcomeMeaning(
        "Load shedding: the server or a gateway refused or evicted the request.",
        "bad",
        ("capacity", "deadline", "priority"),
    ),
    "quota": OutcomeMeaning("The client exceeded its rate limit, quota or budget.", "not counted"),
    "draining": OutcomeMeaning("The server refused the request because it shuts down.", "bad"),
    "timeout": OutcomeMeaning(
        "A time limit of the server or a gateway expired.", "bad", ("idle", "total")
    ),
    "truncated": OutcomeMeaning(
        "The response began, and ended without its terminal event.",
        "bad",
        ("unended", "closed", "reset"),
    ),
    "cancelled": OutcomeMeaning(
        "The request was cancelled, and the server said so.", "not counted"
    ),
    "invalid": OutcomeMeaning("The request was invalid: a client error.", "not counted"),
    "client_disconnected": OutcomeMeaning(
        "The client disconnected before the end of the response.", "not counted"
    ),
}

REFUSALS: Final[tuple[Outcome, ...]] = ("shed", "quota")
"""Outcomes that an SLO file may count as bad or leave out (``error_budget``)."""
SPENDING: Final = frozenset(each for each in REFUSALS if MEANINGS[each].budget == "bad")
"""Refusals that spend the error budget by default."""
FAILURES: Final[tuple[Outcome, ...]] = tuple(
    each for each in OUTCOMES if MEANINGS[each].budget == "bad"
)
"""Outcomes that spend the error budget by default."""


def failures(spending: Iterable[str]) -> tuple[str, ...]:
    """Return the outcomes that spend an error budget, given the refusals that do."""
    chosen = set(spending)
    return tuple(
        each for each in OUTCOMES if each in chosen or (each in FAILURES and each not in REFUSALS)
    )
