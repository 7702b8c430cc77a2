{{/*
A Deployment of the manager. The argument has the chart (root), the component label of its Pods (component), the suffix of its
name (suffix), its replicas (replicas), and the roles of its Pods (roles; empty means all roles).
*/}}
{{- define "capstan.deployment" -}}
{{- with .root -}}
apiVersion: apps/v1
kind: Deployment
metadata:
  name: {{ printf "%s%s" (include "capstan.fullname" .) $.suffix | quote }}
  namespace: {{ .Release.Namespace | quote }}
  labels:
    {{- merge (dict "app.kubernetes.io/component" $.component) (include "capstan.labels" . | fromYaml) | toYaml | nindent 4 }}
  {{- if and .Values.crds.keep (not $.suffix) }}
  annotations:
    # The policies that Helm keeps. If a later revision has fewer, policycleanup.yaml deletes the others.
    capstan.dev/kept-policies: {{ include "capstan.policies" . | quote }}
  {{- end }}
spec:
  {{- if not (kindIs "invalid" $.replicas) }}
  replicas: {{ int $.replicas }}
  {{- end }}
  selector:
    matchLabels:
      {{- merge (dict "app.kubernetes.io/component" $.component) (include "capstan.selectorLabels" . | fromYaml) | toYaml | nindent 6 }}
  strategy:
    {{- if include "capstan.persistent" . }}
    # The volume belongs to one Pod at a time: the old one stops before the new one starts.
    type: Recreate
    {{- else }}
    type: RollingUpdate
    rollingUpdate:
      # A new manager is ready before an old one hands its Turns back.
      maxSurge: 1
      maxUnavailable: 0
    {{- end }}
  template:
    metadata:
      labels:
        {{- merge (dict "app.kubernetes.io/component" $.component) (include "capstan.podLabels" . | fromYaml) | toYaml | nindent 8 }}
      annotations:
        {{- merge (dict "kubectl.kubernetes.io/default-container" "manager") .Values.podAnnotations | toYaml | nindent 8 }}
    spec:
      serviceAccountName: {{ include "capstan.serviceAccountName" . | quote }}
      automountServiceAccountToken: true
      enableServiceLinks: false
      terminationGracePeriodSeconds: {{ include "capstan.terminationGracePeriodSeconds" . }}
      {{- with .Values.imagePullSecrets }}
      imagePullSecrets:
        {{- toYaml . | nindent 8 }}
      {{- end }}
      {{- with .Values.priorityClassName }}
      priorityClassName: {{ . | quote }}
      {{- end }}
      securityContext:
        runAsNonRoot: true
        {{- with .Values.runAsUser }}
        runAsUser: {{ int64 . }}
        runAsGroup: {{ int64 . }}
        fsGroup: {{ int64 . }}
        fsGroupChangePolicy: OnRootMismatch
        {{- end }}
        seccompProfile:
          type: RuntimeDefault
      containers:
      - name: manager
        image: {{ include "capstan.image" . | quote }}
        imagePullPolicy: {{ .Values.image.pullPolicy }}
        args:
        - --namespace=$(POD_NAMESPACE)
        - --executor-name=$(POD_NAME)
        {{- with $.roles }}
        - --roles={{ . }}
        {{- end }}
        {{- if .Values.store.url }}
        - {{ printf "--store=%s" .Values.store.url | quote }}
        {{- else }}
        - --data-dir=/var/lib/capstan
        {{- with include "capstan.volumeSize" . }}
        - --journal-volume-size={{ . }}
        {{- end }}
        {{- end }}
        - --approval-policy={{ include "capstan.approvalPolicyName" . }}
        - --requester-policy={{ include "capstan.requesterPolicyName" . }}
        - --role-prefix={{ include "capstan.rolePrefix" . }}
        {{- with .Values.watchNamespaces }}
        - {{ printf "--watch-namespaces=%s" (join "," .) | quote }}
        {{- end }}
        {{- if ne $.roles "executor" }}
        - --leader-elect={{ .Values.leaderElection.enabled }}
        - --journal-retention={{ .Values.journalRetention }}
        - --record-retention={{ .Values.records.retention }}
        - --max-records-per-namespace={{ int .Values.records.maxPerNamespace }}
        - --max-running-turns-per-namespace={{ if kindIs "string" .Values.maxRunningTurnsPerNamespace }}{{ .Values.maxRunningTurnsPerNamespace }}{{ else }}{{ int .Values.maxRunningTurnsPerNamespace }}{{ end }}
        - --max-queued-turns-per-namespace={{ int .Values.maxQueuedTurnsPerNamespace }}
        {{- end }}
        {{- with .Values.records.labels }}
        - {{ printf "--record-labels=%s" (join "," .) | quote }}
        {{- end }}
        {{- with .Values.limits }}
        {{- $limits := list }}
        {{- range $name, $most := . }}
        {{- $limits = append $limits (printf "%s=%s" $name (ternary $most (int64 $most | toString) (kindIs "string" $most))) }}
        {{- end }}
        - {{ printf "--limits=%s" (join "," $limits) | quote }}
        {{- end }}
        {{- with .Values.journalQuota.total }}
        - --journal-quota={{ . }}
        {{- end }}
        {{- with .Values.journalQuota.perNamespace }}
        - --journal-quota-per-namespace={{ . }}
        {{- end }}
        - --max-concurrent-turns={{ int .Values.maxConcurrentTurns }}
        - --max-concurrent-evaluations={{ int .Values.maxConcurrentEvaluations }}
        - --metrics-bind-address={{ if .Values.metrics.enabled }}:{{ int .Values.metrics.port }}{{ else }}0{{ end }}
        {{- if and .Values.metrics.enabled .Values.metrics.tlsSecret }}
        - --metrics-tls-cert-file=/etc/capstan/metrics/tls.crt
        - --metrics-tls-key-file=/etc/capstan/metrics/tls.key
        {{- end }}
        {{- if (.Values.readAPI).enabled }}
        - --read-tls-bind-address=:{{ int .Values.readAPI.port }}
        - --read-tls-cert-file=/etc/capstan/read/tls.crt
        - --read-tls-key-file=/etc/capstan/read/tls.key
        {{- end }}
        {{- with .Values.tokenAudiences }}
        - {{ printf "--token-audiences=%s" (join "," .) | quote }}
        {{- end }}
        - --health-probe-bind-address=:{{ int .Values.health.port }}
        - --log-format={{ .Values.log.format }}
        - --log-level={{ .Values.log.level }}
        - --shutdown-grace-seconds={{ int .Values.shutdownGraceSeconds }}
        - --probe-interval-seconds={{ int .Values.probeIntervalSeconds }}
        {{- with .Values.connections.allowCIDRs }}
        - {{ printf "--tool-allow-cidrs=%s" (join "," .) | quote }}
        {{- end }}
        {{- with .Values.connections.clusterCIDRs }}
        - {{ printf "--cluster-cidrs=%s" (join "," .) | quote }}
        {{- end }}
        {{- with .Values.connections.denyCIDRs }}
        - {{ printf "--tool-deny-cidrs=%s" (join "," .) | quote }}
        {{- end }}
        {{- if not .Values.attachments.urls }}
        - --attachment-urls=false
        {{- end }}
        {{- range .Values.workloadTokens }}
        {{- $token := printf "%s/%s" .namespace .name }}
        {{- range .hosts }}
        - {{ printf "--workload-tokens=%s=%s" $token . | quote }}
        {{- end }}
        {{- end }}
        {{- if .Values.skillsConfigMap }}
        - --skills-file=/etc/capstan/skills/skills.yaml
        {{- end }}
        {{- with .Values.extraArgs }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
        env:
        - name: POD_NAME
          valueFrom:
            fieldRef:
              fieldPath: metadata.name
        - name: POD_NAMESPACE
          valueFrom:
            fieldRef:
              fieldPath: metadata.namespace
        {{- with .Values.store.passwordSecret }}
        {{- if .name }}
        - name: PGPASSWORD
          valueFrom:
            secretKeyRef:
              name: {{ .name | quote }}
              key: {{ .key | quote }}
        {{- end }}
        {{- end }}
        {{- if .Values.store.caSecret.name }}
        - name: PGSSLROOTCERT
          value: /etc/capstan/store/ca.crt
        {{- end }}
        {{- with .Values.tracing }}
        {{- if .endpoint }}
        - name: OTEL_EXPORTER_OTLP_ENDPOINT
          value: {{ .endpoint | quote }}
        - name: OTEL_EXPORTER_OTLP_PROTOCOL
          value: {{ .protocol | quote }}
        {{- if .headersSecret.name }}
        - name: OTEL_EXPORTER_OTLP_HEADERS
          valueFrom:
            secretKeyRef:
              name: {{ .headersSecret.name | quote }}
              key: {{ .headersSecret.key | quote }}
        {{- end }}
        {{- if .captureContent }}
        - name: OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT
          value: "true"
        {{- end }}
        {{- end }}
        {{- end }}
        {{- with .Values.extraEnv }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
        ports:
        {{- if .Values.metrics.enabled }}
        - name: metrics
          containerPort: {{ int .Values.metrics.port }}
          protocol: TCP
        {{- end }}
        {{- if (.Values.readAPI).enabled }}
        - name: read
          containerPort: {{ int .Values.readAPI.port }}
          protocol: TCP
        {{- end }}
        - name: health
          containerPort: {{ int .Values.health.port }}
          protocol: TCP
        livenessProbe:
          httpGet:
            path: /healthz
            port: health
          initialDelaySeconds: 10
          periodSeconds: 20
          timeoutSeconds: 5
        readinessProbe:
          httpGet:
            path: /readyz
            port: health
          periodSeconds: 10
          timeoutSeconds: 5
        {{- with .Values.resources }}
        resources:
          {{- toYaml . | nindent 10 }}
        {{- end }}
        securityContext:
          allowPrivilegeEscalation: false
          readOnlyRootFilesystem: true
          capabilities:
            drop:
            - ALL
        volumeMounts:
        {{- if not .Values.store.url }}
        - name: data
          mountPath: /var/lib/capstan
        {{- end }}
        - name: tmp
          mountPath: /tmp
        {{- if .Values.store.caSecret.name }}
        - name: store-ca
          mountPath: /etc/capstan/store
          readOnly: true
        {{- end }}
        {{- if and .Values.metrics.enabled .Values.metrics.tlsSecret }}
        - name: metrics-tls
          mountPath: /etc/capstan/metrics
          readOnly: true
        {{- end }}
        {{- if (.Values.readAPI).enabled }}
        - name: read-tls
          mountPath: /etc/capstan/read
          readOnly: true
        {{- end }}
        {{- if .Values.workloadTokens }}
        - name: workload-tokens
          mountPath: /var/run/secrets/capstan
          readOnly: true
        {{- end }}
        {{- if .Values.skillsConfigMap }}
        - name: skills
          mountPath: /etc/capstan/skills
          readOnly: true
        {{- end }}
        {{- with .Values.extraVolumeMounts }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
      volumes:
      {{- if not .Values.store.url }}
      - name: data
        {{- if include "capstan.persistent" . }}
        persistentVolumeClaim:
          claimName: {{ include "capstan.claimName" . | quote }}
        {{- else }}
        emptyDir:
          sizeLimit: {{ .Values.persistence.emptyDirSizeLimit }}
        {{- end }}
      {{- end }}
      # The root file system is read-only; SQLite spills large sorts to /tmp.
      - name: tmp
        emptyDir:
          sizeLimit: 256Mi
      {{- with .Values.store.caSecret }}
      {{- if .name }}
      - name: store-ca
        secret:
          secretName: {{ .name | quote }}
          items:
          - key: {{ .key | quote }}
            path: ca.crt
      {{- end }}
      {{- end }}
      {{- with .Values.workloadTokens }}
      - name: workload-tokens
        projected:
          sources:
          {{- range . }}
          - serviceAccountToken:
              path: {{ printf "%s/%s" .namespace .name | quote }}
              audience: {{ .audience | quote }}
              expirationSeconds: {{ int (.expirationSeconds | default 3600) }}
          {{- end }}
      {{- end }}
      {{- if and .Values.metrics.enabled .Values.metrics.tlsSecret }}
      - name: metrics-tls
        secret:
          secretName: {{ .Values.metrics.tlsSecret | quote }}
          items:
          - key: tls.crt
            path: tls.crt
          - key: tls.key
            path: tls.key
      {{- end }}
      {{- if (.Values.readAPI).enabled }}
      - name: read-tls
        secret:
          secretName: {{ .Values.readAPI.tlsSecret | quote }}
          items:
          - key: tls.crt
            path: tls.crt
          - key: tls.key
            path: tls.key
      {{- end }}
      {{- with .Values.skillsConfigMap }}
      - name: skills
        configMap:
          name: {{ . | quote }}
          items:
          - key: skills.yaml
            path: skills.yaml
      {{- end }}
      {{- with .Values.extraVolumes }}
      {{- toYaml . | nindent 6 }}
      {{- end }}
      {{- with .Values.nodeSelector }}
      nodeSelector:
        {{- toYaml . | nindent 8 }}
      {{- end }}
      {{- with .Values.tolerations }}
      tolerations:
        {{- toYaml . | nindent 8 }}
      {{- end }}
      {{- with .Values.affinity }}
      affinity:
        {{- toYaml . | nindent 8 }}
      {{- end }}
      {{- with .Values.topologySpreadConstraints }}
      topologySpreadConstraints:
        {{- toYaml . | nindent 8 }}
      {{- end }}
{{- end }}
{{- end -}}
