package gitops_test

import (
	"encoding/json"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// apply does what GitOps tools do on the server's side.
func apply(t *testing.T, o *unstructured.Unstructured, owner string, options ...client.ApplyOption) *unstructured.Unstructured {
	t.Helper()
	applied := o.DeepCopy()
	err := apiClient.Apply(t.Context(), client.ApplyConfigurationFromUnstructured(applied), append(options, client.FieldOwner(owner))...)
	if err != nil {
		t.Fatalf("%s %s: %v", o.GetKind(), o.GetName(), err)
	}
	return applied
}

// TestAnApplyThatChangesNothingChangesNothing: once the manager has done its work, the same apply, with force or without, leaves every
// object byte for byte as it is. Nor do the manager and the tool own the same field.
func TestAnApplyThatChangesNothingChangesNothing(t *testing.T) {
	s := newStage(t)
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
			s.reaches("Turn", o.GetName(), want)
		case "Secret":
		default:
			s.reaches(o.GetKind(), o.GetName(), "Ready")
		}
	}
	for owner, options := range map[string][]client.ApplyOption{
		"kustomize-controller": {client.ForceOwnership}, "argocd-controller": nil,
	} {
		for _, o := range objects {
			before := s.live(o)
			// A dry run is how both tools find out whether anything differs.
			dry := apply(t, o, owner, append(options, client.DryRunAll)...)
			if d := cmp.Diff(before.Object, stripped(dry, before).Object); d != "" {
				t.Errorf("%s %s: a dry run of %s finds a difference (-live +applied):\n%s", o.GetKind(), o.GetName(), owner, d)
			}
			apply(t, o, owner, options...)
			after := s.live(o)
			if before.GetResourceVersion() != after.GetResourceVersion() || before.GetGeneration() != after.GetGeneration() {
				t.Errorf("%s %s: the apply of %s has changed it: %s", o.GetKind(), o.GetName(), owner, cmp.Diff(before.Object, after.Object))
			}
		}
	}
	for _, o := range objects {
		s.ownedOnce(s.live(o))
	}
}

// stripped returns the answer of a dry run with what a real answer would have: the API server gives managedFields a new time.
func stripped(dry, live *unstructured.Unstructured) *unstructured.Unstructured {
	dry = dry.DeepCopy()
	dry.SetManagedFields(live.GetManagedFields())
	return dry
}

func secretOf(s *stage) *unstructured.Unstructured {
	o := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "v1", "kind": "Secret", "data": map[string]any{"apiKey": "ZGVtby1rZXk="}, "type": "Opaque"}}
	o.SetNamespace(s.namespace)
	o.SetName("gitops-demo-model")
	return o
}

// live reads an object as it is now.
func (s *stage) live(o *unstructured.Unstructured) *unstructured.Unstructured {
	s.t.Helper()
	now := &unstructured.Unstructured{}
	now.SetGroupVersionKind(o.GroupVersionKind())
	if err := apiClient.Get(s.t.Context(), client.ObjectKeyFromObject(o), now); err != nil {
		s.t.Fatal(err)
	}
	return now
}

// ownedOnce checks that tools own no field of the status, and the manager nothing else.
func (s *stage) ownedOnce(o *unstructured.Unstructured) {
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
