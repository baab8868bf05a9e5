{{/* Name of an object of a component; arguments: context, component. */}}
{{- define "vcr.name" -}}
{{- printf "%s-%s" (.context.Release.Name | trunc 40 | trimSuffix "-") .component -}}
{{- end }}

{{- define "vcr.selector" -}}
app.kubernetes.io/name: {{ .context.Chart.Name }}
app.kubernetes.io/instance: {{ .context.Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{- end }}

{{- define "vcr.labels" -}}
{{ include "vcr.selector" . }}
app.kubernetes.io/version: {{ .context.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .context.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .context.Chart.Name .context.Chart.Version | quote }}
{{- end }}

{{- define "vcr.metadata" -}}
name: {{ include "vcr.name" . }}
labels:
  {{- include "vcr.labels" . | nindent 2 }}
{{- end }}

{{/* Metadata of a pod template. */}}
{{- define "vcr.podMetadata" -}}
labels:
  {{- include "vcr.labels" . | nindent 2 }}
  {{- with .context.Values.podLabels }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- with .context.Values.podAnnotations }}
annotations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{/*
Fields of all pods except containers and volumes; arguments: context, scheduling (of the workload, whose
fields replace those of the chart).
*/}}
{{- define "vcr.pod" -}}
{{- $values := .context.Values }}
{{- $of := .scheduling }}
automountServiceAccountToken: false
securityContext:
  {{- toYaml $values.podSecurityContext | nindent 2 }}
{{- with $values.imagePullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- range $field := list "nodeSelector" "tolerations" "affinity" "topologySpreadConstraints" }}
{{- with (hasKey $of $field) | ternary (get $of $field) (get $values $field) }}
{{ $field }}:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}
{{- with default $values.priorityClassName $of.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- end }}

{{/* The image of vcr and its rights. */}}
{{- define "vcr.image" -}}
{{- if not .Values.image.repository }}
{{- fail "image.repository is not set: no public image of vcr exists. Build one with `docker build -t REGISTRY/vcr .`, push it to a registry that the cluster can pull from, and pass `--set image.repository=REGISTRY/vcr`." }}
{{- end }}
image: {{ printf "%s:%s" .Values.image.repository (default .Chart.AppVersion .Values.image.tag) | quote }}
imagePullPolicy: {{ .Values.image.pullPolicy }}
securityContext:
  {{- toYaml .Values.securityContext | nindent 2 }}
{{- end }}

{{- define "vcr.tmpVolume" -}}
- name: tmp
  emptyDir:
    sizeLimit: {{ .Values.tmpSizeLimit }}
{{- end }}

{{- define "vcr.tmpMount" -}}
- name: tmp
  mountPath: /tmp
{{- end }}

{{/* Probes of an HTTP server; arguments: ready, live. */}}
{{- define "vcr.probes" -}}
startupProbe:
  httpGet:
    path: {{ .ready }}
    port: http
  periodSeconds: 2
  failureThreshold: 60
readinessProbe:
  httpGet:
    path: {{ .ready }}
    port: http
  periodSeconds: 5
livenessProbe:
  httpGet:
    path: {{ .live }}
    port: http
  periodSeconds: 10
  failureThreshold: 6
{{- end }}

{{/* The pod template of a server; arguments: context, component, of (its values), args, env, ports. */}}
{{- define "vcr.servePod" -}}
metadata:
  {{- include "vcr.podMetadata" . | nindent 2 }}
