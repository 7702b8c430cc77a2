package controller

import (
	"encoding/json"
	"maps"
	"strconv"
	"strings"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/runtime/span"
)

const (
	// annotationSpecBytes is the annotation of a stripped Turn that holds the length of its spec as JSON. Only the
	// cache has it. Status writes do not change annotations, and a user's own value is replaced.
	annotationSpecBytes = "cache.capstan.dev/spec-bytes"
	// ownPrefix is the prefix of the labels that this package reads.
	ownPrefix = "capstan.dev/"
)

// Strip removes everything from a Turn that no decision about it needs: the texts and URLs of the request, the schema
// of the answer, and other clients' labels and annotations. The trace of its caller stays. Strip may be called again on
// a stripped Turn. A stripped Turn can be patched, and its status can be written. The API server refuses it as a whole
// object, because its message is empty.
func Strip(t *v1alpha1.Turn) {
	if isStripped(t) {
		return
	}
	// A spec always marshals, because it was decoded from JSON.
	size, _ := json.Marshal(&t.Spec)
	t.Labels = OwnLabels(t.Labels)
	trace := span.Kept(t.Annotations)
	t.Annotations = map[string]string{annotationSpecBytes: strconv.Itoa(len(size))}
	maps.Copy(t.Annotations, trace)
	s := &t.Spec
	s.Message, s.Parameters, s.History, s.Shaping, s.Guardrails, s.Output = "", nil, nil, nil, nil, nil
	s.Context = strippedContext(s.Context)
	for i := range s.Attachments {
		a := &s.Attachments[i]
		if a.ArtifactRef = nil; a.URL != "" {
			a.URL = someURL
		}
	}
}

// someURL stands for the URL of an attachment in the cache.
const someURL = "-"

// OwnLabels returns the labels that Capstan reads; nil if there are none.
func OwnLabels(labels map[string]string) map[string]string {
	var own map[string]string
	for name, value := range labels {
		if strings.HasPrefix(name, ownPrefix) {
			if own == nil {
				own = map[string]string{}
			}
			own[name] = value
		}
	}
	return own
}

// isStripped reports whether a Turn was stripped: the API server has no Turn with an empty message.
func isStripped(t *v1alpha1.Turn) bool {
	return t.Spec.Message == "" && t.Annotations[annotationSpecBytes] != ""
}

// strippedContext keeps only the references to ConfigMaps, each at its index. It returns nil if there are none.
func strippedContext(c *v1alpha1.TurnContext) *v1alpha1.TurnContext {
	if c == nil || len(contributionConfigMaps(c.Contributions)) == 0 {
		return nil
	}
	kept := &v1alpha1.TurnContext{Contributions: make([]v1alpha1.Contribution, len(c.Contributions))}
	for i, contribution := range c.Contributions {
		kept.Contributions[i].ConfigMapKeyRef = contribution.ConfigMapKeyRef
	}
	return kept
}

// checkSize returns an error if the spec of a Turn is too large. It also works for a stripped Turn.
func checkSize(t *v1alpha1.Turn) error {
	if !isStripped(t) {
		return t.Spec.CheckSize()
	}
	size, err := strconv.Atoi(t.Annotations[annotationSpecBytes])
	if err != nil {
		return t.Spec.CheckSize()
	}
	return v1alpha1.CheckSpecBytes(size)
}
