package main

import (
	"context"
	_ "embed"
	"fmt"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/envtest"
	"sigs.k8s.io/yaml"

	"github.com/capstan-dev/capstan/api/v1alpha1"
)

// minimalVersion is the API group and version of the minimal object: a Turn with only the fields that the floor reads
// and writes, whose schema has no rules.
var minimalVersion = schema.GroupVersion{Group: "bench.capstan.dev", Version: v1alpha1.GroupVersion.Version}

//go:embed minimal-crd.yaml
var minimalCRD []byte

// installMinimal makes the API server serve the minimal object.
func (b *bench) installMinimal() error {
	crd := &apiextensionsv1.CustomResourceDefinition{}
	if err := yaml.UnmarshalStrict(minimalCRD, crd); err != nil {
		return fmt.Errorf("failed to read the CRD of the minimal object: %w", err)
	}
	if _, err := envtest.InstallCRDs(b.cluster.Config,
		envtest.CRDInstallOptions{CRDs: []*apiextensionsv1.CustomResourceDefinition{crd}}); err != nil {
		return fmt.Errorf("failed to install the CRD of the minimal object: %w", err)
	}
	return nil
}

// contendMinimal is like contend, but with minimal objects.
func (b *bench) contendMinimal(ctx context.Context, c contender) (*Measurement, error) {
	if err := b.installMinimal(); err != nil {
		return nil, err
	}
	minimal := *b
	var err error
	if minimal.turns, err = turnClient(b.cluster.Config, minimalVersion); err != nil {
		return nil, err
	}
	return minimal.contend(ctx, c)
}
