"""The panel that states why signals of a dashboard are not measured."""

from __future__ import annotations

import re
from collections.abc import Iterable

from dashboards import panels
from dashboards.grafana import PanelRow
from dashboards.panels import PanelQuery
from promql.expr import Matcher, aggregate, one_of
from slos.queries import Scope
from slos.signals import MAIN_SIGNALS, PROMPT_CLASS_SIGNALS, SIGNALS

_LABELS = {"signal": "Signal", "reason": "Why", "model": "Model"}


def not_measured_row(rows: Iterable[PanelRow], scope: Scope) -> PanelRow:
    """List the signals in ``rows`` that are unavailable, with the reason that the sidecar gives.

    Rows without signals are about the sidecar itself: every unavailable signal is listed.
    """
    signals = signals_of(rows)
    of = (one_of("signal", signals),) if signals else ()
    unavailable = Matcher("quality", "=", "unavailable")
    series = scope.series("tokenslo_signal_info", unavailable, *of)
    return PanelRow(
        "Unavailable signals",
        [
            panels.label_table(
                panels.NOT_MEASURED,
                "Signals that the sidecar cannot measure, and why. Its status page names the fix.",
                PanelQuery(aggregate("max", series, _LABELS)),
                _LABELS,
                widths={"Signal": 220, "Model": 220},
                empty="every signal of this dashboard is measured",
            )
        ],
        height=6 if signals else 10,
    )


def signals_of(rows: Iterable[PanelRow]) -> list[str]:
    """Return the signals whose metrics the panels query."""
    text = "\n".join(
        target.expr for row in rows for panel in row.panels for target in panel.targets
    )
    shown = set(re.findall(r"\bllm_\w+?(?=(?:_bucket|_count|_sum)?\b)", text))
    every = (*MAIN_SIGNALS, *PROMPT_CLASS_SIGNALS)
    return [key for key in every if SIGNALS[key].metric in shown]
