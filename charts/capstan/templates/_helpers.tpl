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

{{/*
The name of the Service with a suffix, from (list $ SUFFIX). Unlike the names of other objects, it must not contain dots, and Kubernetes
below 1.36 refuses a leading digit; the name of a release may have both. An earlier chart may have created a Service with a leading digit on
1.36 or later. It keeps its name, which clients and certificates know. helm template has no API server: lookup then finds nothing.
*/}}
{{- define "capstan.serviceName" -}}
{{- $root := index . 0 -}}
{{- $suffix := index . 1 -}}
{{- $base := include "capstan.fullname" $root | replace "." "-" -}}
{{- $name := printf "%s-%s" $base $suffix -}}
{{- if regexMatch "^[0-9]" $base -}}
{{- $existing := lookup "v1" "Service" $root.Release.Namespace $name -}}
{{- if ne (dig "metadata" "labels" "app.kubernetes.io/instance" "" $existing) $root.Release.Name -}}
{{- $name = printf "%s-%s" (printf "capstan-%s" $base | trunc 55 | trimSuffix "-") $suffix -}}
{{- end -}}
{{- end -}}
{{- $name -}}
{{- end -}}

{{/* Names of cluster-wide objects contain the namespace, so that two releases with the same name do not collide. */}}
{{- define "capstan.clusterName" -}}
{{- printf "%s-%s" .Release.Namespace (include "capstan.fullname" .) -}}
{{- end -}}

{{/* The prefix of the names of the roles for people; empty if the release has none. */}}
{{- define "capstan.rolePrefix" -}}
{{- if .Values.rbac.create -}}{{ include "capstan.clusterName" . }}{{- end -}}
{{- end -}}

{{/* Labels that Services and Deployments select; they never change. */}}
{{- define "capstan.selectorLabels" -}}
app.kubernetes.io/name: {{ include "capstan.name" . | quote }}
app.kubernetes.io/instance: {{ .Release.Name | quote }}
app.kubernetes.io/component: manager
{{- end -}}

{{/* Labels of all objects. If commonLabels has a label with the name of a standard one, the standard one is used. */}}
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

{{/*
Labels of the policies whose age counts, and of their bindings. The manager trusts the requester of a Turn only if the
policy was not changed after the Turn was created, and a change of a label is a change, too. So these labels do not
contain the chart's version.
*/}}
{{- define "capstan.lastingLabels" -}}
{{- omit (include "capstan.labels" . | fromYaml) "helm.sh/chart" "app.kubernetes.io/version" | toYaml -}}
{{- end -}}

{{/* Labels of the Pods. They do not contain the chart's version, so that a new chart without other changes restarts no Pod. */}}
{{- define "capstan.podLabels" -}}
{{- merge (include "capstan.selectorLabels" . | fromYaml) (dict "app.kubernetes.io/part-of" "capstan") .Values.podLabels .Values.commonLabels | toYaml -}}
{{- end -}}

{{/* The name of the policy for ToolApprovals, and of its binding: of this release, or of config/policy. */}}
{{- define "capstan.approvalPolicyName" -}}
{{- if .Values.approvalPolicy.install -}}
{{- include "capstan.clusterName" . }}-toolapprovals
{{- else -}}
capstan-toolapprovals
{{- end -}}
{{- end -}}

{{/*
The annotations of an object whose deletion would lose data. Argo CD reads Helm's annotation only when an Application is
deleted, so its pruning needs an annotation of its own: it deletes objects that the chart no longer has, for example
after crds.install=false (argoproj/argo-cd#17819).
*/}}
{{- define "capstan.keep" -}}
helm.sh/resource-policy: keep
argocd.argoproj.io/sync-options: Prune=false
{{- end -}}

{{/*
The annotation with which helm uninstall keeps a policy or its binding. They stay as long as the objects that they check: the
manager trusts the requester of a Turn, and the author of a ToolApproval, only if the policy is older and was never deleted.
*/}}
{{- define "capstan.keepWithCRDs" -}}
{{- if .Values.crds.keep }}
  annotations:
    helm.sh/resource-policy: keep
{{- end }}
{{- end -}}

