"""Generate a monitoring mixin: rules and dashboards for Jsonnet.

The shape is the one all mixins have (monitoring-mixins/docs): ``prometheusRules``,
``prometheusAlerts`` and ``grafanaDashboards``, each to be added to others', and ``_config``.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import PurePath

PATH = "mixin.libsonnet"

_TEXT = """\
// A monitoring mixin with the SLOs of {services}.
// Made by tokenslo {version}. Do not edit: override settings in _config.
//
//   (import 'mixin.libsonnet') + {{
//     _config+:: {{ tokenslo+: {{ alertLabels: {{ team: 'inference' }} }} }},
//   }}

local files = [
{rules}];

local groups = std.flatMap(function(file) std.parseYaml(file).groups, files);

// The groups that have rules for which `keep` holds, with these alone.
local only(keep, change=function(rule) rule) = [
  group {{ rules: [change(rule) for rule in group.rules if keep(rule)] }}
  for group in groups
  if std.length(std.filter(keep, group.rules)) > 0
];

{{
  // All mixins share _config: these settings are for this one only.
  _config+:: {{
    tokenslo+: {{
      // Added to every alert; what an alert has itself is overwritten.
      alertLabels: {{}},
      alertAnnotations: {{}},
      // Added to the tags of every dashboard.
      dashboardTags: [],
    }},
  }},

  prometheusRules+:: {{
    groups+: only(function(rule) std.objectHas(rule, 'record')),
  }},

  prometheusAlerts+:: {{
    groups+: only(
      function(rule) std.objectHas(rule, 'alert'),
      function(rule) rule {{
        labels+: $._config.tokenslo.alertLabels,
        annotations+: $._config.tokenslo.alertAnnotations,
      }},
    ),
  }},

  grafanaDashboards+:: {{
{dashboards}  }},
}}
"""


def text(
    services: Iterable[str], rules: Iterable[str], dashboards: Iterable[str], *, version: str
) -> str:
    """Return the mixin; ``rules`` and ``dashboards`` are paths of the files it imports."""
    return _TEXT.format(
        services=", ".join(services),
        version=version,
        rules="".join(f"  importstr '{path}',\n" for path in rules),
        dashboards="".join(
            f"    '{PurePath(path).name}': (import '{path}') "
            "{ tags+: $._config.tokenslo.dashboardTags },\n"
            for path in dashboards
        ),
    )
