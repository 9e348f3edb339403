{{- /* The sidecar, an item of initContainers; of containers if sidecar.native is false. */}}
{{- define "tokenslo.sidecar" -}}
{{- $values := .Values.sidecar -}}
- name: tokenslo
  image: {{ include "tokenslo.image" . }}
  imagePullPolicy: {{ .Values.image.pullPolicy }}
  {{- if $values.native }}
  restartPolicy: Always
  {{- end }}
  args:
    - exporter
    {{- with $values.extraArgs }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  env:
    - name: TOKENSLO_{{ upper .Values.server.kind }}
      value: {{ .Values.server.url | quote }}
    - name: TOKENSLO_LISTEN
      value: {{ printf "%s:%v" $values.listenAddress $values.port | quote }}
    {{- if .Values.webConfig.secretName }}
    - name: TOKENSLO_WEB_CONFIG
      value: {{ printf "/etc/tokenslo-web/%s" .Values.webConfig.key | quote }}
    {{- else if or .Values.networkPolicy.enabled .Values.allowUnauthenticated }}
    - name: TOKENSLO_ALLOW_UNAUTHENTICATED
      value: "true"
    {{- else }}
    {{- fail "The sidecar would serve every client of the cluster. Fix: set networkPolicy.enabled and its clients, or webConfig.secretName, or allowUnauthenticated if another policy limits the clients." }}
    {{- end }}
    {{- with include "tokenslo.sloPaths" . }}
    - name: TOKENSLO_SLO
      value: {{ . | quote }}
    {{- end }}
    {{- with include "tokenslo.tap" . }}
    - name: TOKENSLO_TAP
      value: {{ . | quote }}
    - name: TOKENSLO_TAP_DRAIN
      value: {{ $.Values.tap.drain | quote }}
    {{- end }}
    {{- with $values.extraEnv }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  ports:
    - name: tokenslo
      containerPort: {{ $values.port }}
    {{- if eq .Values.tap.mode "proxy" }}
    {{- range .Values.tap.proxies }}
    - name: {{ .name }}
      containerPort: {{ .port }}
    {{- end }}
    {{- end }}
  {{- with $values.livenessProbe }}
  livenessProbe:
    {{- include "tokenslo.probe" (list $ .) | nindent 4 }}
  {{- end }}
  {{- if and (eq .Values.tap.mode "proxy") $values.startupProbe }}
  startupProbe:
    {{- include "tokenslo.probe" (list $ $values.startupProbe) | nindent 4 }}
  {{- end }}
  {{- with $values.readinessProbe }}
  readinessProbe:
    {{- include "tokenslo.probe" (list $ .) | nindent 4 }}
  {{- end }}
  {{- with $values.resources }}
  resources:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  securityContext:
    {{- $values.securityContext | default (include "tokenslo.securityContext" . | fromYaml) | toYaml | nindent 4 }}
  {{- with include "tokenslo.volumeMounts" . }}
  volumeMounts:
    {{- trim . | nindent 4 }}
  {{- end }}
{{- end }}

{{- /* A probe; over HTTPS if the sidecar has TLS. Arguments: the context and the probe. */}}
{{- define "tokenslo.probe" -}}
{{- $web := (first .).Values.webConfig -}}
{{- $probe := deepCopy (last .) -}}
{{- if and $web.secretName $web.tls $probe.httpGet }}
{{- $_ := set $probe.httpGet "scheme" "HTTPS" }}
{{- end }}
{{- toYaml $probe }}
{{- end }}

{{- define "tokenslo.image" -}}
{{- with .Values.image }}
{{- ternary (printf "%s@%s" .repository .digest) (printf "%s:%s" .repository (default $.Chart.AppVersion .tag)) (ne .digest "") | quote }}
{{- end }}
{{- end }}

{{- /* A container runtime gives an added capability only to processes of user 0. */}}
{{- define "tokenslo.securityContext" -}}
{{- $user := ternary 0 65532 (eq .Values.tap.mode "capture") -}}
runAsNonRoot: {{ ne $user 0 }}
runAsUser: {{ $user }}
runAsGroup: {{ $user }}
readOnlyRootFilesystem: true
allowPrivilegeEscalation: false
capabilities:
  drop: [ALL]
  {{- if eq .Values.tap.mode "capture" }}
  add: [NET_RAW]
  {{- end }}
seccompProfile: {type: RuntimeDefault}
{{- end }}

{{- define "tokenslo.volumeMounts" -}}
{{- if include "tokenslo.sloPaths" . -}}
- name: tokenslo-slo
  mountPath: /etc/tokenslo
  readOnly: true
{{- end }}
{{- if .Values.webConfig.secretName }}
- name: tokenslo-web
  mountPath: /etc/tokenslo-web
  readOnly: true
{{- end }}
{{- with .Values.sidecar.extraVolumeMounts }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- /* Items of the pod's volumes. */}}
{{- define "tokenslo.volumes" -}}
{{- if include "tokenslo.sloPaths" . -}}
- name: tokenslo-slo
  configMap:
    name: {{ include "tokenslo.sloConfigMap" . }}
{{- end }}
{{- if .Values.webConfig.secretName }}
- name: tokenslo-web
  secret:
    secretName: {{ .Values.webConfig.secretName }}
{{- end }}
{{- with .Values.sidecar.extraVolumes }}
{{ toYaml . }}
{{- end }}
{{- end }}
