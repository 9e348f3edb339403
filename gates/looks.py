"""Look at a rollout several times: abort early, promote only at the end."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal

from gates.criteria import LOOKS
from gates.verdict import GateDecision, GateVerdict
from promql.client import PrometheusError
from slos.durations import format_duration


def watch(
    window: Decimal,
    warm_up: Decimal,
    measure: Callable[[str], GateDecision],
    sleep: Callable[[float], object],
    report: Callable[[int, GateDecision | PrometheusError], object],
) -> tuple[int, GateDecision]:
    """Wait for the warm-up, and look at the growing data until the ``window`` in seconds is over.

    Returns the number of the deciding look and its decision: the first that aborts, or the last.
    ``measure`` decides from a range in PromQL that ends now, and ``report`` is called at each look
    but the last.  An earlier look that fails is skipped.  Raises PrometheusError if the last fails.
    """
    sleep(float(warm_up))
    for look in range(1, LOOKS):
        sleep(float(window) / LOOKS)
        try:
            decision = measure(elapsed(window, look))
        except PrometheusError as error:
            report(look, error)
            continue
        if decision.verdict is GateVerdict.ABORT:
            return look, decision
        report(look, decision)
    sleep(float(window) / LOOKS)
    return LOOKS, measure(elapsed(window, LOOKS))


def elapsed(window: Decimal, look: int) -> str:
    """Return the time from the end of the warm-up to a look, in whole seconds, as in PromQL."""
    return format_duration((window * look / LOOKS).quantize(Decimal(1)))
