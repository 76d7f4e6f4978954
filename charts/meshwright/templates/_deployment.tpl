{{- define "meshwright.deployment" -}}
{{- $values := .root.Values -}}
{{- $metrics := include "meshwright.port" $values.metricsBindAddress -}}
{{- $health := include "meshwright.port" $values.healthProbeBindAddress }}
---
apiVersion: apps/v1
kind: Deployment
metadata:
  name: {{ include "meshwright.name" . }}
  namespace: {{ .root.Release.Namespace }}
  labels:
    {{- include "meshwright.labels" . | nindent 4 }}
spec:
  replicas: {{ $values.replicaCount }}
  selector:
    matchLabels:
      {{- include "meshwright.selector" . | nindent 6 }}
  template:
    metadata:
      labels:
        {{- include "meshwright.labels" . | nindent 8 }}
      {{- with $values.podAnnotations }}
      annotations:
        {{- toYaml . | nindent 8 }}
      {{- end }}
    spec:
      serviceAccountName: {{ include "meshwright.accountName" . }}
      automountServiceAccountToken: {{ .needsToken }}
      enableServiceLinks: false
      {{- with $values.imagePullSecrets }}
      imagePullSecrets:
        {{- toYaml . | nindent 8 }}
      {{- end }}
      {{- with $values.priorityClassName }}
      priorityClassName: {{ . }}
      {{- end }}
      securityContext:
        runAsNonRoot: true
        runAsUser: 65532
        runAsGroup: 65532
        fsGroup: 65532
        seccompProfile:
          type: RuntimeDefault
      containers:
        - name: {{ .component }}
          image: "{{ $values.image.repository }}:{{ $values.image.tag | default .root.Chart.AppVersion }}"
          imagePullPolicy: {{ $values.image.pullPolicy }}
          args:
            {{- .args | nindent 12 }}
          env:
            - name: POD_NAME
              valueFrom:
                fieldRef:
                  fieldPath: metadata.name
            - name: POD_NAMESPACE
              valueFrom:
                fieldRef:
                  fieldPath: metadata.namespace
          {{- if or $metrics $health }}
          ports:
            {{- if $metrics }}
            - name: metrics
              containerPort: {{ $metrics }}
            {{- end }}
            {{- if $health }}
            - name: health
              containerPort: {{ $health }}
            {{- end }}
          {{- end }}
          {{- if $health }}
          livenessProbe:
            httpGet:
              path: /healthz
              port: health
          readinessProbe:
            httpGet:
              path: /readyz
              port: health
          {{- end }}
          {{- with $values.resources }}
          resources:
            {{- toYaml . | nindent 12 }}
          {{- end }}
          securityContext:
            allowPrivilegeEscalation: false
            readOnlyRootFilesystem: true
            capabilities:
              drop:
                - ALL
          {{- with .kubeconfigs }}
          volumeMounts:
            {{- range $folder, $_ := . }}
            - name: {{ $folder }}-kubeconfig
              mountPath: /etc/meshwright/{{ $folder }}
              readOnly: true
            {{- end }}
          {{- end }}
      {{- with .kubeconfigs }}
      volumes:
        {{- range $folder, $secret := . }}
        - name: {{ $folder }}-kubeconfig
          secret:
            secretName: {{ $secret.secretName }}
            # 0440 in decimal, because YAML parsers disagree about octal numbers.
            defaultMode: 288
            items:
              - key: {{ $secret.key }}
                path: kubeconfig
        {{- end }}
      {{- end }}
      {{- with $values.nodeSelector }}
      nodeSelector:
        {{- toYaml . | nindent 8 }}
      {{- end }}
      {{- with $values.tolerations }}
      tolerations:
        {{- toYaml . | nindent 8 }}
      {{- end }}
      {{- with $values.affinity }}
      affinity:
        {{- toYaml . | nindent 8 }}
      {{- end }}
      # A standby on the same host would fail together with the leader.
      topologySpreadConstraints:
        - maxSkew: 1
          topologyKey: kubernetes.io/hostname
          whenUnsatisfiable: ScheduleAnyway
          labelSelector:
            matchLabels:
              {{- include "meshwright.selector" . | nindent 14 }}
{{- end -}}
