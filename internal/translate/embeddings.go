package translate

import (
	"errors"
	"fmt"
	"net/url"
	"strings"

	"k8s.io/utils/ptr"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/providers"
	"github.com/capstan-dev/capstan/internal/runtime/turn"
)

// EmbeddingsModel returns the model that turns texts into vectors for an Agent, which must have one.
func EmbeddingsModel(a *v1alpha1.Agent) v1alpha1.ModelReference {
	return v1alpha1.ModelReference{ProviderRef: a.Spec.Embeddings.ProviderRef, Model: a.Spec.Embeddings.Model}
}

// Embeddings translates spec.embeddings of an Agent, which must be set, to the engine's type. l is the model that
// spec.embeddings names.
func Embeddings(a *v1alpha1.Agent, l Link) (*turn.Embeddings, error) {
	c, err := Candidate(l, "")
	if err != nil {
		return nil, err
	}
	c.Embeds, c.MaxOutputTokens, c.DefaultOutput = true, 0, 0
	e := &turn.Embeddings{Dimensions: int(ptr.Deref(a.Spec.Embeddings.Dimensions, 0))}
	if l.Object != nil {
		if !providers.HasEmbeddings(&l.Object.Spec) {
			c.Unusable = true
			c.Provider = providers.Unusable(c.ProviderName, errors.New(providers.NoEmbeddings(c.ProviderName, &l.Object.Spec)))
		}
		path := "" // a gateway may use the same name for different models on different paths
		if u, err := url.Parse(l.Object.Spec.BaseURL); err == nil {
			path = strings.TrimRight(u.Path, "/")
		}
		e.Space = fmt.Sprintf("%s/%s@%s%s %s", l.Object.Namespace, l.Object.Name, c.Endpoint, path, c.Model)
	}
	if e.Dimensions > 0 {
		e.Space += fmt.Sprintf(" %d", e.Dimensions)
	}
	e.Model = c
	return e, nil
}
