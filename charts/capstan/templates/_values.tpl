{{/*
Adds the values that are missing, each with the default of values.yaml. helm upgrade --reuse-values gives a chart the values of the chart before it,
which had fewer. files/defaults.yaml has each default by its path; those that null means something for are not among them.
*/}}
{{- define "capstan.fillValues" -}}
{{- range .Files.Get "files/defaults.yaml" | fromYamlArray -}}
{{- $level := $.Values -}}
{{- range initial .path -}}
{{- if not (kindIs "map" (get $level .)) -}}{{- $_ := set $level . dict -}}{{- end -}}
{{- $level = get $level . -}}
{{- end -}}
{{- if kindIs "invalid" (index $level (last .path)) -}}{{- $_ := set $level (last .path) .value -}}{{- end -}}
{{- end -}}
{{- end -}}
