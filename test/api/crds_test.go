package api_test

import (
	"fmt"
	"io/fs"
	"slices"
	"strings"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"sigs.k8s.io/yaml"

	"github.com/capstan-dev/capstan/config/crd"
)

// definitions returns the generated CustomResourceDefinitions, sorted by kind.
func definitions() ([]*apiextensionsv1.CustomResourceDefinition, error) {
	files, err := fs.Glob(crd.Bases, "bases/*.yaml")
	if err != nil {
		return nil, fmt.Errorf("failed to list the generated CRDs: %w", err)
	}
	found := make([]*apiextensionsv1.CustomResourceDefinition, 0, len(files))
	for _, file := range files {
		text, err := crd.Bases.ReadFile(file)
		if err != nil {
			return nil, fmt.Errorf("failed to read %q: %w", file, err)
		}
		definition := &apiextensionsv1.CustomResourceDefinition{}
		if err := yaml.UnmarshalStrict(text, definition); err != nil {
			return nil, fmt.Errorf("failed to parse %q: %w", file, err)
		}
		found = append(found, definition)
	}
	slices.SortFunc(found, func(a, b *apiextensionsv1.CustomResourceDefinition) int {
		return strings.Compare(a.Spec.Names.Kind, b.Spec.Names.Kind)
	})
	return found, nil
}

// schemaOf returns the schema of a CRD's only version.
func schemaOf(definition *apiextensionsv1.CustomResourceDefinition) *apiextensionsv1.JSONSchemaProps {
	return definition.Spec.Versions[0].Schema.OpenAPIV3Schema
}

// walk visits each schema below parent, depth first and sorted by name. The path of a list's items ends with "[]",
// the path of a map's values with "{}".
func walk(path string, parent *apiextensionsv1.JSONSchemaProps, visit func(path string, s *apiextensionsv1.JSONSchemaProps)) {
	names := make([]string, 0, len(parent.Properties))
	for name := range parent.Properties {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		child := parent.Properties[name]
		childPath := strings.TrimPrefix(path+"."+name, ".")
		visit(childPath, &child)
		walk(childPath, &child, visit)
	}
	if parent.Items != nil && parent.Items.Schema != nil {
		visit(path+"[]", parent.Items.Schema)
		walk(path+"[]", parent.Items.Schema, visit)
	}
	if parent.AdditionalProperties != nil && parent.AdditionalProperties.Schema != nil {
		visit(path+"{}", parent.AdditionalProperties.Schema)
		walk(path+"{}", parent.AdditionalProperties.Schema, visit)
	}
}

// isStandard reports whether Kubernetes itself describes and bounds a path: the type and object metadata, and the
// fields of a condition.
func isStandard(path string) bool {
	return path == "apiVersion" || path == "kind" || path == "metadata" || strings.HasPrefix(path, "status.conditions[]")
}
