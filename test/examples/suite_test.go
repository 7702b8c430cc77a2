// Package examples_test applies what readers are shown (every manifest under examples/ and every one in a page) to a real
// API server, and reads it as the command line does.
package examples_test

import (
	"os"
	"path/filepath"
	"testing"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"
)

// apiClient speaks to the API server of the suite. BeforeSuite sets it.
var apiClient client.Client

func TestExamples(t *testing.T) {
	RegisterFailHandler(Fail)
	RunSpecs(t, "Examples")
}

var _ = BeforeSuite(func() {
	Expect(os.Getenv("KUBEBUILDER_ASSETS")).NotTo(BeEmpty(),
		"KUBEBUILDER_ASSETS is not set: run `make test`, which gets an API server and sets it")
	controlPlane := &envtest.Environment{
		CRDDirectoryPaths:     []string{filepath.Join(root, "config", "crd", "bases")},
		ErrorIfCRDPathMissing: true,
	}
	config, err := controlPlane.Start()
	Expect(err).NotTo(HaveOccurred(), "the control plane must start")
	DeferCleanup(func() { Expect(controlPlane.Stop()).To(Succeed()) })
	apiClient, err = client.New(config, client.Options{})
	Expect(err).NotTo(HaveOccurred())
})
