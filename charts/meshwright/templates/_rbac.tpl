{{- define "meshwright.account" -}}
{{- if .account.create }}
---
apiVersion: v1
kind: ServiceAccount
metadata:
  name: {{ include "meshwright.accountName" . }}
  namespace: {{ .root.Release.Namespace }}
  labels:
    {{- include "meshwright.labels" . | nindent 4 }}
  {{- with .account.annotations }}
  annotations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
automountServiceAccountToken: false
{{- end }}
{{- end -}}

{{/* Takes `process` and `file`. */}}
{{- define "meshwright.clusterRole" -}}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata:
  name: {{ include "meshwright.name" .process }}
  labels:
    {{- include "meshwright.labels" .process | nindent 4 }}
rules:
  {{- include "meshwright.rules" (dict "root" .process.root "file" .file) | nindent 2 }}
  {{- if .process.root.Values.metricsSecure }}
  {{- include "meshwright.rules" (dict "root" .process.root "file" "secure-metrics") | nindent 2 }}
  {{- end }}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata:
  name: {{ include "meshwright.name" .process }}
  labels:
    {{- include "meshwright.labels" .process | nindent 4 }}
{{ include "meshwright.binding" (dict "process" .process "kind" "ClusterRole") }}
{{- end -}}

{{/* Takes `process`, `file`, `namespace` and the options of meshwright.rules. */}}
{{- define "meshwright.role" -}}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata:
  name: {{ include "meshwright.name" .process }}
  namespace: {{ .namespace }}
  labels:
    {{- include "meshwright.labels" .process | nindent 4 }}
rules:
  {{- include "meshwright.rules" (dict "root" .process.root "file" .file "secretNames" .secretNames "isElsewhere" .isElsewhere "withoutSecrets" .withoutSecrets) | nindent 2 }}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata:
  name: {{ include "meshwright.name" .process }}
  namespace: {{ .namespace }}
  labels:
    {{- include "meshwright.labels" .process | nindent 4 }}
{{ include "meshwright.binding" (dict "process" .process "kind" "Role") }}
{{- end -}}
