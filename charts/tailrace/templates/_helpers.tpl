{{- define "tailrace.fullname" -}}
{{- if contains "tailrace" .Release.Name }}{{ .Release.Name | trunc 40 | trimSuffix "-" }}{{ else }}{{ printf "%s-tailrace" (.Release.Name | trunc 31 | trimSuffix "-") }}{{ end }}
{{- end }}

{{- define "tailrace.operator" -}}
{{ include "tailrace.fullname" . }}-operator
{{- end }}

{{- define "tailrace.minio" -}}
{{ include "tailrace.fullname" . }}-minio
{{- end }}

{{- define "tailrace.minioSecret" -}}
{{ .Values.minio.existingSecret | default (include "tailrace.minio" .) }}
{{- end }}

{{- define "tailrace.cluster" -}}
{{ .Values.cluster.name | default .Release.Name }}
{{- end }}

{{- define "tailrace.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end }}

{{- define "tailrace.sparkImage" -}}
{{ .Values.pipelines.image.repository }}:{{ .Values.pipelines.image.tag | default .Chart.AppVersion }}
{{- end }}

{{/* Labels that select pods: (list root component) */}}
{{- define "tailrace.selector" -}}
app.kubernetes.io/name: tailrace
app.kubernetes.io/instance: {{ (index . 0).Release.Name | quote }}
app.kubernetes.io/component: {{ index . 1 }}
{{- end }}

{{/* All labels of an object: (list root component) */}}
{{- define "tailrace.labels" -}}
{{ include "tailrace.selector" . }}
app.kubernetes.io/version: {{ (index . 0).Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ (index . 0).Release.Service }}
helm.sh/chart: {{ (index . 0).Chart.Name }}-{{ (index . 0).Chart.Version }}
{{- end }}

{{/* The restricted Pod Security Standard, with the user of the images. */}}
{{- define "tailrace.podSecurity" -}}
runAsNonRoot: true
runAsUser: 65532
runAsGroup: 65532
fsGroup: 65532
seccompProfile: {type: RuntimeDefault}
{{- end }}

{{- define "tailrace.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
runAsNonRoot: true
capabilities: {drop: [ALL]}
{{- end }}

{{/* Fails when the existing trial MinIO has another volume than minio.persistence specifies. The volumeClaimTemplates of a
StatefulSet cannot change, and the error of the API server does not name the value. A size can be written in several ways.
Only sizes with a single notation are compared here; the API server checks the others. */}}
{{- define "tailrace.minioVolumeStays" -}}
{{- $wanted := .Values.minio.persistence -}}
{{- $there := (lookup "apps/v1" "StatefulSet" .Release.Namespace (include "tailrace.minio" .) | default dict).spec -}}
{{- if $there -}}
{{- $fixed := "minio.persistence.%s cannot be changed after installation: it is %v. Keep this value, or uninstall and install again" -}}
{{- $claim := dict -}}
{{- range $there.volumeClaimTemplates | default list }}{{ $claim = .spec }}{{ end -}}
{{- if ne (not (empty $claim)) $wanted.enabled -}}
{{- fail (printf $fixed "enabled" (not (empty $claim))) -}}
{{- end -}}
{{- if $wanted.enabled -}}
{{- $class := $claim.storageClassName | default "" -}}
{{- if ne $class ($wanted.storageClass | default "") -}}
{{- fail (printf $fixed "storageClass" (quote $class)) -}}
{{- end -}}
{{- $size := $claim.resources.requests.storage -}}
{{- $plain := "^[1-9][0-9]{0,2}[KMGT]i$" -}}
{{- if and (ne $size $wanted.size) (regexMatch $plain $size) (regexMatch $plain $wanted.size) -}}
{{- fail (printf $fixed "size" $size) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end }}

{{/* Fails when an upgrade would delete a StreamCluster of this release, as one without the values of before does: cluster.enabled
is false by default. Only an upgrade looks, because the definition may be missing before. */}}
{{- define "tailrace.clusterStays" -}}
{{- $kind := "tailrace.io/v1alpha1/StreamCluster" -}}
{{- if and .Release.IsUpgrade (not .Values.cluster.allowDeletion) (.Capabilities.APIVersions.Has $kind) -}}
{{- $rendered := ternary (include "tailrace.cluster" .) "" .Values.cluster.enabled -}}
{{- $advice := "upgrade with --reset-then-reuse-values or with its values; to delete it, set cluster.allowDeletion=true" -}}
{{- range (lookup "tailrace.io/v1alpha1" "StreamCluster" .Release.Namespace "" | default dict).items | default list -}}
{{- $marks := .metadata.annotations | default dict -}}
{{- $ours := eq (get $marks "meta.helm.sh/release-name" | default "") $.Release.Name -}}
{{- $kept := or .metadata.deletionTimestamp (eq (get $marks "helm.sh/resource-policy" | default "") "keep") -}}
{{- if and $ours (not $kept) (ne .metadata.name $rendered) -}}
{{- fail (printf "this upgrade would delete the StreamCluster %s of this release, with its pods: %s" .metadata.name $advice) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end }}

{{/*
spec.tier2 of the StreamCluster: the given values, with defaults for the trial MinIO. The host name has no .svc, because
resolvers find it with one query less, and every new connection needs one. As JSON.
*/}}
{{- define "tailrace.tier2" -}}
{{- $given := (.Values.cluster.spec | default dict).tier2 | default dict -}}
{{- if .Values.minio.enabled -}}
{{- $endpoint := printf "http://%s.%s:9000" (include "tailrace.minio" .) .Release.Namespace -}}
{{- $known := dict "bucket" .Values.minio.bucket "endpoint" $endpoint "credentialsSecret" (include "tailrace.minioSecret" .) -}}
{{- mergeOverwrite $known $given | toJson -}}
{{- else -}}
{{- $given | toJson -}}
{{- end -}}
{{- end }}

{{/* Names of the Secrets that the operator may read. As JSON. */}}
{{- define "tailrace.secrets" -}}
{{- $names := .Values.operator.credentialsSecrets | default list -}}
{{- if .Values.cluster.enabled -}}
{{- with (include "tailrace.tier2" . | fromJson).credentialsSecret -}}
{{- $names = append $names . -}}
{{- end -}}
{{- end -}}
{{- if .Values.minio.enabled -}}
{{- $names = append $names (include "tailrace.minioSecret" .) -}}
{{- end -}}
{{- $names | uniq | sortAlpha | toJson -}}
{{- end }}

{{/* Rights of the operator in the namespaces that it serves. They include those that it grants to ServiceAccounts. */}}
{{- define "tailrace.rules" -}}
- apiGroups: [tailrace.io]
  resources: [streamclusters, streams, readergroups, pipelines]
  verbs: [get, list, watch, patch]
- apiGroups: [tailrace.io]
  resources: [streamclusters/status, streams/status, readergroups/status, pipelines/status]
  verbs: [get, patch, update]
- apiGroups: [tailrace.io]
  resources: [streamclusters/finalizers, streams/finalizers, readergroups/finalizers, pipelines/finalizers]
  verbs: [update]
- apiGroups: [coordination.k8s.io]
  resources: [leases]
  verbs: [get, list, create, update]
- apiGroups: [""]
  resources: [services]
  verbs: [get, list, create, patch, delete]
- apiGroups: [""]
  resources: [pods]
  verbs: [list]
- apiGroups: [""]
  resources: [configmaps, serviceaccounts]
  verbs: [get, create, patch]
- apiGroups: [apps]
  resources: [deployments, statefulsets]
  verbs: [get, list, watch, create, patch]
- apiGroups: [policy]
  resources: [poddisruptionbudgets]
  verbs: [get, create, patch]
- apiGroups: [rbac.authorization.k8s.io]
  resources: [roles, rolebindings]
  verbs: [get, create, patch]
- apiGroups: [""]
  resources: [namespaces]
  verbs: [get]
- apiGroups: [""]
  resources: [events]
  verbs: [create, patch]
{{- if .Values.pipelines.enabled }}
- apiGroups: [batch]
  resources: [jobs, cronjobs]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [apps]
  resources: [statefulsets]
  verbs: [delete]
- apiGroups: [""]
  resources: [pods]
  verbs: [get, list, watch, create, delete, deletecollection]
{{- end }}
{{- if .Values.operator.allSecrets }}
- apiGroups: [""]
  resources: [secrets]
  verbs: [get]
{{- else if include "tailrace.secrets" . | fromJsonArray }}
- apiGroups: [""]
  resources: [secrets]
  resourceNames: {{ include "tailrace.secrets" . }}
  verbs: [get]
{{- end }}
{{- end }}
