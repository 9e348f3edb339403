"""Read the token quotas of tenants."""

from __future__ import annotations

import re

from slos.errors import BadValue, quoted
from slos.model import QUOTA_PERIODS, TokenQuota
from slos.schema import LINE, Field, Place, expect, list_of, mapping_of, one_line, read_mapping
from slos.signals import PROMPT_CLASS, TENANT

MAX_QUOTAS = 100
MAX_TENANT_LENGTH = 64
TOKENS_PATTERN = r"^[1-9][0-9]{0,14}[MB]?$"
_TOKENS = re.compile(TOKENS_PATTERN)
_UNITS = {"M": 1_000_000, "B": 1_000_000_000}
_MOST = 10**15
_EXAMPLE = "{tenant: acme, tokens: 50M, per: day}"
_WANTED = "a number of tokens, such as 5000000, 50M or 2B"


def read_quotas(value: object, place: Place) -> tuple[TokenQuota, ...]:
    """Read a list of quotas, at most one for each tenant and period."""
    items: list[object] = expect(list, f"a list of quotas such as {_EXAMPLE}", value)
    if not items:
        raise BadValue("has no quota", f"add one, such as {_EXAMPLE}")
    if len(items) > MAX_QUOTAS:
        raise BadValue(f"holds {len(items):,} quotas, more than {MAX_QUOTAS}", "keep fewer")
    found: dict[tuple[str, str], TokenQuota] = {}
    for index, item in enumerate(items):
        at = place.at(index)
        before = len(place.problems)
        read = read_mapping(QUOTA, item, at)
        if len(place.problems) != before:
            continue
        quota = TokenQuota(read["tenant"], read["tokens"], read["per"])
        if found.setdefault((quota.tenant, quota.per), quota) is not quota:
            message = f"is the second quota of {quoted(quota.tenant)} per {quota.per}"
            at.at("tenant").refuse(message, "delete one of them")
    return tuple(found.values())


def check_quotas(selected: object, place: Place) -> None:
    """Refuse labels in the service's selector that tokens of tenants do not have."""
    for label in (TENANT, PROMPT_CLASS):
        if isinstance(selected, dict) and label in selected:
            message = f"the selector of the service has {label}"
            place.refuse(message, "select it in objectives instead")


def _tenant(value: object, place: Place) -> str:
    text = one_line(value, place)
    if len(text) > MAX_TENANT_LENGTH:
        message = f"is longer than {MAX_TENANT_LENGTH} characters"
        raise BadValue(message, "shorten it: sidecars count longer tenants as other")
    return text


def _tokens(value: object, _: Place) -> int:
    given = expect((int, str), _WANTED, value)
    text = str(given)
    if not _TOKENS.fullmatch(text):
        raise BadValue(f"{quoted(text)} is not a number of tokens", f"write {_WANTED}")
    tokens = int(text.rstrip("MB")) * _UNITS.get(text[-1], 1)
    if tokens > _MOST:
        raise BadValue(f"{text} is above {_MOST:,}", "write fewer")
    return tokens


def _per(value: object, _: Place) -> str:
    if value not in QUOTA_PERIODS:
        raise BadValue("is not a period", f"write {' or '.join(QUOTA_PERIODS)}")
    return str(value)


QUOTA = (
    Field(
        "tenant",
        _tenant,
        required="acme",
        about="The tenant, as in the header of --tap-tenant-header.",
        shape={**LINE, "maxLength": MAX_TENANT_LENGTH},
    ),
    Field(
        "tokens",
        _tokens,
        required="50M",
        about="Input and output tokens of the period; M is a million, B a billion.",
        shape={
            "anyOf": [
                {"type": "integer", "minimum": 1, "maximum": _MOST},
                {"type": "string", "pattern": TOKENS_PATTERN},
            ]
        },
    ),
    Field(
        "per",
        _per,
        required="day",
        about="The period: the last 24 hours, or the last 30 days.",
        shape={"enum": [*QUOTA_PERIODS]},
    ),
)
QUOTAS = Field(
    "quotas",
    read_quotas,
    about="Token quotas of tenants, with alerts at 80%, at 100% and if the pace exceeds them.",
    shape=list_of(mapping_of(QUOTA), 1, MAX_QUOTAS),
)
