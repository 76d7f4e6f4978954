{{/* Optional objects of a process, besides its Deployment. */}}
{{- define "meshwright.extras" -}}
{{- $values := .root.Values -}}
{{- $name := include "meshwright.name" . -}}
{{- $metrics := include "meshwright.port" $values.metricsBindAddress -}}
{{- $health := include "meshwright.port" $values.healthProbeBindAddress -}}
{{- if $metrics }}
---
apiVersion: v1
kind: Service
metadata:
  name: {{ $name }}-metrics
  namespace: {{ .root.Release.Namespace }}
  labels:
    {{- include "meshwright.labels" . | nindent 4 }}
spec:
  clusterIP: None
  selector:
    {{- include "meshwright.selector" . | nindent 4 }}
  ports:
    - name: metrics
      port: {{ $metrics }}
      targetPort: metrics
{{- end }}
{{- if $values.serviceMonitor.enabled }}
---
apiVersion: monitoring.coreos.com/v1
kind: ServiceMonitor
metadata:
  name: {{ $name }}
  namespace: {{ .root.Release.Namespace }}
  labels:
    {{- include "meshwright.labels" . | nindent 4 }}
    {{- with $values.serviceMonitor.labels }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
spec:
  selector:
    matchLabels:
      {{- include "meshwright.selector" . | nindent 6 }}
  endpoints:
    - port: metrics
      interval: {{ $values.serviceMonitor.interval }}
      {{- if $values.metricsSecure }}
      scheme: https
      # The certificate is generated at start and cannot be verified; the token authorizes Prometheus.
      tlsConfig:
        insecureSkipVerify: true
      bearerTokenFile: /var/run/secrets/kubernetes.io/serviceaccount/token
      {{- end }}
      # The labels `cluster` and `namespace` refer to a mesh, not to this pod.
      honorLabels: true
{{- end }}
{{- if $values.networkPolicy.enabled }}
---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata:
  name: {{ $name }}
  namespace: {{ .root.Release.Namespace }}
  labels:
    {{- include "meshwright.labels" . | nindent 4 }}
spec:
  podSelector:
    matchLabels:
      {{- include "meshwright.selector" . | nindent 6 }}
  # Egress is not restricted: the API servers of members can be anywhere.
  policyTypes:
    - Ingress
  ingress:
    {{- if $health }}
    - ports:
        - port: {{ $health }}
    {{- end }}
    {{- if and $metrics $values.networkPolicy.metricsFrom }}
    - ports:
        - port: {{ $metrics }}
      from:
        {{- toYaml $values.networkPolicy.metricsFrom | nindent 8 }}
    {{- end }}
{{- end }}
{{- if $values.podDisruptionBudget.enabled }}
---
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata:
  name: {{ $name }}
  namespace: {{ .root.Release.Namespace }}
  labels:
    {{- include "meshwright.labels" . | nindent 4 }}
spec:
  maxUnavailable: {{ $values.podDisruptionBudget.maxUnavailable }}
  selector:
    matchLabels:
      {{- include "meshwright.selector" . | nindent 6 }}
{{- end }}
{{- end -}}
