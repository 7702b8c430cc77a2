package manifest

import (
	"fmt"
	"io/fs"
	"sync"

	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	structuralschema "k8s.io/apiextensions-apiserver/pkg/apiserver/schema"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/cel"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/defaulting"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/validation"
	celconfig "k8s.io/apiserver/pkg/apis/cel"
	"sigs.k8s.io/yaml"

	"github.com/capstan-dev/capstan/config/crd"
)

// kindSchema holds the validators that an API server derives from a CRD. It is safe for concurrent use.
type kindSchema struct {
	structural *structuralschema.Structural
	openAPI    validation.SchemaValidator
	rules      *cel.Validator
}

// schemas returns the schema of each of Capstan's kinds. It compiles the CEL rules only on the first call, because that
// takes tens of milliseconds.
var schemas = sync.OnceValues(compileSchemas)

func compileSchemas() (map[string]*kindSchema, error) {
	files, err := fs.Glob(crd.Bases, "bases/*.yaml")
	if err != nil {
		return nil, fmt.Errorf("failed to list the embedded CRDs: %w", err)
	}
	compiled := make(map[string]*kindSchema, len(files))
	for _, file := range files {
		text, err := crd.Bases.ReadFile(file)
		if err != nil {
			return nil, fmt.Errorf("failed to read the embedded CRD %q: %w", file, err)
		}
		definition := &apiextensionsv1.CustomResourceDefinition{}
		if err := yaml.UnmarshalStrict(text, definition); err != nil {
			return nil, fmt.Errorf("failed to parse the embedded CRD %q: %w", file, err)
		}
		schema, err := compile(definition)
		if err != nil {
			return nil, fmt.Errorf("failed to compile the embedded CRD %q: %w", file, err)
		}
		compiled[definition.Spec.Names.Kind] = schema
	}
	return compiled, nil
}

// compile performs the steps of an API server that starts to serve a CRD. Capstan's CRDs have one version.
func compile(definition *apiextensionsv1.CustomResourceDefinition) (*kindSchema, error) {
	internal := &apiextensions.JSONSchemaProps{}
	external := definition.Spec.Versions[0].Schema.OpenAPIV3Schema
	if err := apiextensionsv1.Convert_v1_JSONSchemaProps_To_apiextensions_JSONSchemaProps(external, internal, nil); err != nil {
		return nil, fmt.Errorf("failed to convert the schema: %w", err)
	}
	structural, err := structuralschema.NewStructural(internal)
	if err != nil {
		return nil, fmt.Errorf("failed to make the schema structural: %w", err)
	}
	structural = structural.DeepCopy() // because PruneDefaults changes defaults that NewSchemaValidator reads below
	if err := defaulting.PruneDefaults(structural); err != nil {
		return nil, fmt.Errorf("failed to prune the defaults: %w", err)
	}
	openAPI, _, err := validation.NewSchemaValidator(internal)
	if err != nil {
		return nil, fmt.Errorf("failed to make a validator: %w", err)
	}
	return &kindSchema{
		structural: structural,
		openAPI:    openAPI,
		rules:      cel.NewValidator(structural, true, celconfig.PerCallLimit),
	}, nil
}