spec:
  {{- include "vcr.pod" (dict "context" .context "scheduling" .of.scheduling) | nindent 2 }}
  containers:
    - name: vcr
      {{- include "vcr.image" .context | nindent 6 }}
      args:
        - serve
        - --host=0.0.0.0
        - --shutdown-timeout=20s
        {{- range concat .args .of.args }}
        - {{ . | quote }}
        {{- end }}
      env:
        - name: XDG_CACHE_HOME # of compiled guests
          value: /tmp/cache
        {{- with concat .env .of.env }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
      ports:
        - name: http
          containerPort: 8000
        {{- with .ports }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
      {{- include "vcr.probes" (dict "ready" "/ready" "live" "/health") | nindent 6 }}
      resources:
        {{- toYaml .of.resources | nindent 8 }}
      volumeMounts:
        {{- include "vcr.tmpMount" .context | nindent 8 }}
        {{- with .of.volumeMounts }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
    {{- with .of.sidecars }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  volumes:
    {{- include "vcr.tmpVolume" .context | nindent 4 }}
    {{- with .of.volumes }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
{{- end }}

{{/* A Deployment of servers; arguments as above. */}}
{{- define "vcr.serveDeployment" -}}
apiVersion: apps/v1
kind: Deployment
metadata:
  {{- include "vcr.metadata" . | nindent 2 }}
spec:
  {{- if not .of.autoscaling.enabled }}
  replicas: {{ .of.replicas }}
  {{- end }}
  selector:
    matchLabels:
      {{- include "vcr.selector" . | nindent 6 }}
  template:
    {{- include "vcr.servePod" . | nindent 4 }}
{{- end }}

{{/* A Service of the HTTP port; arguments: context, component, service. */}}
{{- define "vcr.service" -}}
apiVersion: v1
kind: Service
metadata:
  {{- include "vcr.metadata" . | nindent 2 }}
  {{- with .service.annotations }}
  annotations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
spec:
  type: {{ .service.type }}
  selector:
    {{- include "vcr.selector" . | nindent 4 }}
  ports:
    - name: http
      port: {{ .service.port }}
      targetPort: http
{{- end }}

{{/*
Objects that lead clients from outside the cluster to a Service; arguments: context, component, service,
exposed (values with the sections ingress and httpRoute).
*/}}
{{- define "vcr.exposure" -}}
{{- $name := include "vcr.name" . }}
{{- $port := .service.port }}
{{- with .exposed.ingress }}
{{- if .enabled }}
---
apiVersion: networking.k8s.io/v1
kind: Ingress
metadata:
  {{- include "vcr.metadata" $ | nindent 2 }}
  {{- with .annotations }}
  annotations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
spec:
  {{- with .className }}
  ingressClassName: {{ . }}
  {{- end }}
  {{- with .tls }}
  tls:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  rules:
    {{- range default (list "") .hosts }}
    - http:
        paths:
          - path: /
            pathType: Prefix
            backend:
              service:
                name: {{ $name }}
                port:
                  number: {{ $port }}
      {{- with . }}
      host: {{ . | quote }}
      {{- end }}
    {{- end }}
{{- end }}
{{- end }}
{{- with .exposed.httpRoute }}
{{- if .enabled }}
{{- if not .parentRefs }}
{{- fail (printf "the HTTPRoute of %s has no Gateway: set httpRoute.parentRefs, such as [{ name: gateway, namespace: gateways }]" $.component) }}
{{- end }}
---
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata:
  {{- include "vcr.metadata" $ | nindent 2 }}
  {{- with .annotations }}
  annotations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
spec:
  parentRefs:
    {{- toYaml .parentRefs | nindent 4 }}
  {{- with .hostnames }}
  hostnames:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  rules:
    - matches:
        - path:
            type: PathPrefix
            value: /
      backendRefs:
        - name: {{ $name }}
          port: {{ $port }}
{{- end }}
{{- end }}
{{- if and .context.Values.networkPolicy.enabled (or .exposed.ingress.enabled .exposed.httpRoute.enabled) }}
---
{{ include "vcr.ingressPolicy" (dict "context" .context "component" .component "suffix" "exposed" "from" .context.Values.networkPolicy.exposedTo "ports" (list "http")) }}
{{- end }}
{{- end }}

{{/* Disruption budget and autoscaler of a workload; arguments: context, component, of, kind. */}}
{{- define "vcr.scaling" -}}
{{- with .of.podDisruptionBudget }}
{{- if .enabled }}
---
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata:
  {{- include "vcr.metadata" $ | nindent 2 }}
spec:
  maxUnavailable: {{ .maxUnavailable }}
  selector:
    matchLabels:
      {{- include "vcr.selector" $ | nindent 6 }}
{{- end }}
{{- end }}
{{- with .of.autoscaling }}
{{- if .enabled }}
{{- if lt (int .maxReplicas) (int .minReplicas) }}
{{- fail (printf "autoscaling of %s: maxReplicas (%d) is less than minReplicas (%d)" $.component (int .maxReplicas) (int .minReplicas)) }}
{{- end }}
---
apiVersion: autoscaling/v2
kind: HorizontalPodAutoscaler
metadata:
  {{- include "vcr.metadata" $ | nindent 2 }}
spec:
  scaleTargetRef:
    apiVersion: apps/v1
    kind: {{ $.kind }}
    name: {{ include "vcr.name" $ }}
  minReplicas: {{ .minReplicas }}
  maxReplicas: {{ .maxReplicas }}
  metrics:
    {{- if .metrics }}
    {{- toYaml .metrics | nindent 4 }}
    {{- else }}
    - type: Resource
      resource:
        name: cpu
        target:
          type: Utilization
          averageUtilization: {{ .targetCPUUtilizationPercentage }}
    {{- end }}
{{- end }}
{{- end }}
{{- end }}

{{/*
A NetworkPolicy that admits further peers to pods which another policy covers; arguments: context,
component (empty: pods of all components), suffix, from, ports.
*/}}
{{- define "vcr.ingressPolicy" -}}
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata:
  name: {{ include "vcr.name" (dict "context" .context "component" (printf "%s-%s" .component .suffix | trimPrefix "-")) }}
  labels:
    {{- include "vcr.labels" (dict "context" .context "component" (default .suffix .component)) | nindent 4 }}
spec:
  podSelector:
    matchLabels:
      {{- if .component }}
      {{- include "vcr.selector" . | nindent 6 }}
      {{- else }}
      app.kubernetes.io/name: {{ .context.Chart.Name }}
      app.kubernetes.io/instance: {{ .context.Release.Name }}
      {{- end }}
  policyTypes: [Ingress]
  ingress:
    - from:
        {{- toYaml .from | nindent 8 }}
      ports:
        {{- range .ports }}
        - port: {{ . }}
        {{- end }}
{{- end }}

{{/* A NetworkPolicy; arguments: context, component, ingress, egress (lists of rules). */}}
{{- define "vcr.networkPolicy" -}}
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata:
  {{- include "vcr.metadata" . | nindent 2 }}
spec:
  podSelector:
    matchLabels:
      {{- include "vcr.selector" . | nindent 6 }}
  policyTypes: [Ingress, Egress]
  ingress:
    {{- toYaml .ingress | nindent 4 }}
  egress:
    {{- toYaml .egress | nindent 4 }}
{{- end }}

{{/* A claim; arguments: context, component, claim, accessMode. */}}
{{- define "vcr.claim" -}}
apiVersion: v1
kind: PersistentVolumeClaim
metadata:
  {{- include "vcr.metadata" . | nindent 2 }}
spec:
  accessModes: [{{ .accessMode }}]
  {{- with .claim.storageClassName }}
  storageClassName: {{ . }}
  {{- end }}
  resources:
    requests:
      storage: {{ .claim.size }}
{{- end }}
