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
            summary: No {{ .component }} in namespace {{ .root.Release.Namespace }} is leader, so meshes are not updated
        - alert: MeshwrightClusterUnreachable
          expr: meshwright_cluster_reachable{ {{- $job -}} } == 0
          for: 10m
          labels:
            severity: warning
          annotations:
            summary: {{ "Cluster {{ $labels.cluster }} is unreachable" | quote }}
        - alert: MeshwrightWritesPending
          expr: meshwright_writes_pending{ {{- $job -}} } > 0
          for: 15m
          labels:
            severity: warning
          annotations:
            summary: {{ "{{ $value }} writes are pending" | quote }}
        - alert: MeshwrightRequestsFail
          expr: sum by (cluster, secret, category) (rate(meshwright_failures_total{ {{- $job -}} }[10m])) > 0.1
          for: 15m
          labels:
            severity: warning
          annotations:
            summary: {{ "Requests to cluster {{ $labels.cluster }} keep failing: {{ $labels.category }}" | quote }}
{{- if eq .component "provider" }}
        - alert: MeshwrightEndpointSilent
          expr: meshwright_kcp_endpoint_up{ {{- $job -}} } == 0
          for: 5m
          labels:
            severity: warning
          annotations:
            summary: {{ "The kcp endpoint {{ $labels.url }} does not answer, so its tenants get no updates" | quote }}
{{- end }}
{{- if eq .component "operator" }}
        - alert: MeshwrightMeshNotReady
          expr: meshwright_mesh_ready{ {{- $job -}} } == 0
          for: 15m
          labels:
            severity: warning
          annotations:
            summary: {{ "Mesh {{ $labels.namespace }}/{{ $labels.mesh }} is not Ready; see its conditions" | quote }}
        - alert: MeshwrightNodesSkipped
          expr: meshwright_mesh_skipped_nodes{ {{- $job -}} } > 0
          for: 1h
          labels:
            severity: info
          annotations:
            summary: {{ "{{ $value }} nodes of mesh {{ $labels.namespace }}/{{ $labels.mesh }} are skipped; see its status for the reasons" | quote }}
        - alert: MeshwrightSlowToConverge
          expr: histogram_quantile(0.99, sum by (le) (rate(meshwright_convergence_seconds_bucket{ {{- $job -}} }[30m]))) > 10
          for: 30m
          labels:
            severity: info
          annotations:
            summary: {{ "Node changes take {{ $value }} s to reach all clusters" | quote }}
{{- else }}
        - alert: MeshwrightObjectNotReady
          expr: meshwright_object_ready{ {{- $job -}} } == 0
          for: 15m
          labels:
            severity: warning
          annotations:
            summary: {{ "{{ $labels.kind }} {{ $labels.namespace }}/{{ $labels.name }} is not Ready; see its conditions" | quote }}
        - alert: MeshwrightCertificateExpires
          expr: meshwright_certificate_expiry_timestamp_seconds{ {{- $job -}} } - time() < 30 * 86400
          for: 1h
          labels:
            severity: warning
          annotations:
            summary: {{ "The {{ $labels.certificate }} certificate of cluster {{ $labels.cluster }} expires in {{ $value | humanizeDuration }}; the condition CertificatesExpiring has the command that reissues it" | quote }}
        - alert: MeshwrightVersionSkew
          expr: meshwright_version_skew_minors{ {{- $job -}} } > 1
          for: 1h
          labels:
            severity: warning
          annotations:
            summary: {{ "The clusters of {{ $labels.namespace }}/{{ $labels.name }} run Cilium releases {{ $value }} minor versions apart; Cilium supports one" | quote }}
{{- end }}
{{- end }}
{{- end -}}
