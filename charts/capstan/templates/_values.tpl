{{/*
Adds missing values, with the defaults of values.yaml. helm upgrade --reuse-values uses the values of the previous chart, which
had fewer. files/defaults.yaml has each default by its path, except for values that can be null.
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
