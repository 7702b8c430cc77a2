{{/* The chart's name, as in the label app.kubernetes.io/name. */}}
{{- define "capstan.name" -}}
{{- .Values.nameOverride | default .Chart.Name | trunc 63 | trimSuffix "-" -}}
{{- end -}}

{{/* The name of the release's objects; 52 characters leave room for the suffixes of Pods and of the Service. */}}
{{- define "capstan.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 52 | trimSuffix "-" -}}
{{- else -}}
{{- $name := include "capstan.name" . -}}
{{- if contains $name .Release.Name -}}
{{- .Release.Name | trunc 52 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name $name | trunc 52 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* Names of cluster-wide objects carry the namespace: two releases of one name do not meet. */}}
{{- define "capstan.clusterName" -}}
{{- printf "%s-%s" .Release.Namespace (include "capstan.fullname" .) -}}
{{- end -}}

{{/* What the names of the roles of people begin with; empty if the release has none. */}}
{{- define "capstan.rolePrefix" -}}
{{- if .Values.rbac.create -}}{{ include "capstan.clusterName" . }}{{- end -}}
{{- end -}}

{{/* Labels of what a Service and a Deployment select; they never change. */}}
{{- define "capstan.selectorLabels" -}}
app.kubernetes.io/name: {{ include "capstan.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: manager
{{- end -}}

{{/* Labels that are not of the manager alone. Where commonLabels has one of the same name, the standard one stays. */}}
{{- define "capstan.commonLabels" -}}
{{- $own := dict
  "helm.sh/chart" (printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" | trunc 63 | trimSuffix "-")
  "app.kubernetes.io/version" .Chart.AppVersion
  "app.kubernetes.io/managed-by" .Release.Service
  "app.kubernetes.io/part-of" "capstan" -}}
{{- merge $own .Values.commonLabels | toYaml -}}
{{- end -}}

{{/* Labels of every object of the manager. */}}
{{- define "capstan.labels" -}}
{{- merge (include "capstan.selectorLabels" . | fromYaml) (include "capstan.commonLabels" . | fromYaml) | toYaml -}}
{{- end -}}

{{/* Labels of the Pods. The chart's version is not among them: a new chart alone restarts nothing. */}}
{{- define "capstan.podLabels" -}}
{{- merge (include "capstan.selectorLabels" . | fromYaml) (dict "app.kubernetes.io/part-of" "capstan") .Values.podLabels .Values.commonLabels | toYaml -}}
{{- end -}}

{{/* The name of the policy of ToolApprovals and of its binding: the release's own, or those of config/policy. */}}
{{- define "capstan.approvalPolicyName" -}}
{{- if .Values.approvalPolicy.install -}}
{{- include "capstan.clusterName" . }}-toolapprovals
{{- else -}}
capstan-toolapprovals
{{- end -}}
{{- end -}}

{{- define "capstan.serviceAccountName" -}}
{{- if .Values.serviceAccount.create -}}
{{- .Values.serviceAccount.name | default (include "capstan.fullname" .) -}}
{{- else -}}
{{- required "serviceAccount.name must be set when serviceAccount.create is false: the name of a ServiceAccount that exists" .Values.serviceAccount.name -}}
{{- end -}}
{{- end -}}

{{/* The whole reference of the image: [registry/]repository:tag[@digest]. */}}
{{- define "capstan.image" -}}
{{- $image := .Values.image -}}
{{- with $image.registry }}{{ . | trimSuffix "/" }}/{{ end -}}
{{- $image.repository -}}:{{- $image.tag | default .Chart.AppVersion -}}
{{- with $image.digest }}@{{ . }}{{ end -}}
{{- end -}}

{{/* The reference of the image with the servers of examples/cluster, which is beside the manager's. */}}
{{- define "capstan.exampleImage" -}}
{{- with .Values.image.registry }}{{ . | trimSuffix "/" }}/{{ end -}}
{{- .Values.image.repository -}}-examples:{{- .Values.image.tag | default .Chart.AppVersion -}}
{{- end -}}

{{/* Not empty if the journal is on a PersistentVolumeClaim: with store.url it is in the database. */}}
{{- define "capstan.persistent" -}}
{{- if and .Values.persistence.enabled (not .Values.store.url) -}}true{{- end -}}
{{- end -}}

{{- define "capstan.claimName" -}}
{{- .Values.persistence.existingClaim | default (printf "%s-data" (include "capstan.fullname" .)) -}}
{{- end -}}

{{/* The peers of a NetworkPolicy that are every address but those of this machine's link and of cloud metadata services. */}}
{{- define "capstan.everywhere" -}}
- ipBlock:
    cidr: 0.0.0.0/0
    except:
    - 169.254.0.0/16
    - 100.100.100.200/32
    - 168.63.129.16/32
    - 192.0.0.192/32
- ipBlock:
    cidr: ::/0
    except:
    - fe80::/10
    - fd00:ec2::254/128
    - fd20:ce::254/128
    - fd00:ec2::23/128
{{- end -}}

{{/*
Seconds until a stopping Pod is killed: terminationGracePeriodSeconds, but never before its Turns are handed back. That takes up to a fifth of
the grace period of runs more, at least a second; giving the Leases up takes a few seconds.
*/}}
{{- define "capstan.terminationGracePeriodSeconds" -}}
{{- $grace := int .Values.shutdownGraceSeconds -}}
{{- max (int .Values.terminationGracePeriodSeconds) (add $grace (max 1 (div $grace 5)) 5) -}}
{{- end -}}

{{/* The ServiceAccount as the subject of a binding. */}}
{{- define "capstan.subjects" -}}
subjects:
- kind: ServiceAccount
  name: {{ include "capstan.serviceAccountName" . }}
  namespace: {{ .Release.Namespace }}
{{- end -}}

{{/* Values that are each fine but do not go together; a schema cannot say this in words that help. */}}
{{- define "capstan.validate" -}}
{{- $v := .Values -}}
{{- if and (include "capstan.persistent" .) (gt (int $v.replicas) 1) -}}
{{- fail (printf "replicas must be at most 1 when persistence.enabled is true: one SQLite journal cannot be shared, got %d; store.url names a PostgreSQL that can" (int $v.replicas)) -}}
{{- end -}}
{{- include "capstan.validateStore" . -}}
{{- if and $v.executor.separate (not $v.store.url) -}}
{{- fail "executor.separate needs store.url: executors of their own share the journal with the controller, which SQLite cannot do" -}}
{{- end -}}
{{- if and (gt (int $v.replicas) 1) (not $v.leaderElection.enabled) -}}
{{- fail (printf "leaderElection.enabled must be true when replicas is above 1, got %d replicas" (int $v.replicas)) -}}
{{- end -}}
{{- if and (not $v.leaderElection.enabled) (not (include "capstan.persistent" .)) -}}
{{- fail "leaderElection.enabled must be true with store.url or an emptyDir: an upgrade then runs an old and a new Pod side by side" -}}
{{- end -}}
{{- if and $v.metrics.enabled (eq (int $v.metrics.port) (int $v.health.port)) -}}
{{- fail (printf "metrics.port and health.port must differ, got %d for both" (int $v.health.port)) -}}
{{- end -}}
{{- if and $v.metrics.serviceMonitor.enabled (not $v.metrics.enabled) -}}
{{- fail "metrics.serviceMonitor.enabled needs metrics.enabled: there would be nothing to scrape" -}}
{{- end -}}
{{- if and $v.metrics.prometheusRule.enabled (not $v.metrics.enabled) -}}
{{- fail "metrics.prometheusRule.enabled needs metrics.enabled: its alerts would have no metrics" -}}
{{- end -}}
{{- if and $v.metrics.podMonitor.enabled (not $v.metrics.enabled) -}}
{{- fail "metrics.podMonitor.enabled needs metrics.enabled: there would be nothing to scrape" -}}
{{- end -}}
{{- if and $v.metrics.podMonitor.enabled $v.metrics.serviceMonitor.enabled -}}
{{- fail "metrics.podMonitor.enabled and metrics.serviceMonitor.enabled exclude each other: every Pod would be scraped twice" -}}
{{- end -}}
{{- if and $v.metrics.dashboard.enabled (not $v.metrics.enabled) -}}
{{- fail "metrics.dashboard.enabled needs metrics.enabled: it would show nothing" -}}
{{- end -}}
{{- with $v.executor.autoscaling -}}
{{- if .enabled -}}
{{- if not (and $v.executor.separate $v.metrics.enabled) -}}
{{- fail "executor.autoscaling.enabled needs executor.separate and metrics.enabled: it scales executors by what they measure" -}}
{{- end -}}
{{- if gt (int .minReplicas) (int .maxReplicas) -}}
{{- fail (printf "executor.autoscaling.minReplicas must be at most maxReplicas, got %d and %d" (int .minReplicas) (int .maxReplicas)) -}}
{{- end -}}
{{- if and (eq .kind "KEDA") (not .prometheusAddress) -}}
{{- fail "executor.autoscaling.prometheusAddress must be set for KEDA: the URL of your Prometheus" -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- if and $v.metrics.readers (not (and $v.rbac.create $v.metrics.enabled)) -}}
{{- fail "metrics.readers needs metrics.enabled and rbac.create: bind them to a role of yours otherwise" -}}
{{- end -}}
{{- with $v.readAPI -}}
{{- if and .enabled (not .tlsSecret) -}}
{{- fail "readAPI.enabled needs readAPI.tlsSecret: tokens must not cross a network in the clear" -}}
{{- end -}}
{{- if and .enabled (or (eq (int .port) (int $v.health.port)) (and $v.metrics.enabled (eq (int .port) (int $v.metrics.port)))) -}}
{{- fail (printf "readAPI.port must differ from health.port and metrics.port, got %d" (int .port)) -}}
{{- end -}}
{{- end -}}
{{- /* The manager also serves the read API at 127.0.0.1:8082, to which kubectl forwards ports, unless a flag or its twin says otherwise. */ -}}
{{- if not (regexMatch "--read-bind-address|CAPSTAN_READ_BIND_ADDRESS" (list $v.extraArgs $v.extraEnv | toJson)) -}}
{{- $ports := dict "health.port" $v.health.port -}}
{{- if $v.metrics.enabled -}}{{- $_ := set $ports "metrics.port" $v.metrics.port -}}{{- end -}}
{{- if $v.readAPI.enabled -}}{{- $_ := set $ports "readAPI.port" $v.readAPI.port -}}{{- end -}}
{{- range $name, $port := $ports -}}
{{- if eq (int $port) 8082 -}}
{{- fail (printf "%s must not be 8082: the manager has 127.0.0.1:8082 for the read API that ports are forwarded to; take another port" $name) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- $pdb := $v.podDisruptionBudget -}}
{{- if and $pdb.enabled (not (kindIs "invalid" $pdb.minAvailable)) (not (kindIs "invalid" $pdb.maxUnavailable)) -}}
{{- fail "podDisruptionBudget takes one of minAvailable and maxUnavailable: set the other one to null" -}}
{{- end -}}
{{- end -}}

{{/* What is wrong with the store. The URL is not repeated: a password in it must not get into a log. */}}
{{- define "capstan.validateStore" -}}
{{- $store := .Values.store -}}
{{- if $store.url -}}
{{- if or (regexMatch "://[^@]*[:@].*@" $store.url) (regexMatch "[?&](ssl)?password=" $store.url) -}}
{{- fail "store.url must not hold a password: everyone who may read the Deployment would see it; put it into a Secret and name that in store.passwordSecret" -}}
{{- end -}}
{{- if not (regexMatch "^postgres(ql)?://([^\\s/?#@:]+@)?[^\\s/?#@]*/[^\\s@]+$" $store.url) -}}
{{- fail "store.url must be of the form postgres://USER@HOST:5432/DATABASE; for SQLite leave it empty and see persistence" -}}
{{- end -}}
{{- else -}}
{{- range $name := list "passwordSecret" "caSecret" -}}
{{- if (index $store $name).name -}}
{{- fail (printf "store.%s needs store.url: there is no database to use it with" $name) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* Annotations of an object that exists only while helm uninstall drains; it takes the order in which Helm makes it. */}}
{{- define "capstan.drainHook" -}}
helm.sh/hook: pre-delete
helm.sh/hook-weight: {{ . | quote }}
helm.sh/hook-delete-policy: before-hook-creation,hook-succeeded
{{- end -}}
