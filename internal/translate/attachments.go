package translate

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strings"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/netpolicy"
	"github.com/capstan-dev/capstan/internal/providers"
	"github.com/capstan-dev/capstan/internal/redact"
	"github.com/capstan-dev/capstan/internal/runtime/attachment"
	"github.com/capstan-dev/capstan/internal/runtime/invalid"
	"github.com/capstan-dev/capstan/internal/runtime/model"
	"github.com/capstan-dev/capstan/internal/runtime/turn"
)

// Fetch returns the content of a URL, which has at most maxBytes bytes. It returns an error if the server declares
// another media type.
type Fetch = func(ctx context.Context, url, mediaType string, maxBytes int) ([]byte, error)

// Artifacts returns the content of an attachment with an artifactRef, which has at most maxBytes bytes. The error is a
// *turn.ArtifactError if the artifact cannot be used. Any other error is temporary.
type Artifacts = func(ctx context.Context, a *v1alpha1.Attachment, maxBytes int) ([]byte, error)

// AttachmentSources read the contents of attachments.
type AttachmentSources struct {
	// ConfigMaps reads values of ConfigMaps, including their binaryData.
	ConfigMaps ConfigMaps
	// Fetch fetches the contents of URLs. If it is nil, attachments from URLs are refused.
	Fetch Fetch
	// Artifacts reads artifacts of other Turns. If it is nil, artifacts cannot be read.
	Artifacts Artifacts
	// Redaction removes parts of texts. If it is nil, texts are not changed.
	Redaction *redact.TurnRedactor
}

// Attach returns the function that reads the attachments of a Turn, and the maximum size of their contents together, in
// bytes. The function is nil if the Turn has no attachments. Its error is an *invalid.Error if a content cannot be
// used. Any other error means that a ConfigMap or an artifact could not be read, or that the context has ended.
func Attach(t *v1alpha1.Turn, s AttachmentSources) (attach func(context.Context) ([]attachment.Content, error), maxBytes int64) {
	if len(t.Spec.Attachments) == 0 {
		return nil, 0
	}
	for _, a := range t.Spec.Attachments {
		maxBytes += int64(attachment.MaxOf(a.MediaType))
	}
	attach = func(ctx context.Context) ([]attachment.Content, error) { return s.readAll(ctx, t) }
	return attach, min(maxBytes, attachment.MaxTotalBytes)
}

// readAll reads the attachments of a Turn.
func (s *AttachmentSources) readAll(ctx context.Context, t *v1alpha1.Turn) ([]attachment.Content, error) {
	all := make([]attachment.Content, 0, len(t.Spec.Attachments))
	for i := range t.Spec.Attachments {
		a := &t.Spec.Attachments[i]
		field, data, err := s.read(ctx, fmt.Sprintf("Turn spec.attachments[%d]", i), a)
		if err != nil {
			return nil, err
		}
		content, err := attachment.New(field, a.Name, a.MediaType, data)
		if err != nil {
			return nil, err
		}
		if content, err = s.withoutRedacted(field, content); err != nil {
			return nil, err
		}
		all = append(all, content)
		if err := attachment.CheckTotal("Turn spec.attachments", all); err != nil {
			return nil, err
		}
	}
	return all, nil
}

// withoutRedacted returns a text after the redaction. Contents that are not texts are not changed.
func (s *AttachmentSources) withoutRedacted(field string, c attachment.Content) (attachment.Content, error) {
	if s.Redaction == nil || model.KindOf(c.MediaType) != model.AttachedText {
		return c, nil
	}
	text := string(c.Data)
	clean := s.Redaction.Remove(text)
	if clean == text {
		return c, nil
	}
	if most := attachment.MaxOf(c.MediaType); len(clean) > most {
		return attachment.Content{}, invalid.Field(field, "the redaction of the Agent makes the content longer, from %d to %d bytes, "+
			"and it may have at most %d: use a smaller content, or shorter replacements in spec.redaction", len(text), len(clean), most)
	}
	return attachment.New(field, c.Name, c.MediaType, []byte(clean))
}

// read reads the content of an attachment, which is in the field path. It also returns the field that names its source.
func (s *AttachmentSources) read(ctx context.Context, path string, a *v1alpha1.Attachment) (field string, data []byte, err error) {
	if ref := a.ConfigMapKeyRef; ref != nil {
		field = path + ".configMapKeyRef"
		data, err := s.ConfigMaps.readContent(ctx, field, *ref)
		return field, data, err
	}
	if ref := a.ArtifactRef; ref != nil {
		field = path + ".artifactRef"
		data, err := s.readArtifact(ctx, field, a)
		return field, data, err
	}
	field = path + ".url"
	if s.Fetch == nil {
		return field, nil, refusedURL(field)
	}
	data, err = s.Fetch(ctx, a.URL, a.MediaType, attachment.MaxOf(a.MediaType))
	switch {
	case err == nil:
		return field, data, nil
	case ctx.Err() != nil:
		return field, nil, context.Cause(ctx)
	}
	if _, isShort := errors.AsType[*netpolicy.Shortage](err); isShort { // not the URL, but this machine is the reason
		return field, nil, fmt.Errorf("failed to fetch %s: %w", field, err)
	}
	return field, nil, invalid.Field(field, "%s", err)
}

