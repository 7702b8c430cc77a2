package manifest

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/objectmeta"
	"k8s.io/apimachinery/pkg/api/operation"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// readMeta returns the metadata of a Secret or a ConfigMap as an API server would store it on creation. fields lists
// the allowed fields of the object, because these kinds have no CRD with a schema. The findings are about the metadata,
// and about unknown fields.
func readMeta(ctx context.Context, object map[string]any, namespace string, fields []string) (*metav1.ObjectMeta, []finding) {
	meta, present, unknown, err := objectmeta.GetObjectMetaWithOptions(object, objectmeta.ObjectMetaOptions{ReturnUnknownFieldPaths: true})
	if err != nil {
		return &metav1.ObjectMeta{Name: nameOf(object), Namespace: namespace}, []finding{malformed(err)}
	}
	if !present {
		meta = &metav1.ObjectMeta{}
	}
	for _, name := range slices.Sorted(maps.Keys(object)) {
		if !slices.Contains(fields, name) {
			unknown = append(unknown, name)
		}
	}
	var findings []finding
	for _, path := range unknown {
		findings = append(findings, finding{path, "unknown field: check its spelling and indentation"})
	}
	dropServerFields(meta)
	if meta.Namespace == "" {
		meta.Namespace = namespace
	}
	for _, problem := range apivalidation.ValidateObjectMetaDeclaratively(ctx, operation.Create, meta, nil, true,
		apivalidation.NameIsDNSSubdomain, field.NewPath("metadata"), true) {
		findings = append(findings, finding{problem.Field, shorten(problem).ErrorBody()})
	}
	return meta, findings
}

func readImmutable(object map[string]any) (*bool, []finding) {
	immutable, ok := object["immutable"].(bool)
	switch {
	case ok:
		return &immutable, nil
	case object["immutable"] != nil:
		return nil, []finding{{"immutable", "must be true or false"}}
	}
	return nil, nil
}

// eachValue calls set with each entry of a field, and returns the findings. set returns a message if the value is
// invalid, or "".
func eachValue(object map[string]any, name string, set func(key, value string) (problem string)) []finding {
	if object[name] == nil {
		return nil
	}
	entries, ok := object[name].(map[string]any)
	if !ok {
		return []finding{{name, "must be a map of keys and values"}}
	}
	var findings []finding
	for _, key := range slices.Sorted(maps.Keys(entries)) {
		path := fmt.Sprintf("%s[%s]", name, key)
		for _, problem := range validation.IsConfigMapKey(key) {
			findings = append(findings, finding{path, problem})
		}
		value, ok := entries[key].(string)
		if !ok && entries[key] != nil {
			findings = append(findings, finding{path, "must be a string: put it in quotes"})
			continue
		}
		if problem := set(key, value); problem != "" {
			findings = append(findings, finding{path, problem})
		}
	}
	return findings
}
