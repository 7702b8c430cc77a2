package controller

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/runtime/span"
	"github.com/capstan-dev/capstan/internal/translate"
)

// strippedMark begins the message of a stripped Turn. The length of its spec as JSON and the size of its metadata
// follow. The API server accepts no message with this character, so no user can create a Turn that looks like a
// stripped one.
const strippedMark = "\x00"

// Strip removes everything from a Turn that no decision about it needs: the texts and URLs of the request, the schema
// of the answer, and other clients' labels, annotations, owners and finalizers. The trace of its caller, and the names
// of the ConfigMaps that the Turn awaits, stay. Strip may be called again on a stripped Turn. A stripped Turn can be
// patched, and its status can be written. The API server rejects an update of the whole object, because of its message.
func Strip(t *v1alpha1.Turn) {
	if isStripped(t) {
		return
	}
	// A spec always marshals, because it was decoded from JSON.
	size, _ := json.Marshal(&t.Spec)
	metadata := metadataBytes(t)
	t.Labels, t.OwnerReferences, t.Finalizers = OwnLabels(t.Labels), OwnOwners(t), nil
	t.Annotations = span.Kept(t.Annotations)
	s := &t.Spec
	s.Message = fmt.Sprintf("%s%d %d", strippedMark, len(size), metadata)
	s.History, s.Shaping, s.Guardrails, s.Output = nil, nil, nil, nil
	if s.Undo != nil {
		s.Undo = &v1alpha1.TurnUndo{TurnUID: s.Undo.TurnUID}
	}
	awaits := len(awaitedConfigMaps(t)) > 0
	if !awaits {
		s.MessageFrom, s.Parameters, s.Context = nil, nil, nil
	}
	if s.MessageFrom != nil {
		s.MessageFrom = &v1alpha1.ContentSource{ConfigMapKeyRef: *nameOnly(&s.MessageFrom.ConfigMapKeyRef)}
	}
	s.Parameters = strippedParameters(s.Parameters)
	s.Context = strippedContext(s.Context)
	for i := range s.Attachments {
		a := &s.Attachments[i]
		if a.ArtifactRef = nil; a.URL != "" {
			a.URL = placeholderURL
		}
		if a.ConfigMapKeyRef = nameOnly(a.ConfigMapKeyRef); !awaits {
			a.ConfigMapKeyRef = nil
		}
	}
}

// nameOnly returns a reference without its key, or nil for nil.
func nameOnly(ref *v1alpha1.ConfigMapKeyReference) *v1alpha1.ConfigMapKeyReference {
	if ref == nil {
		return nil
	}
	return &v1alpha1.ConfigMapKeyReference{Name: ref.Name}
}

// placeholderURL stands for the URL of an attachment in the cache.
const placeholderURL = "-"

// OwnLabels returns the only label that Capstan reads; nil if it is absent. Others may have the prefix of Capstan, too:
// a user may set thousands of them.
func OwnLabels(labels map[string]string) map[string]string {
	if parent, ok := labels[translate.ParentLabel]; ok {
		return map[string]string{translate.ParentLabel: parent}
	}
	return nil
}

// maxOwnerName is the maximum length of the names of objects, in bytes. The API server does not check it for owners.
const maxOwnerName = 253

// OwnOwners returns the only owner of a Turn that Capstan reads: the Turn that calls it as a sub-agent's Turn. It
// returns nil if there is none. A user may add thousands of others.
func OwnOwners(t *v1alpha1.Turn) []metav1.OwnerReference {
	owner, ok := translate.Parent(t)
	if !ok || max(len(owner.Name), len(owner.UID), len(owner.APIVersion)) > maxOwnerName {
		return nil
	}
	if len(t.OwnerReferences) == 1 {
		return t.OwnerReferences
	}
	return []metav1.OwnerReference{*owner}
}

// metadataBytes returns the size of the metadata of a Turn as JSON, which is the form that etcd stores. For small
// metadata, which is the usual case, it returns the smaller size of another encoding, which is known in less time.
func metadataBytes(t *v1alpha1.Turn) int {
	const mostGrowth = 8 // JSON has six bytes for some characters, and repeats the names of fields
	size := t.ObjectMeta.Size()
	if size <= v1alpha1.MaxMetadataBytes/mostGrowth {
		return size
	}
	data, err := json.Marshal(&t.ObjectMeta)
	if err != nil { // impossible: the metadata was decoded from JSON
		return size
	}
	return len(data)
}

// isStripped reports whether a Turn was stripped.
func isStripped(t *v1alpha1.Turn) bool { return strings.HasPrefix(t.Spec.Message, strippedMark) }

// strippedParameters keeps only the names of ConfigMaps, each at its index. It returns nil if there are none.
func strippedParameters(all []v1alpha1.Parameter) []v1alpha1.Parameter {
	if !slices.ContainsFunc(all, func(p v1alpha1.Parameter) bool { return p.ValueFrom != nil }) {
		return nil
	}
	kept := make([]v1alpha1.Parameter, len(all))
	for i, p := range all {
		if p.ValueFrom != nil {
			kept[i].ValueFrom = &v1alpha1.ContentSource{ConfigMapKeyRef: *nameOnly(&p.ValueFrom.ConfigMapKeyRef)}
		}
	}
	return kept
}

// strippedContext keeps only the names of ConfigMaps, each at its index. It returns nil if there are none.
func strippedContext(c *v1alpha1.TurnContext) *v1alpha1.TurnContext {
	if c == nil || len(contributionConfigMaps(c.Contributions)) == 0 {
		return nil
	}
	kept := &v1alpha1.TurnContext{Contributions: make([]v1alpha1.Contribution, len(c.Contributions))}
	for i, contribution := range c.Contributions {
		kept.Contributions[i].ConfigMapKeyRef = nameOnly(contribution.ConfigMapKeyRef)
	}
	return kept
}

// checkSize returns an error if the spec of a Turn is too large, or if a Turn that was never bound has too much
// metadata. A Turn that has run may have a result that was paid for, so it does not end because of labels that a user
// adds later. checkSize also works for a stripped Turn.
func checkSize(t *v1alpha1.Turn) error {
	var spec, metadata int
	if !isStripped(t) {
		if err := t.Spec.CheckSize(); err != nil {
			return err
		}
		metadata = metadataBytes(t)
	} else if _, err := fmt.Sscanf(t.Spec.Message[len(strippedMark):], "%d %d", &spec, &metadata); err != nil {
		return fmt.Errorf("failed to read the size of a stripped turn: %w", err) // impossible: only Strip writes it
	}
	if t.Epoch() > 0 {
		metadata = 0
	}
	return cmp.Or(v1alpha1.CheckSpecBytes(spec), v1alpha1.CheckMetadataBytes(metadata))
}
