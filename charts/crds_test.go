package charts_test

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
)

// generatedCRDs returns the CRDs of config/crd/bases, by name.
func generatedCRDs(t *testing.T) map[string]*apiextensionsv1.CustomResourceDefinition {
	t.Helper()
	paths, err := filepath.Glob("../config/crd/bases/*.yaml")
	if err != nil {
		t.Fatal(err)
	}
	crds := map[string]*apiextensionsv1.CustomResourceDefinition{}
	for _, path := range paths {
		data, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		crd := one[*apiextensionsv1.CustomResourceDefinition](t, decode(t, data))
		crds[crd.Name] = crd
	}
	if len(crds) == 0 {
		t.Fatal("found no CRD in config/crd/bases")
	}
	return crds
}

func TestInstalledCRDsMatchGeneratedCRDs(t *testing.T) {
	for name, crds := range map[string][]*apiextensionsv1.CustomResourceDefinition{
		"Chart":  renderCRDs(t),
		"Config": every[*apiextensionsv1.CustomResourceDefinition](renderConfig(t)),
	} {
		t.Run(name, func(t *testing.T) {
			want := generatedCRDs(t)
			for _, crd := range crds {
				generated, ok := want[crd.Name]
				if !ok {
					t.Errorf("CRD %s is not in config/crd/bases, or is installed twice", crd.Name)
					continue
				}
				delete(want, crd.Name)
				// An installation may add labels and the annotations that make Helm and Argo CD keep the CRD.
				crd.Labels = nil
				for annotation := range keepAnnotations {
					delete(crd.Annotations, annotation)
				}
				if !cmp.Equal(generated, crd) { // a diff would be too long
					t.Errorf("CRD %s differs from config/crd/bases: run go run ./hack/chart", crd.Name)
				}
			}
			for missing := range want {
				t.Errorf("CRD %s is missing", missing)
			}
		})
	}
}

func TestBracesInCRDsAreNotEvaluated(t *testing.T) {
	root := t.TempDir()
	if err := os.CopyFS(filepath.Join(root, "capstan"), os.DirFS("capstan")); err != nil {
		t.Fatal(err)
	}
	// The annotation has the syntax of Go's templates. The description of a field may have it, too, for example to show
	// an expression in a prompt.
	const text = "{{ .product | upper }} and {{ fail \"evaluated\" }}"
	crd := "apiVersion: apiextensions.k8s.io/v1\nkind: CustomResourceDefinition\nmetadata:\n  name: braces.capstan.dev\n" +
		"  annotations:\n    text: '" + text + "'\n"
	if err := os.WriteFile(filepath.Join(root, "capstan/files/crds/braces.yaml"), []byte(crd), 0o600); err != nil {
		t.Fatal(err)
	}
	manifest, err := output(t.Context(), helmPath, "template", filepath.Join(root, "capstan"), "--kube-version", kubeVersion)
	if err != nil {
		t.Fatal(err)
	}
	for _, crd := range every[*apiextensionsv1.CustomResourceDefinition](decode(t, manifest)) {
		if crd.Name == "braces.capstan.dev" {
			if got := crd.Annotations["text"]; got != text {
				t.Errorf("text = %q, want %q", got, text)
			}
			return
		}
	}
	t.Error("the CRD with braces is not in the manifest")
}

// keepAnnotations are the annotations with which Helm and Argo CD keep an object.
var keepAnnotations = map[string]string{"helm.sh/resource-policy": "keep", "argocd.argoproj.io/sync-options": "Prune=false"}

func TestCRDValues(t *testing.T) {
	for _, crd := range renderCRDs(t) {
		for annotation, want := range keepAnnotations {
			if got := crd.Annotations[annotation]; got != want {
				t.Errorf("%s of %s = %q, want %q by default: deleting a CRD deletes all its objects", annotation, crd.Name, got, want)
			}
		}
	}
	for _, crd := range renderCRDs(t, "crds.keep=false") {
		for annotation := range keepAnnotations {
			if got, ok := crd.Annotations[annotation]; ok {
				t.Errorf("%s of %s = %q, want none with crds.keep=false", annotation, crd.Name, got)
			}
		}
	}
	manifest, err := template(t.Context(), "crds.install=false")
	if err != nil {
		t.Fatal(err)
	}
	if bytes.Contains(manifest, []byte("CustomResourceDefinition")) {
		t.Error("the chart has a CRD with crds.install=false")
	}
}