{{/* The policies of this release, as KIND/NAME separated by commas. Each has a binding of the same name, of the kind KINDBinding. */}}
{{- define "capstan.policies" -}}
{{- $policies := list -}}
{{- if .Values.approvalPolicy.install -}}
{{- $policies = append $policies (printf "ValidatingAdmissionPolicy/%s" (include "capstan.approvalPolicyName" .)) -}}
{{- end -}}
{{- if .Values.referencePolicy.install -}}
{{- $policies = append $policies (printf "ValidatingAdmissionPolicy/%s-references" (include "capstan.clusterName" .)) -}}
{{- end -}}
{{- if .Values.requesterPolicy.install -}}
{{- $policies = append $policies (printf "ValidatingAdmissionPolicy/%s" (include "capstan.requesterPolicyName" .)) -}}
{{- if and .Values.requesterPolicy.set (include "capstan.mutationVersion" .) -}}
{{- $policies = append $policies (printf "MutatingAdmissionPolicy/%s" (include "capstan.requesterPolicyName" .)) -}}
{{- end -}}
{{- end -}}
{{- if .Values.agentUsePolicy.install -}}
{{- $policies = append $policies (printf "ValidatingAdmissionPolicy/%s-agent-use" (include "capstan.clusterName" .)) -}}
{{- end -}}
{{- join "," $policies -}}
{{- end -}}

{{/* The version in which the API server serves MutatingAdmissionPolicies, or nothing. */}}
{{- define "capstan.mutationVersion" -}}
{{- $version := "" -}}
{{- range list "v1beta1" "v1" -}}
{{- if $.Capabilities.APIVersions.Has (printf "admissionregistration.k8s.io/%s/MutatingAdmissionPolicy" .) -}}{{- $version = . -}}{{- end -}}
{{- end -}}
{{- $version -}}
{{- end -}}

{{/* The name of the policy for requesters, and of its binding: of this release, or of config/policy. */}}
{{- define "capstan.requesterPolicyName" -}}
{{- if .Values.requesterPolicy.install -}}
{{- include "capstan.clusterName" . }}-requesters
{{- else -}}
capstan-requesters
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

{{/* The reference of the image with the servers of examples/cluster, which is in the same registry as the manager's. */}}
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

{{/*
The size of the journal's volume, or empty if the chart does not know it. The file system may be larger: an emptyDir is on the disk
of the node, and so are the claims of some StorageClasses.
*/}}
{{- define "capstan.volumeSize" -}}
{{- if not (include "capstan.persistent" .) -}}
{{- .Values.persistence.emptyDirSizeLimit -}}
{{- else if not .Values.persistence.existingClaim -}}
{{- .Values.persistence.size -}}
{{- end -}}
{{- end -}}

{{/* Peers of a NetworkPolicy: all addresses except link-local ones and those of cloud metadata services. */}}
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
    - fd00:c1::a9fe:a9fe/128
    - fd00:a9fe:a9fe::1/128
    - fd00:42::42/128
    - fd00:ec2::23/128
{{- end -}}

{{/* Rules of a NetworkPolicy for what the Pods may reach: DNS, the API server, and the values in networkPolicy.egress. */}}
{{- define "capstan.egress" -}}
# DNS, which may use an address of the node. A policy applies to the port of the Pod, which is 5353 on OpenShift.
- ports:
  - protocol: UDP
    port: 53
  - protocol: TCP
    port: 53
  - protocol: UDP
    port: 5353
  - protocol: TCP
    port: 5353
# The API server.
- ports:
  {{- range .Values.networkPolicy.apiServer.ports }}
  - protocol: TCP
    port: {{ int . }}
  {{- end }}
  to:
  {{- range .Values.networkPolicy.apiServer.cidrs }}
  - ipBlock:
      cidr: {{ . }}
  {{- else }}
  {{- include "capstan.everywhere" $ | nindent 2 }}
  {{- end }}
# Models, tool servers and databases.
{{- with .Values.networkPolicy.egress }}
{{ toYaml . }}
{{- else }}
- to:
  {{- include "capstan.everywhere" $ | nindent 2 }}
{{- end }}
{{- end -}}

{{/*
Seconds until a stopping Pod is killed: terminationGracePeriodSeconds, but never before its Turns are handed back. In
addition to the grace period of runs, that takes up to a fifth of it, at least a second. Releasing the Leases may take 5
seconds more, and the last Events and spans 4 seconds.
*/}}
{{- define "capstan.terminationGracePeriodSeconds" -}}
{{- $grace := int .Values.shutdownGraceSeconds -}}
{{- max (int .Values.terminationGracePeriodSeconds) (add $grace (max 1 (div $grace 5)) 10) -}}
{{- end -}}

{{/* The ServiceAccount as the subject of a binding. */}}
{{- define "capstan.subjects" -}}
subjects:
- kind: ServiceAccount
  name: {{ include "capstan.serviceAccountName" . | quote }}
  namespace: {{ .Release.Namespace | quote }}
{{- end -}}

