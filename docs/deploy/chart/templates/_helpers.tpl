{{/* The addresses of the servers: of the configuration, or what kubeadm's is said to have. */}}
{{- define "proxyc.health" -}}
{{- if .Values.configuration }}{{ .Values.configuration.healthzBindAddress | default "0.0.0.0:10256" }}{{ else }}{{ .Values.kubeadm.healthzBindAddress }}{{ end }}
{{- end }}
{{- define "proxyc.metrics" -}}
{{- if .Values.configuration }}{{ .Values.configuration.metricsBindAddress | default "127.0.0.1:10249" }}{{ else }}{{ .Values.kubeadm.metricsBindAddress }}{{ end }}
{{- end }}
{{- define "proxyc.port" -}}
{{ regexFind "[0-9]+$" . }}
{{- end }}
{{/* An address that the node itself reaches. */}}
{{- define "proxyc.host" -}}
{{- $host := regexReplaceAll ":[0-9]+$" . "" | trimPrefix "[" | trimSuffix "]" -}}
{{- if eq $host "0.0.0.0" }}127.0.0.1{{ else if eq $host "::" }}::1{{ else }}{{ $host }}{{ end }}
{{- end }}
{{- define "proxyc.remote" -}}
{{- if not (or (hasPrefix "127." .) (hasPrefix "[::1]" .)) }}yes{{ end }}
{{- end }}
{{- define "proxyc.configMap" -}}
{{- if .Values.configuration }}proxyc{{ else }}{{ .Values.kubeadm.configMap }}{{ end }}
{{- end }}
{{/* What a start takes at most, by docs/reference/performance.md; in whole 16Mi. */}}
{{- define "proxyc.memory" -}}
{{- $bytes := addf 50e6 (mulf 4500 .services) (mulf 450 .endpoints) -}}
{{ mul 16 (ceil (divf $bytes 16777216)) }}Mi
{{- end }}
{{- define "proxyc.resources" -}}
{{- $requests := dict "memory" (include "proxyc.memory" .Values.clusterSize) -}}
{{ toYaml (mergeOverwrite (dict "requests" $requests) (deepCopy .Values.resources)) }}
{{- end }}
{{- define "proxyc.pull" -}}
{{- with .Values.imagePullPolicy }}
imagePullPolicy: {{ . }}
{{- end }}
{{- end }}
