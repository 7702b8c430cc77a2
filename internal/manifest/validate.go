package manifest

import (
	"context"
	"encoding/json"
	"errors"
	"regexp"
	"slices"
	"strings"

	structuralschema "k8s.io/apiextensions-apiserver/pkg/apiserver/schema"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/defaulting"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/listtype"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/objectmeta"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/pruning"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/validation"
	"k8s.io/apimachinery/pkg/api/operation"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	celconfig "k8s.io/apiserver/pkg/apis/cel"

	"github.com/capstan-dev/capstan/internal/yamldoc"
)

// longestQuote is the maximum number of characters of an invalid value that an error message repeats.
const longestQuote = 64

// finding is a mistake in one field.
type finding struct {
	field, message string
}

// defaultAndValidate changes an object to the form that an API server would store on creation, and returns the mistakes
// for which an API server would reject it. The steps are strict decoding, pruning, defaulting and validation.
func (k *kindSchema) defaultAndValidate(ctx context.Context, object map[string]any, namespace string) (*metav1.ObjectMeta, []finding) {
	meta, present, unknown, err := objectmeta.GetObjectMetaWithOptions(object, objectmeta.ObjectMetaOptions{ReturnUnknownFieldPaths: true})
	if err != nil {
		return &metav1.ObjectMeta{}, []finding{malformed(err)}
	}
	if !present {
		meta = &metav1.ObjectMeta{}
	}
	unknown = append(unknown, pruning.PruneWithOptions(object, k.structural, true,
		structuralschema.UnknownFieldPathOptions{TrackUnknownFieldPaths: true})...)
	defaulting.PruneNonNullableNullsWithoutDefaults(object, k.structural)
	defaulting.Default(object, k.structural)
	delete(object, "status")
	findings := make([]finding, 0, len(unknown))
	for _, path := range unknown {
		findings = append(findings, finding{path, "unknown field: check its spelling and indentation"})
	}

	dropServerFields(meta)
	if meta.Namespace == "" {
		meta.Namespace = namespace
	}
	if err := objectmeta.SetObjectMeta(object, meta); err != nil {
		return meta, append(findings, malformed(err))
	}
	for _, problem := range k.validate(ctx, object, meta) {
		if problem.Field == "metadata.name" && problem.Type == field.ErrorTypeRequired {
			findings = append(findings, finding{problem.Field, "must be given: names are generated only in a cluster"})
			continue
		}
		findings = append(findings, finding{problem.Field, bodyOf(problem)})
	}
	return meta, withFields(findings)
}

// wrongFormat matches the message of an API server about a number that its field cannot hold. The error has no field.
var wrongFormat = regexp.MustCompile(`: Checked value must be of type integer with format (int\d+) in (\S+)$`)

// withFields sets the fields of findings about numbers that their fields cannot hold. It drops such a finding if
// another one is about the same field, because that one says more.
func withFields(all []finding) []finding {
	kept := make([]finding, 0, len(all))
	for _, f := range all {
		if parts := wrongFormat.FindStringSubmatch(f.message); parts != nil {
			f = finding{parts[2], "must be an integer that fits into " + strings.TrimPrefix(parts[1], "int") + " bits"}
			if slices.ContainsFunc(all, func(other finding) bool { return other.field == f.field }) {
				continue
			}
		}
		kept = append(kept, f)
	}
	return kept
}

// dropServerFields removes the fields that only an API server sets, so that the output of kubectl get -o yaml is a
// valid manifest.
func dropServerFields(meta *metav1.ObjectMeta) {
	meta.UID = ""
	meta.ResourceVersion = ""
	meta.Generation = 0
	meta.CreationTimestamp = metav1.Time{}
	meta.DeletionTimestamp = nil
	meta.DeletionGracePeriodSeconds = nil
	meta.ManagedFields = nil
}

// validate runs the checks of an API server on the creation of a custom resource, except those of embedded resources,
// which Capstan's schemas do not have.
func (k *kindSchema) validate(ctx context.Context, object map[string]any, meta *metav1.ObjectMeta) field.ErrorList {
	problems := apivalidation.ValidateObjectMetaDeclaratively(ctx, operation.Create, meta, nil, true,
		apivalidation.NameIsDNSSubdomain, field.NewPath("metadata"), true)
	problems = append(problems, validation.ValidateCustomResource(nil, object, k.openAPI)...)
	problems = append(problems, listtype.ValidateListSetsAndMaps(nil, k.structural, object)...)
	if blocksRules(problems) {
		return problems
	}
	violations, _ := k.rules.Validate(ctx, nil, k.structural, object, nil, celconfig.RuntimeCELCostBudget)
	return append(problems, violations...)
}

// blocksRules reports whether the mistakes make it unsafe to run CEL rules on the object. A value of a wrong type would
// make the rules fail, and a value that is too long could exceed the cost limit of the rules.
func blocksRules(problems field.ErrorList) bool {
	for _, problem := range problems {
		switch problem.Type { //nolint:exhaustive // because all other types leave the rules sound
		case field.ErrorTypeNotSupported, field.ErrorTypeRequired, field.ErrorTypeTooLong, field.ErrorTypeTooMany,
			field.ErrorTypeTypeInvalid:
			return true
		}
	}
	return false
}

// wrongType matches the end of an API server's message about a value of a wrong type.
var wrongType = regexp.MustCompile(`must be of type (\w+): "(\w+)"$`)

// bodyOf returns the message of an error without its field.
func bodyOf(problem *field.Error) string {
	if problem.Type == field.ErrorTypeTypeInvalid {
		if types := wrongType.FindStringSubmatch(problem.Detail); types != nil {
			return yamldoc.WrongType(types[1], types[2])
		}
	}
	return shorten(problem).ErrorBody()
}

// shorten returns the error with a long invalid value cut.
func shorten(problem *field.Error) *field.Error {
	short := *problem
	if text, ok := problem.BadValue.(string); ok {
		if runes := []rune(text); len(runes) > longestQuote {
			short.BadValue = string(runes[:longestQuote]) + "..."
		}
		return &short
	}
	if text, err := json.Marshal(problem.BadValue); err == nil && len(text) > longestQuote {
		short.BadValue = "..."
	}
	return &short
}

// malformed returns a finding for the part of the metadata that has a wrong type.
func malformed(err error) finding {
	path := "metadata"
	if wrong, ok := errors.AsType[*json.UnmarshalTypeError](err); ok {
		if wrong.Field != "" {
			path += "." + wrong.Field
		}
		want := wrong.Type.Kind().String()
		message := yamldoc.WrongType(want, wrong.Value)
		if want == "string" && (wrong.Field == "labels" || wrong.Field == "annotations") { // the error has no key
			message = "each value " + message
		}
		return finding{path, message}
	}
	return finding{path, "must be object metadata, such as {name: example}"}
}
