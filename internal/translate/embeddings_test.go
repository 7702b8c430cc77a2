package translate_test

import (
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/translate"
)

// TestEmbeddingsSpace checks that two vectors have the same space only if everything that identifies a model is equal.
func TestEmbeddingsSpace(t *testing.T) {
	space := func(change func(*v1alpha1.Agent, *v1alpha1.ModelProvider)) string {
		t.Helper()
		p := &v1alpha1.ModelProvider{
			ObjectMeta: metav1.ObjectMeta{Namespace: "helpdesk", Name: "gateway"},
			Spec:       v1alpha1.ModelProviderSpec{Type: v1alpha1.ProviderTypeOpenAI, BaseURL: "https://llm.example.com/team-a/v1"},
		}
		a := &v1alpha1.Agent{Spec: v1alpha1.AgentSpec{Embeddings: &v1alpha1.AgentEmbeddings{Model: "embed"}}}
		change(a, p)
		e, err := translate.Embeddings(a, translate.Link{Reference: translate.EmbeddingsModel(a), Object: p})
		if err != nil {
			t.Fatal(err)
		}
		return e.Space
	}
	withURL := func(baseURL string) func(*v1alpha1.Agent, *v1alpha1.ModelProvider) {
		return func(_ *v1alpha1.Agent, p *v1alpha1.ModelProvider) { p.Spec.BaseURL = baseURL }
	}
	first := space(func(*v1alpha1.Agent, *v1alpha1.ModelProvider) {})
	if again := space(withURL("https://LLM.example.com/team-a/v1/")); again != first {
		t.Errorf("the same URL in another form has the space %q, want %q", again, first)
	}
	for name, change := range map[string]func(*v1alpha1.Agent, *v1alpha1.ModelProvider){
		"another host":      withURL("https://other.example.com/team-a/v1"),
		"another path":      withURL("https://llm.example.com/team-b/v1"),
		"another provider":  func(_ *v1alpha1.Agent, p *v1alpha1.ModelProvider) { p.Name = "other" },
		"another namespace": func(_ *v1alpha1.Agent, p *v1alpha1.ModelProvider) { p.Namespace = "sales" },
		"another model":     func(a *v1alpha1.Agent, _ *v1alpha1.ModelProvider) { a.Spec.Embeddings.Model = "other" },
		"other dimensions":  func(a *v1alpha1.Agent, _ *v1alpha1.ModelProvider) { a.Spec.Embeddings.Dimensions = new(int32(256)) },
	} {
		if other := space(change); other == first {
			t.Errorf("%s: the space is %q, want another one", name, other)
		}
	}
}
