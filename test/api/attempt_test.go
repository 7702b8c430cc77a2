package api_test

import (
	"context"
	"encoding/json"
	"errors"
	"regexp"
	"slices"
	"strings"

	jsonpatch "github.com/evanphx/json-patch/v5"
	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/manifest"
)

// merged returns a manifest with a patch merged into it. Both are YAML; a null in the patch removes a field.
func merged(base, patch string) *unstructured.Unstructured {
	GinkgoHelper()
	original, err := yaml.YAMLToJSON([]byte(base))
	Expect(err).NotTo(HaveOccurred(), "the base manifest must be YAML")
	change, err := yaml.YAMLToJSON([]byte(patch))
	Expect(err).NotTo(HaveOccurred(), "the patch must be YAML")
	result, err := jsonpatch.MergePatch(original, change)
	Expect(err).NotTo(HaveOccurred())
	object := &unstructured.Unstructured{}
	Expect(object.UnmarshalJSON(result)).To(Succeed())
	return object
}

// accepted asserts that both the API server and the loader of manifests accept the object and produce the same
// spec. It returns that spec, with its defaults.
func accepted(ctx context.Context, base, patch string) map[string]any {
	GinkgoHelper()
	object, set := acceptedByBoth(ctx, base, patch)
	spec, _, err := unstructured.NestedMap(object.Object, "spec")
	Expect(err).NotTo(HaveOccurred())
	stored, loaded := empty(object.GetKind()), fromSet(set, object)
	Expect(runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, stored)).To(Succeed())
	Expect(specOf(loaded)).To(MatchJSON(specOf(stored)), "loader and API server must fill in the same defaults")
	return spec
}

// acceptedByBoth asserts that the API server and the loader of manifests accept the object, and returns both results.
func acceptedByBoth(ctx context.Context, base, patch string) (*unstructured.Unstructured, *manifest.Set) {
	GinkgoHelper()
	object := merged(base, patch)
	text := manifestOf(object)
	Expect(create(ctx, object)).To(Succeed(), "the API server must accept the object")
	set, err := load(ctx, text)
	Expect(err).NotTo(HaveOccurred(), "the loader must accept what the API server accepts")
	return object, set
}

// acceptedButNotLoaded is like accepted, for an object of a kind that the loader checks and does not keep. It returns
// the spec.
func acceptedButNotLoaded(ctx context.Context, base, patch string) map[string]any {
	GinkgoHelper()
	object, set := acceptedByBoth(ctx, base, patch)
	Expect(set.Ignored).To(HaveLen(1), "the loader must report the object as ignored")
	spec, _, err := unstructured.NestedMap(object.Object, "spec")
	Expect(err).NotTo(HaveOccurred())
	return spec
}

// empty returns an empty object of one of Capstan's kinds.
func empty(kind string) client.Object {
	GinkgoHelper()
	object, err := apiClient.Scheme().New(v1alpha1.GroupVersion.WithKind(kind))
	Expect(err).NotTo(HaveOccurred())
	return object.(client.Object)
}

// fromSet returns the object of the set that has the kind and the name of like. For a Turn, it returns the only Turn of
// the set.
func fromSet(set *manifest.Set, like *unstructured.Unstructured) (object client.Object) {
	GinkgoHelper()
	var ok bool
	switch kind := like.GetKind(); kind {
	case "Agent":
		object, ok = set.Agent(like.GetNamespace(), like.GetName())
	case "ModelProvider":
		object, ok = set.ModelProvider(like.GetNamespace(), like.GetName())
	case "PromptProfile":
		object, ok = set.PromptProfile(like.GetNamespace(), like.GetName())
	case "Session":
		object, ok = set.Session(like.GetNamespace(), like.GetName())
	case "ToolServer":
		object, ok = set.ToolServer(like.GetNamespace(), like.GetName())
	case "Turn":
		turn, err := set.Turn("")
		object, ok = turn, err == nil
	default:
		Fail("the set has no objects of kind " + kind)
	}
	Expect(ok).To(BeTrue(), "the loader must keep the object")
	return object
}

// specOf returns the spec of a typed object as JSON.
func specOf(object client.Object) string {
	GinkgoHelper()
	content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(object)
	Expect(err).NotTo(HaveOccurred())
	return asJSON(content["spec"])
}

// rejected asserts that the API server rejects the object because of a field, with a message that contains the given
// text. The loader of manifests must report errors in the same fields.
func rejected(ctx context.Context, base, patch, field, message string) {
	GinkgoHelper()
	object := merged(base, patch)
	text := manifestOf(object)
	faults := faultsOf(create(ctx, object))
	Expect(faults).To(ContainElement(And(HaveField("Field", field), HaveField("Message", ContainSubstring(message)))),
		"the API server must name the field and the rule")

	_, err := load(ctx, text)
	problems, ok := errors.AsType[manifest.Errors](err)
	Expect(ok).To(BeTrue(), "the loader must reject what the API server rejects, and report the errors: %v", err)
	var found []string
	for _, problem := range problems {
		found = append(found, problem.Field)
	}
	if faults[0].Message == unknownField {
		// The API server stops at unknown fields. The loader continues and also reports fields that are missing
		// because of them.
		Expect(found).To(ContainElements(fieldsOf(faults)))
	} else {
		Expect(found).To(ConsistOf(fieldsOf(faults)), "loader and API server must report errors in the same fields")
	}
	Expect(err).To(MatchError(ContainSubstring(message)))
}

// fault is the error of one field, in an API server's rejection of an object.
type fault struct{ Field, Message string }

const unknownField = "unknown field"

// unknownFields finds the names in the API server's error about unknown fields, which has no causes.
var unknownFields = regexp.MustCompile(`unknown field "([^"]+)"`)

func faultsOf(err error) []fault {
	GinkgoHelper()
	Expect(err).To(HaveOccurred(), "the API server must reject the object")
	status, ok := errors.AsType[*apierrors.StatusError](err)
	Expect(ok).To(BeTrue(), "the error must come from the API server: %v", err)
	var faults []fault
	if apierrors.IsInvalid(err) {
		for _, cause := range status.ErrStatus.Details.Causes {
			// The API server's note that it skipped the CEL rules is not an error of a field.
			if !strings.Contains(cause.Message, "some validation rules were not checked") {
				faults = append(faults, fault{cause.Field, cause.Message})
			}
		}
		return faults
	}
	for _, match := range unknownFields.FindAllStringSubmatch(status.ErrStatus.Message, -1) {
		faults = append(faults, fault{match[1], unknownField})
	}
	Expect(faults).NotTo(BeEmpty(), "the error must name a field: %v", err)
	return faults
}

func fieldsOf(faults []fault) []string {
	fields := make([]string, 0, len(faults))
	for _, f := range faults {
		fields = append(fields, f.Field)
	}
	slices.Sort(fields)
	return fields
}

// create makes a dry run of a creation: the API server checks the object and stores nothing.
func create(ctx context.Context, object *unstructured.Unstructured) error {
	return apiClient.Create(ctx, object, client.DryRunAll, client.FieldValidation("Strict"))
}

func load(ctx context.Context, text string) (*manifest.Set, error) {
	return manifest.Load(ctx, []string{"-"}, manifest.Options{Stdin: strings.NewReader(text)})
}

// manifestOf returns the object as text. The caller must call it before create, which adds the API server's defaults to
// the object.
func manifestOf(object *unstructured.Unstructured) string { return asJSON(object.Object) }

func asJSON(value any) string {
	GinkgoHelper()
	text, err := json.Marshal(value)
	Expect(err).NotTo(HaveOccurred())
	return string(text)
}
