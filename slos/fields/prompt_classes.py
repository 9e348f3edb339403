"""Read prompt classes, and check the objectives that select or group by them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from slos.errors import BadValue, quoted
from slos.indicators import INDICATORS
from slos.prompt_classes import (
    BOUND_PATTERN,
    EXAMPLE,
    MAX_BOUNDS,
    MAX_TOKENS,
    PromptClasses,
    check_ascending,
    parse_tokens,
)
from slos.schema import Field, Place, expect, list_of
from slos.signals import PROMPT_CLASS, TENANT


def _read(value: object, place: Place) -> tuple[int, ...]:
    """Read the upper bounds of the classes, in tokens."""
    wanted = f"a list of upper bounds in tokens, such as {EXAMPLE}"
    items: list[object] = expect(list, wanted, value)
    if not items:
        raise BadValue("has no upper bound", f"write {wanted}, or delete it")
    if len(items) > MAX_BOUNDS:
        raise BadValue(f"has {len(items)} upper bounds", f"write at most {MAX_BOUNDS}")
    bounds = []
    for item in items:
        if isinstance(item, bool) or not isinstance(item, int | str):
            raise BadValue("holds a value that is not a number of tokens", f"write {EXAMPLE}")
        bounds.append(parse_tokens(str(item)))
    check_ascending(bounds)
    return tuple(bounds)


PROMPT_CLASSES = Field(
    "prompt_classes",
    _read,
    about="Upper bounds, in tokens, of the classes of prompts by length: adds the label "
    "prompt_class. k is 1024.",
    shape=list_of(
        {
            "anyOf": [
                {"type": "integer", "minimum": 1, "maximum": MAX_TOKENS},
                {"type": "string", "pattern": BOUND_PATTERN},
            ]
        },
        1,
        MAX_BOUNDS,
    ),
)


def check_prompt_class(
    objective: Mapping[str, Any], service: Mapping[str, Any], place: Place
) -> None:
    """Refuse ``prompt_class`` where an objective cannot select or group by it."""
    indicator = INDICATORS.get(objective.get("indicator") or "")
    groups = objective.get("group_by") or ()
    own = objective.get("selector") or {}
    selected = {**service["selector"], **own}
    if indicator is None or PROMPT_CLASS not in (*selected, *groups):
        return
    at = place.at("group_by") if PROMPT_CLASS in groups else place.at("selector")
    if PROMPT_CLASS not in (*own, *groups):
        at = place.at("indicator")  # the service's selector has it
    classes = PromptClasses.of(service.get("prompt_classes") or ())
    value = selected.get(PROMPT_CLASS)
    if not indicator.by_prompt_class:
        able = ", ".join(key for key, one in INDICATORS.items() if one.by_prompt_class)
        message = f"{PROMPT_CLASS} is selected, but {indicator.key} is not counted by prompt class"
        at.refuse(message, f"use one of {able}, or delete {PROMPT_CLASS}")
    elif not classes.labels:
        message = f"{PROMPT_CLASS} is selected, but the service has no prompt classes"
        at.refuse(message, f"add prompt_classes: {EXAMPLE} to the service")
    elif value is not None and value not in classes.labels:
        choices = ", ".join(classes.labels)
        at.refuse(f"{quoted(value)} is not a prompt class", f"use one of {choices}")
    if TENANT in (*selected, *groups):
        message = f"{PROMPT_CLASS} cannot be combined with {TENANT}, which has its own counters"
        at.refuse(message, "use one of them")
