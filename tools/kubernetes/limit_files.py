"""The files of ``deploy/`` with limits of a scrape."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from exporter.recording.model_registry import MAX_MODELS
from tools.kubernetes import limits

ROOT = Path(__file__).parents[2]
POD_MONITOR = "deploy/kustomize/components/prometheus-operator/podmonitor.yaml"
CHART_LIMITS = "deploy/helm/tokenslo/templates/_limits.tpl"
USUAL_OBJECTIVES = 20
"""Objectives that the limits allow where their number is not known."""

_CHART = """\
{{{{- /* Written by python -m tools.kubernetes from the limits of the sidecar. Do not edit. */}}}}

{{{{- /* The most samples of a scrape: {own} of the sidecar itself, {clients} that clients can cause, and
for each model {model} and {objective} per objective; {class_model} and {class_objective} with prompt classes. */}}}}
{{{{- define "tokenslo.sampleLimit" -}}}}
{{{{- $objectives := int .Values.podMonitor.objectives }}}}
{{{{- if not $objectives }}}}
{{{{- range .Values.slo.files }}}}
{{{{- $objectives = add $objectives (len (regexFindAll "\\\\bindicator\\\\b" . -1)) }}}}
{{{{- end }}}}
{{{{- end }}}}
{{{{- $objectives = $objectives | default {usual} }}}}
{{{{- $model := {model} }}}}
{{{{- $objective := {objective} }}}}
{{{{- if or (not .Values.slo.files) (contains "prompt_classes" (toJson .Values.slo.files)) }}}}
{{{{- $model = {class_model} }}}}
{{{{- $objective = {class_objective} }}}}
{{{{- end }}}}
{{{{- add {own} {clients} (mul (int .Values.podMonitor.models) (add $model (mul $objectives $objective))) }}}}
{{{{- end }}}}

{{{{- /* The most labels of a sample, its name and those of Prometheus Operator included. */}}}}
{{{{- define "tokenslo.labelLimit" -}}}}
{{{{- add {labels} (len .Values.podMonitor.podTargetLabels) (int .Values.podMonitor.extraLabels) }}}}
{{{{- end }}}}
"""  # noqa: E501


def limit_files() -> Iterator[tuple[str, str]]:
    """Yield path and current text of each file."""
    text = (ROOT / POD_MONITOR).read_text(encoding="utf-8")
    for key, limit in (
        ("sampleLimit", limits.sample_limit(MAX_MODELS, USUAL_OBJECTIVES)),
        ("labelLimit", limits.label_limit()),
    ):
        text = re.sub(rf"(?m)^(  {key}: )\d+$", rf"\g<1>{limit}", text)
    yield POD_MONITOR, text
    yield (
        CHART_LIMITS,
        _CHART.format(
            own=limits.OWN_SAMPLES,
            clients=limits.CLIENT_SAMPLES,
            model=limits.model_samples(0),
            objective=limits.objective_samples(0),
            class_model=limits.model_samples(),
            class_objective=limits.objective_samples(),
            labels=limits.label_limit(),
            usual=USUAL_OBJECTIVES,
        ),
    )
