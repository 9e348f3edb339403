"""Runs without an incident: nothing may page."""

from __future__ import annotations

import random
from dataclasses import replace

from lab.incidents.catalogue.rollouts import shifted
from lab.incidents.faults import break_engine, load_model, switch_load
from lab.incidents.incident import HEALTHY_LOAD, Incident, Script, ScriptStep


def _healthy(pick: random.Random) -> Script:
    rate = round(pick.uniform(2.0, 4.0), 1)
    load = replace(HEALTHY_LOAD, rate=rate, seed=pick.getrandbits(32))
    return Script({"rate": rate}, load=load)


def _deploy_without_harm(pick: random.Random) -> Script:
    """Load the model again without a gap, then shift a share of the traffic to another version."""
    rate, share = round(pick.uniform(2.0, 3.5), 1), round(pick.uniform(0.3, 0.7), 2)
    load_seconds = round(pick.uniform(1.0, 4.0), 1)
    load = replace(HEALTHY_LOAD, rate=rate, seed=pick.getrandbits(32))
    return Script(
        {"rate": rate, "new_version_share": share, "load_seconds": load_seconds},
        load=shifted(load, 0.0),
        versions=(1, 2),
        steps=(
            ScriptStep(0.0, "loading takes a while", break_engine(load_seconds=load_seconds)),
            ScriptStep(0.0, "the model is loaded again", load_model()),
            ScriptStep(15.0, "traffic shifts to version 2", switch_load(shifted(load, share))),
        ),
    )


INCIDENTS = (
    Incident(
        key="healthy",
        title="nothing happens",
        script=_healthy,
        harmful=False,
    ),
    Incident(
        key="deploy-without-harm",
        title="a model is loaded again, and another version serves a share of the traffic",
        script=_deploy_without_harm,
        harmful=False,
    ),
)
