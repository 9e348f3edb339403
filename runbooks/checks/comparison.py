"""Wording that checks of several subjects share."""

THAN_BEFORE = " times the value of this time yesterday"
NEEDS_TAP = "Needs a tap (--tap)."
