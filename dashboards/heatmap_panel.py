"""The heatmap panel of Grafana 9.1 and newer; grafanalib has the older one."""

from __future__ import annotations

from typing import Any

from grafanalib import core


class HeatmapPanel(core.Panel):  # type: ignore[misc]
    """Grafana's heatmap panel since version 9.1; grafanalib has the older one."""

    def to_json_data(self) -> Any:
        """Return the panel as Grafana stores it."""
        options = {
            "calculate": False,
            "cellGap": 1,
            "color": {
                "exponent": 0.5,
                "fill": "dark-orange",
                "mode": "scheme",
                "reverse": False,
                "scale": "exponential",
                "scheme": "Oranges",
                "steps": 64,
            },
            "exemplars": {"color": "rgba(255,0,255,0.7)"},
            "filterValues": {"le": 1e-9},
            "legend": {"show": False},
            "rowsFrame": {"layout": "auto"},
            "showValue": "never",
            "tooltip": {"mode": "single", "showColorScale": False, "yHistogram": True},
            "yAxis": {"axisPlacement": "left", "reverse": False},
        }
        return self.panel_json(
            {"type": core.HEATMAP_TYPE, "fieldConfig": {"overrides": []}, "options": options}
        )
