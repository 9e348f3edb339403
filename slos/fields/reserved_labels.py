"""Labels that an SLO file may not set, with the reason and the fix."""

from __future__ import annotations

from slos.names import CAUSE_LABEL, STEP_LABEL
from slos.signals import LORA_LABELS, PROMPT_CLASS, SIGNALS, TENANT

SELECTOR_RESERVED = {
    **dict.fromkeys(
        {
            name
            for signal in SIGNALS.values()
            for name in (*signal.labels, *signal.fixed)
            if name not in (TENANT, PROMPT_CLASS) and name not in (*LORA_LABELS, "basis")
        },
        ("is a label that indicators select by themselves", "delete it"),
    ),
    "le": ("is the bucket label of histograms", "delete it"),
    **dict.fromkeys(
        ("service", "slo"), ("is a label of the recorded series", "select by another label")
    ),
}
ALERT_RESERVED = dict.fromkeys(
    ("alertname", "service", "slo", "window", "burn_rate", CAUSE_LABEL, STEP_LABEL),
    ("is a label that alerts set themselves", "use another name"),
)
SERVICE_RESERVED = {
    **ALERT_RESERVED,
    "severity": (
        "differs between pages and tickets",
        "set it in the labels of alerting.page and alerting.ticket",
    ),
}
GROUP_RESERVED = {
    **SERVICE_RESERVED,
    **{
        name: ("is a label that indicators sum over", "group by another label")
        for name in SELECTOR_RESERVED
        if name not in ALERT_RESERVED
    },
}
