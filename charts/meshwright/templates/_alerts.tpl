{{- define "meshwright.alerts" -}}
{{- $job := printf "job=\"%s-metrics\"" (include "meshwright.name" .) -}}
{{- if .root.Values.prometheusRule.enabled }}
---
apiVersion: monitoring.coreos.com/v1
kind: PrometheusRule
metadata:
  name: {{ include "meshwright.name" . }}
  namespace: {{ .root.Release.Namespace }}
  labels:
    {{- include "meshwright.labels" . | nindent 4 }}
    {{- with .root.Values.prometheusRule.labels }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
spec:
  groups:
    - name: {{ include "meshwright.name" . }}
      rules:
        - alert: MeshwrightNobodyLeads
          expr: absent(meshwright_leader{ {{- $job -}} } == 1)
          for: 5m
          labels:
            severity: critical
          annotations:
            summary: No {{ .component }} of {{ .root.Release.Namespace }} acts, so no change reaches the meshes
        - alert: MeshwrightClusterUnreachable
          expr: meshwright_cluster_reachable{ {{- $job -}} } == 0
          for: 10m
          labels:
            severity: warning
          annotations:
            summary: {{ "The cluster {{ $labels.cluster }} can't be read and written" | quote }}
        - alert: MeshwrightWritesPending
          expr: meshwright_writes_pending{ {{- $job -}} } > 0
          for: 15m
          labels:
            severity: warning
          annotations:
            summary: {{ "{{ $value }} planned writes wait for their clusters" | quote }}
        - alert: MeshwrightRequestsFail
          expr: sum by (cluster, category) (rate(meshwright_failures_total{ {{- $job -}} }[10m])) > 0.1
          for: 15m
          labels:
            severity: warning
          annotations:
            summary: {{ "Requests to {{ $labels.cluster }} go on failing: {{ $labels.category }}" | quote }}
{{- if eq .component "operator" }}
        - alert: MeshwrightMeshNotReady
          expr: meshwright_mesh_ready{ {{- $job -}} } == 0
          for: 15m
          labels:
            severity: warning
          annotations:
            summary: {{ "The mesh {{ $labels.namespace }}/{{ $labels.mesh }} is not Ready: its conditions say why" | quote }}
        - alert: MeshwrightNodesSkipped
          expr: meshwright_mesh_skipped_nodes{ {{- $job -}} } > 0
          for: 1h
          labels:
            severity: info
          annotations:
            summary: {{ "{{ $value }} nodes take no part in {{ $labels.namespace }}/{{ $labels.mesh }}: its status says why" | quote }}
        - alert: MeshwrightSlowToConverge
          expr: histogram_quantile(0.99, sum by (le) (rate(meshwright_convergence_seconds_bucket{ {{- $job -}} }[30m]))) > 10
          for: 30m
          labels:
            severity: info
          annotations:
            summary: {{ "Changes of Nodes take {{ $value }} s to reach all clusters" | quote }}
{{- else }}
        - alert: MeshwrightObjectNotReady
          expr: meshwright_object_ready{ {{- $job -}} } == 0
          for: 15m
          labels:
            severity: warning
          annotations:
            summary: {{ "{{ $labels.kind }} {{ $labels.namespace }}/{{ $labels.name }} is not Ready: its conditions say why" | quote }}
{{- end }}
{{- end }}
{{- end -}}
