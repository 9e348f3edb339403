"""Runs without an incident: nothing may page."""

from __future__ import annotations

import random
from dataclasses import replace

from lab.incidents.incident import HEALTHY_LOAD, Incident, Script


def _healthy(pick: random.Random) -> Script:
    rate = round(pick.uniform(2.0, 4.0), 1)
    load = replace(HEALTHY_LOAD, rate=rate, seed=pick.getrandbits(32))
    return Script({"rate": rate}, load=load)


INCIDENTS = (
    Incident(
        key="healthy",
        title="nothing happens",
        script=_healthy,
        harmful=False,
    ),
)
