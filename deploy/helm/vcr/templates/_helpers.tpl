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

{{/* What all pods have besides containers and volumes. */}}
{{- define "vcr.pod" -}}
automountServiceAccountToken: false
securityContext:
  {{- toYaml .Values.podSecurityContext | nindent 2 }}
{{- with .Values.imagePullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.affinity }}
affinity:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{/* The image of vcr and its rights. */}}
{{- define "vcr.image" -}}
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
  {{- include "vcr.pod" .context | nindent 2 }}
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
  replicas: {{ .of.replicas }}
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
spec:
  type: {{ .service.type }}
  selector:
    {{- include "vcr.selector" . | nindent 4 }}
  ports:
    - name: http
      port: {{ .service.port }}
      targetPort: http
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