{{/* Checks for values that contradict each other. A schema could not give helpful messages. */}}
{{- define "capstan.validate" -}}
{{- $v := .Values -}}
{{- if and (include "capstan.persistent" .) (gt (int $v.replicas) 1) -}}
{{- fail (printf "replicas must be at most 1 if persistence.enabled is true, got %d: several Pods cannot share an SQLite journal; set store.url to use PostgreSQL" (int $v.replicas)) -}}
{{- end -}}
{{- include "capstan.validateStore" . -}}
{{- if and $v.executor.separate (not $v.store.url) -}}
{{- fail "executor.separate needs store.url: separate executors share the journal with the controller, and they cannot share an SQLite journal" -}}
{{- end -}}
{{- if and (gt (int $v.replicas) 1) (not $v.leaderElection.enabled) -}}
{{- fail (printf "leaderElection.enabled must be true if replicas is above 1, got %d replicas" (int $v.replicas)) -}}
{{- end -}}
{{- if and (not $v.leaderElection.enabled) (not (include "capstan.persistent" .)) -}}
{{- fail "leaderElection.enabled must be true with store.url or an emptyDir: during an upgrade, an old and a new Pod run at the same time" -}}
{{- end -}}
{{- if and $v.metrics.enabled (eq (int $v.metrics.port) (int $v.health.port)) -}}
{{- fail (printf "metrics.port and health.port must differ, got %d for both" (int $v.health.port)) -}}
{{- end -}}
{{- if and $v.metrics.serviceMonitor.enabled (not $v.metrics.enabled) -}}
{{- fail "metrics.serviceMonitor.enabled needs metrics.enabled: without it, no Pod serves metrics" -}}
{{- end -}}
{{- if and $v.metrics.prometheusRule.enabled (not $v.metrics.enabled) -}}
{{- fail "metrics.prometheusRule.enabled needs metrics.enabled: without it, the alerts have no metrics" -}}
{{- end -}}
{{- if and $v.metrics.podMonitor.enabled (not $v.metrics.enabled) -}}
{{- fail "metrics.podMonitor.enabled needs metrics.enabled: without it, no Pod serves metrics" -}}
{{- end -}}
{{- if and $v.metrics.podMonitor.enabled $v.metrics.serviceMonitor.enabled -}}
{{- fail "metrics.podMonitor.enabled and metrics.serviceMonitor.enabled must not both be true: each Pod would be scraped twice" -}}
{{- end -}}
{{- if and $v.metrics.dashboard.enabled (not $v.metrics.enabled) -}}
{{- fail "metrics.dashboard.enabled needs metrics.enabled: without it, the dashboard is empty" -}}
{{- end -}}
{{- with $v.executor.autoscaling -}}
{{- if .enabled -}}
{{- if not (and $v.executor.separate $v.metrics.enabled) -}}
{{- fail "executor.autoscaling.enabled needs executor.separate and metrics.enabled: it scales separate executors by their metrics" -}}
{{- end -}}
{{- if gt (int .minReplicas) (int .maxReplicas) -}}
{{- fail (printf "executor.autoscaling.minReplicas must be at most maxReplicas, got %d and %d" (int .minReplicas) (int .maxReplicas)) -}}
{{- end -}}
{{- if and (eq .kind "KEDA") (not .prometheusAddress) -}}
{{- fail "executor.autoscaling.prometheusAddress must be set for KEDA, to the URL of your Prometheus" -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- if and $v.metrics.readers (not (and $v.rbac.create $v.metrics.enabled)) -}}
{{- fail "metrics.readers needs metrics.enabled and rbac.create: without rbac.create, bind the ServiceAccounts to your own ClusterRole" -}}
{{- end -}}
{{- with $v.readAPI -}}
{{- if and .enabled (not .tlsSecret) -}}
{{- fail "readAPI.enabled needs readAPI.tlsSecret: clients must not send their tokens unencrypted" -}}
{{- end -}}
{{- if and .enabled .from (not $v.networkPolicy.enabled) -}}
{{- fail "readAPI.from needs networkPolicy.enabled: without the NetworkPolicy, everyone in the cluster may connect to the read API; set networkPolicy.enabled=true, or leave readAPI.from empty and restrict the connections with your own NetworkPolicy" -}}
{{- end -}}
{{- if and .enabled (gt (int $v.replicas) 1) (not $v.store.url) -}}
{{- fail (printf "readAPI.enabled with %d replicas needs store.url: each Pod has its own journals, and the Service of the read API may choose one without the journals of a request" (int $v.replicas)) -}}
{{- end -}}
{{- if and .enabled (or (eq (int .port) (int $v.health.port)) (and $v.metrics.enabled (eq (int .port) (int $v.metrics.port)))) -}}
{{- fail (printf "readAPI.port must differ from health.port and metrics.port, got %d" (int .port)) -}}
{{- end -}}
{{- end -}}
{{- /* The manager also serves the read API at 127.0.0.1:8082, for kubectl port-forward, unless a flag or its variable changes that. */ -}}
{{- if not (regexMatch "--read-bind-address|CAPSTAN_READ_BIND_ADDRESS" (list $v.extraArgs $v.extraEnv | toJson)) -}}
{{- $ports := dict "health.port" $v.health.port -}}
{{- if $v.metrics.enabled -}}{{- $_ := set $ports "metrics.port" $v.metrics.port -}}{{- end -}}
{{- if $v.readAPI.enabled -}}{{- $_ := set $ports "readAPI.port" $v.readAPI.port -}}{{- end -}}
{{- range $name, $port := $ports -}}
{{- if eq (int $port) 8082 -}}
{{- fail (printf "%s must not be 8082: the manager uses 127.0.0.1:8082 for the read API behind kubectl port-forward; choose another port" $name) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- /*
Helm would fail only when it creates the Role in a missing namespace, after it has changed other objects, and without the name of the
value. helm template and helm lint have no API server: lookup then finds nothing at all, not even kube-system. The namespace of the
release may be missing, because helm install --create-namespace creates it after this check.
*/ -}}
{{- if and $v.watchNamespaces $v.rbac.create (lookup "v1" "Namespace" "" "kube-system") -}}
{{- range without $v.watchNamespaces .Release.Namespace -}}
{{- if not (lookup "v1" "Namespace" "" .) -}}
{{- fail (printf "watchNamespaces: namespace %q does not exist: create it first (kubectl create namespace %s), or remove it from the value" . .) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- /* helm template and helm lint find no Deployment. helm test reports the other installation, too. */ -}}
{{- range (lookup "apps/v1" "Deployment" .Release.Namespace "").items -}}
{{- $labels := .metadata.labels | default dict -}}
{{- $release := index $labels "app.kubernetes.io/instance" | default "" -}}
{{- if and (eq (index $labels "app.kubernetes.io/part-of" | default "") "capstan") (ne $release $.Release.Name) -}}
{{- fail (printf "Deployment %q in namespace %s belongs to another installation of Capstan (%s): two installations in one namespace would use each other's Leases; install this release in another namespace, or remove the other installation first" .metadata.name $.Release.Namespace (ternary (printf "release %q" $release) "without Helm" (ne $release ""))) -}}
{{- end -}}
{{- end -}}
{{- $pdb := $v.podDisruptionBudget -}}
{{- if and $pdb.enabled (not (kindIs "invalid" $pdb.minAvailable)) (not (kindIs "invalid" $pdb.maxUnavailable)) -}}
{{- fail "podDisruptionBudget.minAvailable and podDisruptionBudget.maxUnavailable must not both be set: set one of them to null" -}}
{{- end -}}
{{- end -}}

