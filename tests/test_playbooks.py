"""The playbooks: complete, consistent, and with nothing left to fill in."""

import re
from dataclasses import asdict
from itertools import chain
from typing import get_args

import pytest

from runbooks.checks import CHECKS
from runbooks.playbook import Layer
from runbooks.playbooks import PLAYBOOKS
from runbooks.playbooks.clients import CLIENTS
from runbooks.playbooks.failures import FAILURES
from runbooks.playbooks.gateways import GATEWAYS
from runbooks.playbooks.generic import GENERIC
from runbooks.playbooks.latency import LATENCY
from runbooks.playbooks.measurement import MEASUREMENT

WRITTEN = (*LATENCY, *CLIENTS, *GATEWAYS, *FAILURES, *GENERIC, *MEASUREMENT)


def texts(value):
    """Yield every text within a value."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        yield from chain.from_iterable(texts(each) for each in value.values())
    elif isinstance(value, (tuple, list)):
        yield from chain.from_iterable(texts(each) for each in value)


NODE = re.compile(r'(\w+)(?:\["?([^]"]+)"?\]|\{"?([^}"]+)"?\})')


def nodes(diagram):
    """Return the text of every node of a flowchart, by name."""
    return {name: square or diamond for name, square, diamond in NODE.findall(diagram)}


@pytest.mark.parametrize("playbook", PLAYBOOKS.values(), ids=PLAYBOOKS.keys())
def test_references_between_playbooks_exist(playbook):
    assert set(playbook.see) <= PLAYBOOKS.keys() - {playbook.key}
    assert len(set(playbook.see)) == len(playbook.see)


@pytest.mark.parametrize("playbook", PLAYBOOKS.values(), ids=PLAYBOOKS.keys())
def test_the_checks_of_a_playbook_exist_and_differ(playbook):
    keys = [step.check for step in playbook.steps]
    assert len(set(keys)) == len(keys)
    assert {playbook.verified_by, *keys} <= CHECKS.keys()


def test_every_check_is_a_step_of_the_playbook_that_it_points_to():
    for check in CHECKS.values():
        if check.points_to:
            assert check.key in {step.check for step in PLAYBOOKS[check.points_to].steps}


@pytest.mark.parametrize("playbook", WRITTEN, ids=lambda each: each.key)
def test_code_spans_are_closed_and_sentences_are_complete(playbook):
    for text in texts(asdict(playbook)):
        assert text.count("`") % 2 == 0, text
        assert "  " not in text.replace("\n  ", "\n"), text
    sentences = (playbook.meaning, playbook.impact, playbook.escalate, *playbook.follow_up)
    for text in (*sentences, *(step.sick for step in playbook.steps)):
        assert text.endswith("."), text


@pytest.mark.parametrize("playbook", PLAYBOOKS.values(), ids=PLAYBOOKS.keys())
def test_every_arrow_of_a_diagram_is_between_labelled_nodes(playbook):
    labelled = nodes(playbook.diagram)
    for line in playbook.diagram.splitlines()[1:]:
        bare = re.sub(r"--+ [^>]+ -->|-->\|[^|]+\|", "-->", NODE.sub(r"\1", line))
        source, arrow, target = bare.split()
        assert arrow == "-->"
        assert {source, target} <= labelled.keys(), line


def test_the_latency_diagram_has_an_end_in_every_layer():
    (playbook,) = LATENCY
    ends = {text.partition(":")[0] for text in nodes(playbook.diagram).values() if ": " in text}
    assert {each.lower() for each in ends} == {each.lower() for each in get_args(Layer)}


def test_the_latency_steps_cover_every_layer():
    (playbook,) = LATENCY
    assert {step.layer for step in playbook.steps} == set(get_args(Layer))
