package manifest

import (
	"context"
	"encoding/base64"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// configMapFields are the allowed fields of a ConfigMap.
var configMapFields = []string{"apiVersion", "kind", "metadata", "immutable", "data", "binaryData"}

// addConfigMap adds a ConfigMap to the set.
func (l *loader) addConfigMap(ctx context.Context, at origin, object map[string]any) {
	configMap, findings := readConfigMap(ctx, object, l.opts.Namespace)
	key := objectKey{"ConfigMap", types.NamespacedName{Namespace: configMap.Namespace, Name: configMap.Name}}
	if l.register(at, key, findings) {
		l.set.configMaps[key.NamespacedName] = configMap
	}
}

func readConfigMap(ctx context.Context, object map[string]any, namespace string) (*corev1.ConfigMap, []finding) {
	configMap := &corev1.ConfigMap{Data: map[string]string{}, BinaryData: map[string][]byte{}}
	configMap.APIVersion, configMap.Kind = "v1", "ConfigMap"
	meta, findings := readMeta(ctx, object, namespace, configMapFields)
	configMap.ObjectMeta = *meta
	immutable, problems := readImmutable(object)
	configMap.Immutable = immutable
	findings = append(findings, problems...)
	size := 0
	findings = append(findings, eachValue(object, "data", func(key, value string) string {
		configMap.Data[key] = value
		size += len(value)
		return ""
	})...)
	findings = append(findings, eachValue(object, "binaryData", func(key, value string) string {
		decoded, err := base64.StdEncoding.DecodeString(value)
		if err != nil {
			return "must be base64: use data for a value that is not encoded"
		}
		if _, taken := configMap.Data[key]; taken {
			return "must not be in data too"
		}
		configMap.BinaryData[key] = decoded
		size += len(decoded)
		return ""
	})...)
	if size > corev1.MaxSecretSize { // a ConfigMap has the same bound
		findings = append(findings, finding{"", fmt.Sprintf("must hold at most %d bytes: it has %d", corev1.MaxSecretSize, size)})
	}
	return configMap, findings
}
