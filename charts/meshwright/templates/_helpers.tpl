{{/* Name prefix of all objects, short enough for the suffixes appended to it. */}}
{{- define "meshwright.fullname" -}}
{{- $name := contains "meshwright" .Release.Name | ternary .Release.Name (printf "%s-meshwright" .Release.Name) -}}
{{- $name | trunc 40 | trimSuffix "-" -}}
{{- end -}}

{{/*
The templates below take a process: `root`, `component`, `account` (values of its
service account), `needsToken` (true if it talks to this cluster), `args` and
`kubeconfigs` (Secrets with kubeconfigs, by mount folder).
*/}}
{{- define "meshwright.name" -}}
{{ include "meshwright.fullname" .root }}-{{ .component }}
{{- end -}}

{{- define "meshwright.accountName" -}}
{{- if .account.create -}}
{{ .account.name | default (include "meshwright.name" .) }}
{{- else -}}
{{ .account.name | default "default" }}
{{- end -}}
{{- end -}}

{{- define "meshwright.selector" -}}
app.kubernetes.io/name: meshwright
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{- end -}}

{{- define "meshwright.labels" -}}
{{ include "meshwright.selector" . }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
{{- end -}}

{{/* Port of a bind address; empty for "0". */}}
{{- define "meshwright.port" -}}
{{- if ne . "0" }}{{ regexFind "[0-9]+$" . }}{{ end -}}
{{- end -}}

{{/* Checks that the schema cannot express. */}}
{{- define "meshwright.check" -}}
{{- $provider := .Values.provider -}}
{{- if not (or .Values.operator.enabled $provider.enabled) -}}
{{ fail "nothing is enabled: set operator.enabled or provider.enabled" }}
{{- end -}}
{{- if and (gt (int .Values.replicaCount) 1) (not .Values.leaderElect) -}}
{{ fail "replicaCount is more than 1 without leaderElect, so all replicas would be active; set leaderElect=true or replicaCount=1" }}
{{- end -}}
{{- if regexMatch "^(127\\.|\\[::1\\])" .Values.healthProbeBindAddress -}}
{{ fail "healthProbeBindAddress: the kubelet can't reach localhost in a pod; use :8081, or 0 for no probes" }}
{{- end -}}
{{- if and (eq .Values.metricsBindAddress "0") .Values.serviceMonitor.enabled -}}
{{ fail "serviceMonitor.enabled needs metrics: set metricsBindAddress" }}
{{- end -}}
{{- if and (ne .Values.metricsBindAddress "0") (eq (include "meshwright.port" .Values.metricsBindAddress) (include "meshwright.port" .Values.healthProbeBindAddress)) -}}
{{ fail "metricsBindAddress and healthProbeBindAddress have the same port; change one of them" }}
{{- end -}}
{{- if $provider.enabled -}}
{{- if eq $provider.mode "kcp" -}}
{{- range list "kcpKubeconfig" "mgmtKubeconfig" -}}
{{- if not (get $provider .).secretName -}}
{{ fail (printf "provider.%s.secretName is required with provider.mode=kcp" .) }}
{{- end -}}
{{- end -}}
{{- else if $provider.kcpKubeconfig.secretName -}}
{{ fail "provider.kcpKubeconfig is only valid with provider.mode=kcp; in mode hub the objects are in this cluster" }}
{{- end -}}
{{- end -}}
{{- end -}}

{{/*
RBAC rules from a generated file. Omits CRDs unless `applyCrds`, the Lease if it is
elsewhere (`isElsewhere`), and Secrets if `withoutSecrets`; `secretNames` restricts
the rule for Secrets.
*/}}
{{- define "meshwright.rules" -}}
{{- $unneeded := list -}}
{{- if not .root.Values.applyCrds }}{{ $unneeded = append $unneeded "apiextensions.k8s.io" }}{{ end -}}
{{- if .isElsewhere }}{{ $unneeded = append $unneeded "coordination.k8s.io" }}{{ end -}}
{{- $names := .secretNames -}}
{{- $rules := list -}}
{{- range .root.Files.Get (printf "files/rules/%s.yaml" .file) | fromYamlArray -}}
{{- if and $names (has "secrets" .resources) }}{{ $_ := set . "resourceNames" $names }}{{ end -}}
{{- $isLeftOut := and $.withoutSecrets (has "secrets" .resources) -}}
{{- if not (or $isLeftOut (has (first .apiGroups) $unneeded)) }}{{ $rules = append $rules . }}{{ end -}}
{{- end -}}
{{- toYaml $rules -}}
{{- end -}}

{{/* Flags of both processes. */}}
{{- define "meshwright.processArgs" -}}
{{- with .Values }}
- --leader-elect={{ .leaderElect }}
- --metrics-bind-address={{ .metricsBindAddress }}
- --metrics-secure={{ .metricsSecure }}
- --health-probe-bind-address={{ .healthProbeBindAddress }}
- --resync-period={{ .resyncPeriod }}
- --request-timeout={{ .requestTimeout }}
{{- with (.resources.limits | default dict).memory }}
- --memory-limit={{ kindIs "string" . | ternary . (int64 .) }}
{{- end }}
{{- with .kubeconfigAllow }}
- --kubeconfig-allow={{ join "," . }}
{{- end }}
{{- with .allowAddress }}
- --allow-address={{ join "," . }}
{{- end }}
- --apply-crds={{ .applyCrds }}
- --log-format={{ .logFormat }}
- --log-level={{ .logLevel }}
{{- end -}}
{{- end -}}

{{/* Binds the service account of a process to the role of the same name. */}}
{{- define "meshwright.binding" -}}
roleRef:
  apiGroup: rbac.authorization.k8s.io
  kind: {{ .kind }}
  name: {{ include "meshwright.name" .process }}
subjects:
  - kind: ServiceAccount
    name: {{ include "meshwright.accountName" .process }}
    namespace: {{ .process.root.Release.Namespace }}
{{- end -}}
