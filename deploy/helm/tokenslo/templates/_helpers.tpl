{{- define "tokenslo.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" }}
{{- end }}

{{- define "tokenslo.fullname" -}}
{{- if .Values.fullnameOverride }}
{{- .Values.fullnameOverride | trunc 63 | trimSuffix "-" }}
{{- else }}
{{- $name := default .Chart.Name .Values.nameOverride }}
{{- ternary .Release.Name (printf "%s-%s" .Release.Name $name) (contains $name .Release.Name) | trunc 63 | trimSuffix "-" }}
{{- end }}
{{- end }}

{{- define "tokenslo.labels" -}}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" | trunc 63 | trimSuffix "-" }}
app.kubernetes.io/name: {{ include "tokenslo.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
app.kubernetes.io/part-of: tokenslo
{{- with .Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- /* The label of pods with the sidecar, which PodMonitor and NetworkPolicy select. */}}
{{- define "tokenslo.podLabels" -}}
tokenslo: {{ include "tokenslo.fullname" . }}
{{- end }}

{{- /* Restarts pods when an SLO file changes: the sidecar reads it at its start. */}}
{{- define "tokenslo.podAnnotations" -}}
checksum/tokenslo-slo: {{ toJson .Values.slo | sha256sum }}
{{- end }}

{{- define "tokenslo.sloConfigMap" -}}
{{- .Values.slo.existingConfigMap | default (printf "%s-slo" (include "tokenslo.fullname" .)) }}
{{- end }}

{{- /* The paths of the SLO files, separated by commas. */}}
{{- define "tokenslo.sloPaths" -}}
{{- $keys := ternary .Values.slo.keys (keys .Values.slo.files | sortAlpha) (ne .Values.slo.existingConfigMap "") }}
{{- range $index, $key := $keys }}{{ if $index }},{{ end }}/etc/tokenslo/{{ $key }}{{ end }}
{{- end }}

{{- /* The tap as --tap takes it. */}}
{{- define "tokenslo.tap" -}}
{{- if eq .Values.tap.mode "proxy" }}
{{- range $index, $proxy := .Values.tap.proxies }}{{ if $index }},{{ end }}proxy=:{{ $proxy.port }}={{ $proxy.upstream }}{{ end }}
{{- else if eq .Values.tap.mode "capture" }}
{{- printf "capture=%s:%s" .Values.tap.capture.interface (join "," .Values.tap.capture.ports) }}
{{- end }}
{{- end }}

{{- /* terminationGracePeriodSeconds of the pod. */}}
{{- define "tokenslo.terminationGracePeriodSeconds" -}}
{{- with .Values.drain }}
{{- add .endpointRemovalSeconds .longestStreamSeconds .sidecarExitSeconds }}
{{- end }}
{{- end }}

{{- /* lifecycle of the server's container: it ends after its clients were sent elsewhere. */}}
{{- define "tokenslo.lifecycle" -}}
preStop:
  exec: {command: [sleep, {{ .Values.drain.endpointRemovalSeconds | quote }}]}
{{- end }}