{{/* Checks the values of the store. The messages do not repeat the URL: a password in it must not get into a log. */}}
{{- define "capstan.validateStore" -}}
{{- $store := .Values.store -}}
{{- if $store.url -}}
{{- if or (regexMatch "://[^@]*[:@].*@" $store.url) (regexMatch "[?&](ssl)?password=" $store.url) -}}
{{- fail "store.url must not contain a password, because every reader of the Deployment would see it: put the password into a Secret, and set store.passwordSecret.name" -}}
{{- end -}}
{{- if not (regexMatch "^postgres(ql)?://([^\\s/?#@:]+@)?[^\\s/?#@]*/[^\\s@]+$" $store.url) -}}
{{- fail "store.url must be of the form postgres://USER@HOST:5432/DATABASE; to use SQLite, leave it empty and see persistence" -}}
{{- end -}}
{{- else -}}
{{- range $name := list "passwordSecret" "caSecret" -}}
{{- if (index $store $name).name -}}
{{- fail (printf "store.%s needs store.url: without it, no database is used" $name) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* Annotations of an object that exists only while helm uninstall drains. The argument is its weight, which orders the hooks. */}}
{{- define "capstan.drainHook" -}}
helm.sh/hook: pre-delete
helm.sh/hook-weight: {{ . | quote }}
helm.sh/hook-delete-policy: before-hook-creation,hook-succeeded
{{- end -}}

{{/* Annotations of an object that deletes a policy: see policycleanup.yaml. The argument is its weight, which orders the hooks. */}}
{{- define "capstan.cleanupHook" -}}
helm.sh/hook: pre-upgrade,pre-rollback
helm.sh/hook-weight: {{ . | quote }}
helm.sh/hook-delete-policy: before-hook-creation,hook-succeeded
{{- end -}}
