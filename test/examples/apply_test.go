package examples_test

import (
	"context"
	"path/filepath"
	"slices"
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/manifest"
)

var _ = Describe("examples", func() {
	for _, directory := range directories() {
		It("applies "+directory, func(ctx SpecContext) {
			namespace := newNamespace(ctx)
			files := filesOf(directory)
			Expect(files).NotTo(BeEmpty(), "a directory of examples must contain manifests")
			for _, file := range files {
				create(ctx, namespace, file)
			}
		})

		It("can be run without a cluster: "+directory, func(ctx SpecContext) {
			set, err := manifest.Load(ctx, []string{filepath.Join(root, "examples", directory)}, manifest.Options{})
			Expect(err).NotTo(HaveOccurred())
			switch directory {
			case "cluster": // its servers are Pods
				Expect(set.Ignored).To(HaveEach(Or(ContainSubstring("Deployment"), ContainSubstring("Service"))))
			case "budgets": // Budgets count Turns in the store of a cluster
				Expect(set.Ignored).To(And(HaveLen(3), HaveEach(ContainSubstring("Budget"))))
			default:
				Expect(set.Ignored).To(BeEmpty())
			}
			Expect(set.Turns()).NotTo(BeEmpty(), "an example must show a Turn")
			for _, turn := range set.Turns() {
				expectComplete(set, turn)
			}
		})
	}

	It("can all be applied to one namespace: no two share a name", func(ctx SpecContext) {
		var paths []string
		for _, directory := range append(directories(), "cluster/servers", "gitops") {
			paths = append(paths, filepath.Join(root, "examples", directory))
		}
		_, err := manifest.Load(ctx, paths, manifest.Options{})
		Expect(err).NotTo(HaveOccurred())
	})
})

var _ = Describe("pages", func() {
	for _, page := range pages() {
		It("shows manifests that are accepted: "+filepath.Base(page), func(ctx SpecContext) {
			for _, block := range blocksOf(page) {
				create(ctx, newNamespace(ctx), block)
				_, err := manifest.Load(ctx, []string{"-"}, manifest.Options{Stdin: strings.NewReader(block.text)})
				Expect(err).NotTo(HaveOccurred(), block.name)
			}
		})
	}
})

// newNamespace creates a namespace for one spec. It does not delete the namespace, because envtest cannot.
func newNamespace(ctx context.Context) string {
	GinkgoHelper()
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "example-"}}
	Expect(apiClient.Create(ctx, namespace)).To(Succeed())
	return namespace.Name
}

// create creates all objects of a text. A field that the API server does not know is an error.
func create(ctx context.Context, namespace string, from source) {
	GinkgoHelper()
	all, err := objects(from.text)
	Expect(err).NotTo(HaveOccurred(), from.name)
	Expect(all).NotTo(BeEmpty(), "%s must hold an object", from.name)
	for _, object := range all {
		Expect(isExampleKind(object.GetKind())).To(BeTrue(), "%s: unexpected kind %q", from.name, object.GetKind())
		Expect(object.GetNamespace()).To(BeEmpty(), "%s: readers choose the namespace themselves", from.name)
		object.SetNamespace(namespace)
		author := apiClient
		if by, _, _ := unstructured.NestedString(object.Object, "spec", "decidedBy"); by != "" {
			author = as(by)
		}
		Expect(author.Create(ctx, object, client.FieldValidation("Strict"))).To(Succeed(), from.name)
	}
}

// as returns a client of a user with this name and all permissions.
func as(name string) client.Client {
	GinkgoHelper()
	config := rest.CopyConfig(apiConfig)
	config.Impersonate = rest.ImpersonationConfig{UserName: name, Groups: []string{"system:masters"}}
	c, err := client.New(config, client.Options{Scheme: apiClient.Scheme()})
	Expect(err).NotTo(HaveOccurred())
	return c
}

// expectComplete asserts that the set contains all objects that a Turn needs.
func expectComplete(set *manifest.Set, turn *v1alpha1.Turn) {
	GinkgoHelper()
	agent, ok := set.Agent(turn.Namespace, turn.Spec.AgentRef.Name)
	Expect(ok).To(BeTrue(), "Agent %q must exist", turn.Spec.AgentRef.Name)
	profile, ok := set.PromptProfile(turn.Namespace, agent.Spec.PromptProfileRef.Name)
	Expect(ok).To(BeTrue(), "PromptProfile %q must exist", agent.Spec.PromptProfileRef.Name)
	for _, ref := range textsOf(turn, agent, profile) {
		configMap, ok := set.ConfigMap(turn.Namespace, ref.Name)
		Expect(ok).To(BeTrue(), "ConfigMap %q must exist", ref.Name)
		Expect(configMap.Data).To(HaveKey(ref.Key))
	}
	expectTools(set, agent)
	for _, m := range agent.Spec.Models {
		provider, ok := set.ModelProvider(turn.Namespace, m.ProviderRef.Name)
		Expect(ok).To(BeTrue(), "ModelProvider %q must exist", m.ProviderRef.Name)
		if ref := provider.Spec.CredentialsRef; ref != nil {
			secret, ok := set.Secret(turn.Namespace, ref.Name)
			Expect(ok).To(BeTrue(), "Secret %q must exist", ref.Name)
			Expect(secret.Data).To(HaveKey(ref.Key))
		}
	}
}

// expectTools asserts that the set contains the tool servers and sub-agents of an Agent, and the tool servers and
// sub-agents of these sub-agents.
func expectTools(set *manifest.Set, agent *v1alpha1.Agent) {
	GinkgoHelper()
	for _, t := range agent.Spec.Tools {
		if t.ServerRef != nil {
			_, ok := set.ToolServer(agent.Namespace, t.ServerRef.Name)
			Expect(ok).To(BeTrue(), "ToolServer %q must exist", t.ServerRef.Name)
			continue
		}
		sub, ok := set.Agent(agent.Namespace, t.AgentRef.Name)
		Expect(ok).To(BeTrue(), "sub-agent %q must exist", t.AgentRef.Name)
		expectTools(set, sub)
	}
}

// textsOf returns the references to the ConfigMaps from which a prompt takes texts.
func textsOf(turn *v1alpha1.Turn, agent *v1alpha1.Agent, profile *v1alpha1.PromptProfile) []v1alpha1.ConfigMapKeyReference {
	var refs []v1alpha1.ConfigMapKeyReference
	for _, s := range profile.Spec.Skills {
		if s.ContentFrom != nil {
			refs = append(refs, s.ContentFrom.ConfigMapKeyRef)
		}
	}
	contributions := slices.Concat(profile.Spec.Contributions, agent.Spec.Contributions)
	if c := turn.Spec.Context; c != nil {
		contributions = append(contributions, c.Contributions...)
	}
	for _, c := range contributions {
		if c.ConfigMapKeyRef != nil {
			refs = append(refs, *c.ConfigMapKeyRef)
		}
	}
	return refs
}
