package gitops_test

import (
	"encoding/json"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// apply applies an object by server-side apply, as GitOps tools do.
func apply(t *testing.T, o *unstructured.Unstructured, owner string, options ...client.ApplyOption) *unstructured.Unstructured {
	t.Helper()
	applied := o.DeepCopy()
	err := apiClient.Apply(t.Context(), client.ApplyConfigurationFromUnstructured(applied), append(options, client.FieldOwner(owner))...)
	if err != nil {
		t.Fatalf("%s %s: %v", o.GetKind(), o.GetName(), err)
	}
	return applied
}

// TestRepeatedApplyChangesNothing checks that a repeated apply, with or without force, leaves every
// object unchanged byte for byte after the manager has done its work. The manager and the tool must not own the
// same field.
func TestRepeatedApplyChangesNothing(t *testing.T) {
	s := newTestEnv(t)
	var files []string
	for _, pattern := range []string{"examples/quickstart/*.yaml", "examples/tools/*.yaml", "examples/gitops/agents/*.yaml"} {
		found, err := filepath.Glob(filepath.Join(root, pattern))
		if err != nil || len(found) == 0 {
			t.Fatalf("%s: %v, %v", pattern, found, err)
		}
		files = append(files, found...)
	}
	objects := s.objects(files...)
	objects = append(objects, secretOf(s))
	s.runManager()
	for owner, options := range map[string][]client.ApplyOption{
		"kustomize-controller": {client.ForceOwnership}, "argocd-controller": nil,
	} {
		for _, o := range objects {
			apply(t, o, owner, options...)
		}
	}
	for _, o := range objects {
		switch o.GetKind() {
		case "Turn":
			want := map[string]string{"open-loops": "Completed", "printer-works": "AwaitingApproval"}[o.GetName()]
			s.waitForState("Turn", o.GetName(), want)
		case "Secret":
		default:
			s.waitForState(o.GetKind(), o.GetName(), "Ready")
		}
	}
	for owner, options := range map[string][]client.ApplyOption{
		"kustomize-controller": {client.ForceOwnership}, "argocd-controller": nil,
	} {
		for _, o := range objects {
			before := s.live(o)
			// Both tools use a dry run to find differences.
			dry := apply(t, o, owner, append(options, client.DryRunAll)...)
			if d := cmp.Diff(before.Object, stripped(dry, before).Object); d != "" {
				t.Errorf("%s %s: a dry run of %s finds a difference (-live +applied):\n%s", o.GetKind(), o.GetName(), owner, d)
			}
			apply(t, o, owner, options...)
			after := s.live(o)
			if before.GetResourceVersion() != after.GetResourceVersion() || before.GetGeneration() != after.GetGeneration() {
				t.Errorf("%s %s: an apply by %s has changed the object: %s", o.GetKind(), o.GetName(), owner,
					cmp.Diff(before.Object, after.Object))
			}
		}
	}
	for _, o := range objects {
		s.checkOwners(s.live(o))
	}
}

// stripped returns the result of a dry run with the managedFields of the live object, because the API server gives
// them a new time.
func stripped(dry, live *unstructured.Unstructured) *unstructured.Unstructured {
	dry = dry.DeepCopy()
	dry.SetManagedFields(live.GetManagedFields())
	return dry
}

func secretOf(s *testEnv) *unstructured.Unstructured {
	o := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "v1", "kind": "Secret",
		"data": map[string]any{"apiKey": "ZGVtby1rZXk="}, "type": "Opaque",
	}}
	o.SetNamespace(s.namespace)
	o.SetName("gitops-demo-model")
	return o
}

// live reads the current state of an object.
func (s *testEnv) live(o *unstructured.Unstructured) *unstructured.Unstructured {
	s.t.Helper()
	current := &unstructured.Unstructured{}
	current.SetGroupVersionKind(o.GroupVersionKind())
	if err := apiClient.Get(s.t.Context(), client.ObjectKeyFromObject(o), current); err != nil {
		s.t.Fatal(err)
	}
	return current
}

// checkOwners checks that GitOps tools own no field of the status, and that the manager owns fields of the status and
// none of the spec.
func (s *testEnv) checkOwners(o *unstructured.Unstructured) {
	s.t.Helper()
	for _, m := range o.GetManagedFields() {
		var fields map[string]any
		if err := json.Unmarshal(m.FieldsV1.GetRawBytes(), &fields); err != nil {
			s.t.Fatal(err)
		}
		_, ownsStatus := fields["f:status"]
		_, ownsSpec := fields["f:spec"]
		tool := m.Manager == "kustomize-controller" || m.Manager == "argocd-controller"
		if tool == ownsStatus && o.GetKind() != "Secret" || !tool && ownsSpec {
			s.t.Errorf("%s %s: %s owns %s", o.GetKind(), o.GetName(), m.Manager, m.FieldsV1.GetRawString())
		}
	}
}
