"""The playbooks: complete, consistent, and with nothing left to fill in."""

import re
from collections import defaultdict
from dataclasses import asdict, fields
from itertools import chain
from pathlib import Path
from typing import get_args

import pytest
from markdown_it import MarkdownIt

from runbooks.checks import CHECKS
from runbooks.playbook import Layer, Playbook
from runbooks.playbooks import PLAYBOOKS
from runbooks.playbooks.latency import LATENCY

ROOT = Path(__file__).parents[1]
EACH = pytest.mark.parametrize("playbook", PLAYBOOKS.values(), ids=PLAYBOOKS)
FEW_STEPS = {
    "budget_spent": "whether the budget still burns is its only question",
    "boundary_missing": "one check names the instances",
    "contradiction": "one query compares bad with total",
    "estimated": "one check names the method",
    "more_traffic": "only the objective's own series exist",
    "no_result": "one check counts the elements of the query",
    "records_lost": "one check names the source",
    "service": "tokenslo has no signals of a service with metrics of its own",
    "signal_unavailable": "the sidecar reports the reason and the fix",
    "still_burning": "a pointer to the burn-rate alert",
    "wrong_selector": "one check lists where the signal exists",
}
"""Playbooks with fewer than three steps, and why these suffice."""
CHANGES = r"(?i)(set|lower|raise|enable|disable|limit|bound|drain|restart|roll back|shorten)\b"
"""The first word of an action that changes a setting."""
SHORT = 60
"""Length of a text that several playbooks may have, such as a risk."""


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


@EACH
def test_references_between_playbooks_exist(playbook):
    assert set(playbook.see) <= PLAYBOOKS.keys() - {playbook.key}
    assert len(set(playbook.see)) == len(playbook.see)


@EACH
def test_the_checks_of_a_playbook_exist_and_differ(playbook):
    keys = [step.check for step in playbook.steps]
    assert len(set(keys)) == len(keys)
    assert {playbook.verified_by, *keys} <= CHECKS.keys()


def test_every_check_is_a_step_of_the_playbook_that_it_points_to():
    for check in CHECKS.values():
        if check.points_to:
            assert check.key in {step.check for step in PLAYBOOKS[check.points_to].steps}


@EACH
def test_code_spans_are_closed_and_sentences_are_complete(playbook):
    for text in texts(asdict(playbook)):
        assert text.count("`") % 2 == 0, text
        assert "  " not in text.replace("\n  ", "\n"), text
    sentences = (playbook.meaning, playbook.impact, playbook.escalate, *playbook.follow_up)
    for text in (*sentences, *(step.sick for step in playbook.steps)):
        assert text.endswith("."), text


@EACH
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


@EACH
def test_every_field_has_content(playbook):
    optional = {"diagram"} | ({"see"} if playbook.key in FEW_STEPS else set())
    optional |= {"layer"} if playbook in LATENCY else set()
    assert {each.name for each in fields(Playbook) if not getattr(playbook, each.name)} <= optional


@EACH
def test_a_playbook_has_three_steps_or_a_reason_for_fewer(playbook):
    assert (len(playbook.steps) < 3) is (playbook.key in FEW_STEPS)


@EACH
def test_actions_that_change_something_name_the_setting_and_the_risk(playbook):
    for action in playbook.actions:
        assert action.do.endswith("."), action.do
        assert not action.risk.endswith("."), action.risk
        if re.match(CHANGES, action.do):
            assert action.setting or "`" in action.do, action.do
        if action.effort in ("Needs a model reload", "Needs a restart"):
            assert action.risk, action.do


@EACH
def test_texts_are_markdown_without_headings_or_html(playbook):
    parser = MarkdownIt("commonmark").enable("table")
    for text in texts(asdict(playbook)):
        if text != playbook.diagram:
            kinds = {token.type for token in parser.parse(text)}
            assert not {"heading_open", "html_block", "code_block"} & kinds, text


def test_playbooks_share_no_text_beyond_short_phrases():
    found = defaultdict(set)
    for playbook in PLAYBOOKS.values():
        for text in texts(asdict(playbook)):
            for sentence in re.split(r"(?<=[.:;|])\s+", text):
                if len(sentence) > SHORT:
                    found[sentence].add(playbook.key)
    assert {text: keys for text, keys in found.items() if len(keys) > 1} == {}


@EACH
def test_the_metrics_in_texts_exist(playbook):
    known = (ROOT / "docs/reference/signals.md").read_text(encoding="utf-8")
    for text in texts(asdict(playbook)):
        for name in re.findall(r"\b(?:llm|tokenslo)_[a-z_]+", text):
            assert f"`{name}`" in known
