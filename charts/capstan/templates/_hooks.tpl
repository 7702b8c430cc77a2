{{/*
The ServiceAccount and the permissions of a hook. The argument has the chart (root), the component of the hook (component), its
annotations (annotations) and its rules (rules).
*/}}
{{- define "capstan.hookAccount" -}}
{{- $name := printf "%s-%s" (include "capstan.fullname" .root) .component }}
{{- $labels := include "capstan.hookLabels" . | fromYaml }}
apiVersion: v1
kind: ServiceAccount
metadata:
  name: {{ $name | quote }}
  namespace: {{ .root.Release.Namespace | quote }}
  labels:
    {{- toYaml $labels | nindent 4 }}
  annotations:
    {{- .annotations | nindent 4 }}
automountServiceAccountToken: false
---
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata:
  name: {{ $name | quote }}
  namespace: {{ .root.Release.Namespace | quote }}
  labels:
    {{- toYaml $labels | nindent 4 }}
  annotations:
    {{- .annotations | nindent 4 }}
rules:
{{- toYaml .rules | nindent 0 }}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata:
  name: {{ $name | quote }}
  namespace: {{ .root.Release.Namespace | quote }}
  labels:
    {{- toYaml $labels | nindent 4 }}
  annotations:
    {{- .annotations | nindent 4 }}
roleRef:
  apiGroup: rbac.authorization.k8s.io
  kind: Role
  name: {{ $name | quote }}
subjects:
- kind: ServiceAccount
  name: {{ $name | quote }}
  namespace: {{ .root.Release.Namespace | quote }}
{{- end -}}

{{/* Labels of the objects of a hook. */}}
{{- define "capstan.hookLabels" -}}
{{- merge (dict "app.kubernetes.io/component" .component) (include "capstan.labels" .root | fromYaml) | toYaml -}}
{{- end -}}

{{/* The labels that select the Pods of the release's hooks. */}}
{{- define "capstan.hookSelectorLabels" -}}
capstan.dev/hooks-of: {{ .Release.Name | quote }}
{{- end -}}

{{/*
Labels of a hook's Pod, without those that Deployments, Services, the manager's NetworkPolicy and PodDisruptionBudgets select. If the
argument has outsideMesh, Istio adds no proxy to the Pod: a proxy that is no sidecar of Kubernetes never ends, and neither would the Pod.
*/}}
{{- define "capstan.hookPodLabels" -}}
{{- $mesh := ternary (dict "sidecar.istio.io/inject" "false") dict (.outsideMesh | default false) -}}
{{- $labels := merge (dict "app.kubernetes.io/component" .component) $mesh (include "capstan.hookSelectorLabels" .root | fromYaml) (include "capstan.podLabels" .root | fromYaml) }}
{{- omit $labels "app.kubernetes.io/name" "app.kubernetes.io/instance" | toYaml -}}
{{- end -}}

{{/* Annotations of a hook's Pod: see capstan.hookPodLabels. Linkerd reads an annotation. */}}
{{- define "capstan.hookPodAnnotations" -}}
{{- merge (ternary (dict "linkerd.io/inject" "disabled") dict (.outsideMesh | default false)) .root.Values.podAnnotations | toYaml -}}
{{- end -}}

{{/* The Deployments of the release, separated by commas. */}}
{{- define "capstan.deploymentNames" -}}
{{- include "capstan.fullname" . -}}
{{- if .Values.executor.separate -}},{{- include "capstan.fullname" . -}}-executor{{- end -}}
{{- end -}}

{{/* The spec of a hook's Pod. It runs a command of the manager's image (args) with the ServiceAccount of its component. */}}
{{- define "capstan.hookPodSpec" -}}
restartPolicy: Never
serviceAccountName: {{ include "capstan.fullname" .root }}-{{ .component }}
automountServiceAccountToken: true
enableServiceLinks: false
{{- with .root.Values.imagePullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .root.Values.priorityClassName }}
priorityClassName: {{ . | quote }}
{{- end }}
securityContext:
  runAsNonRoot: true
  {{- with .root.Values.runAsUser }}
  runAsUser: {{ int64 . }}
  runAsGroup: {{ int64 . }}
  {{- end }}
  seccompProfile:
    type: RuntimeDefault
containers:
- name: {{ .component }}
  image: {{ include "capstan.image" .root | quote }}
  imagePullPolicy: {{ .root.Values.image.pullPolicy }}
  args:
  {{- toYaml .args | nindent 2 }}
  {{- /* A ResourceQuota or a policy that requires a resource of the manager's Pods requires it of this Pod, too. */}}
  {{- $limits := .root.Values.resources.limits | default dict }}
  {{- $requests := .root.Values.resources.requests | default dict }}
  resources:
    requests:
      cpu: 10m
      memory: 32Mi
      {{- if index $requests "ephemeral-storage" }}
      ephemeral-storage: 64Mi
      {{- end }}
    limits:
      memory: 128Mi
      {{- if $limits.cpu }}
      cpu: 100m
      {{- end }}
      {{- if index $limits "ephemeral-storage" }}
      ephemeral-storage: 64Mi
      {{- end }}
  securityContext:
    allowPrivilegeEscalation: false
    readOnlyRootFilesystem: true
    capabilities:
      drop:
      - ALL
{{- with .root.Values.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with (.root.Values.affinity | default dict).nodeAffinity }}
affinity:
  nodeAffinity:
    {{- toYaml . | nindent 4 }}
{{- end }}
{{- with .root.Values.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}