// OutOfScope returns why a Turn may not use the artifacts of another Turn of its namespace, or an empty text if it may.
// For the scope Namespace, the API server has checked the author's permissions.
//
// uid is the UID of the Session of t, and sourceUID is that of the Session with which source ran. Each is empty if it
// is not known, or if the Session is gone. The UIDs must be equal, because a Session that was deleted and created again
// has the same name, but must not have the artifacts of the deleted one. The times of source and of the Session cannot
// decide this, because the creation time of an object has whole seconds.
func OutOfScope(
	t *v1alpha1.Turn, ref *v1alpha1.ArtifactReference, source *v1alpha1.Turn, uid, sourceUID string,
) string {
	if ref.Scope == v1alpha1.ArtifactScopeNamespace {
		return ""
	}
	const instead = ": set scope to Namespace, which requires permission to get turns/log in the namespace"
	switch own, other := t.Spec.SessionRef, source.Spec.SessionRef; {
	case own == nil || other == nil || own.Name != other.Name:
		return "it does not belong to the Session of this Turn" + instead
	case uid == "":
		return "the Session of this Turn was deleted" + instead
	case uid != sourceUID:
		return "it is not known to belong to the Session of this Turn, which may have been created again" + instead
	}
	return ""
}

// readArtifact reads an artifact of another Turn.
func (s *AttachmentSources) readArtifact(ctx context.Context, field string, a *v1alpha1.Attachment) ([]byte, error) {
	if s.Artifacts == nil {
		return nil, invalid.Field(field, "the journals of other Turns cannot be read here")
	}
	data, err := s.Artifacts(ctx, a, attachment.MaxOf(a.MediaType))
	if unusable, ok := errors.AsType[*turn.ArtifactError](err); ok {
		return nil, invalid.Field(field, "Turn %q: %s", a.ArtifactRef.TurnName, unusable.Message)
	}
	if err != nil {
		return nil, fmt.Errorf("failed to read an artifact of Turn %q: %w", a.ArtifactRef.TurnName, err)
	}
	if model.KindOf(a.MediaType) == model.AttachedText {
		data = attachment.TextOf(data) // an output of a tool may contain anything
	}
	if most := attachment.MaxOf(a.MediaType); len(data) > most {
		return nil, invalid.Field(field, "Turn %q: the artifact has %d bytes after control characters and credentials were "+
			"replaced, and may have at most %d", a.ArtifactRef.TurnName, len(data), most)
	}
	return data, nil
}

// refusedURL returns the error for an attachment from a URL if attachments from URLs are not allowed.
func refusedURL(field string) error {
	return invalid.Field(field, "the operator of the cluster does not allow attachments from URLs: use a ConfigMap")
}

// CheckURLs returns an *invalid.Error if a Turn has an attachment from a URL.
func CheckURLs(t *v1alpha1.Turn) error {
	for i, a := range t.Spec.Attachments {
		if a.URL != "" {
			return refusedURL(fmt.Sprintf("Turn spec.attachments[%d].url", i))
		}
	}
	return nil
}

// readContent reads a value that may be binary. Its size is not checked.
func (maps ConfigMaps) readContent(ctx context.Context, field string, ref v1alpha1.ConfigMapKeyReference) ([]byte, error) {
	value, err := maps(ctx, ref)
	if missing, ok := errors.AsType[*MissingError](err); ok {
		return nil, &missingAt{invalid: invalid.Field(field, "%s", missing.Reason), missing: missing}
	}
	if err != nil {
		return nil, &UnreadableError{Field: field, Name: ref.Name, Err: err}
	}
	return []byte(value), nil
}

// ConfigMapContents returns the values in data and binaryData of a ConfigMap.
func ConfigMapContents(data map[string]string, binaryData map[string][]byte) map[string]string {
	all := make(map[string]string, len(data)+len(binaryData))
	maps.Copy(all, data)
	for key, value := range binaryData {
		all[key] = string(value)
	}
	return all
}

// refusedAttachment returns why a model does not accept the attachments of a Turn. It returns an empty text if the
// model accepts them or if its ModelProvider does not exist (p is nil).
func refusedAttachment(t *v1alpha1.Turn, p *v1alpha1.ModelProvider, name string) string {
	if p == nil || len(t.Spec.Attachments) == 0 {
		return ""
	}
	types := make([]string, 0, len(t.Spec.Attachments))
	for _, a := range t.Spec.Attachments {
		types = append(types, a.MediaType)
	}
	accepts := providers.Accepts(&p.Spec, name)
	refused := accepts.Refused(types)
	if refused == "" {
		return ""
	}
	capability, option := v1alpha1.CapabilityImages, "images"
	if model.KindOf(refused) == model.AttachedFile {
		capability, option = v1alpha1.CapabilityFiles, "files"
	}
	if accepts.Images != nil && model.KindOf(refused) == model.AttachedImage {
		return fmt.Sprintf("model %q does not accept attachments of type %s; it accepts the image types %s: use another type or model",
			name, refused, strings.Join(accepts.Images, ", "))
	}
	return fmt.Sprintf("model %q does not accept attachments of type %s: add the capability %s to the model, and set requests.%s to On if "+
		"the dialect does not accept them, or use another model", name, refused, capability, option)
}

// CheckAttachments returns an *invalid.Error if none of the models of an Agent accepts the attachments of a Turn. find
// returns a ModelProvider by its reference, or nil if it does not exist or may not be used.
func CheckAttachments(
	t *v1alpha1.Turn, a *v1alpha1.Agent, find func(ref v1alpha1.SharedReference) (*v1alpha1.ModelProvider, error),
) error {
	var first error
	if len(t.Spec.Attachments) == 0 {
		return nil
	}
	for _, m := range a.Spec.Models {
		p, err := find(m.ProviderRef)
		if err != nil {
			return err
		}
		why := refusedAttachment(t, p, m.Model)
		if why == "" {
			return nil
		}
		if first == nil {
			first = invalid.Field("Turn spec.attachments", "must be accepted by a model of Agent %q: ModelProvider %q: %s",
				a.Name, m.ProviderRef, why)
		}
	}
	return first
}
