{{- /* Written by python -m tools.kubernetes from the limits of the sidecar. Do not edit. */}}

{{- /* The most samples of a scrape: 1000 of the sidecar itself, 20000 that clients can cause, and
for each model 900 and 39 per objective; 1350 and 165 with prompt classes. */}}
{{- define "tokenslo.sampleLimit" -}}
{{- $objectives := int .Values.podMonitor.objectives }}
{{- if not $objectives }}
{{- range .Values.slo.files }}
{{- $objectives = add $objectives (len (regexFindAll "\\bindicator\\b" . -1)) }}
{{- end }}
{{- end }}
{{- $objectives = $objectives | default 20 }}
{{- $model := 900 }}
{{- $objective := 39 }}
{{- if or (not .Values.slo.files) (contains "prompt_classes" (toJson .Values.slo.files)) }}
{{- $model = 1350 }}
{{- $objective = 165 }}
{{- end }}
{{- add 1000 20000 (mul (int .Values.podMonitor.models) (add $model (mul $objectives $objective))) }}
{{- end }}

{{- /* The most labels of a sample, its name and those of Prometheus Operator included. */}}
{{- define "tokenslo.labelLimit" -}}
{{- add 13 (len .Values.podMonitor.podTargetLabels) (int .Values.podMonitor.extraLabels) }}
{{- end }}
