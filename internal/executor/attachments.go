package executor

import (
	"context"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	apicontent "k8s.io/apimachinery/pkg/api/validate/content"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/redact"
	"github.com/capstan-dev/capstan/internal/runtime/attachment"
	"github.com/capstan-dev/capstan/internal/runtime/model"
	"github.com/capstan-dev/capstan/internal/runtime/turn"
	"github.com/capstan-dev/capstan/internal/translate"
)

// attach lets a run read the attachments of its Turn. If a ConfigMap is missing, the Turn waits for it. session is the
// Session of the Turn, or nil if there is none or it was deleted.
func (e *Executor) attach(in *turn.Input, t *v1alpha1.Turn, session *v1alpha1.Session, redaction *redact.TurnRedactor) {
	if len(t.Spec.Attachments) == 0 {
		return
	}
	attach, most := translate.Attach(t, translate.AttachmentSources{
		ConfigMaps: e.AttachmentConfigMaps(t.Namespace), Fetch: e.Fetch(t.Namespace),
		Artifacts: e.artifacts(t, session),
		Redaction: redaction,
	})
	in.AttachBytes = most
	in.Attach = func(ctx context.Context) ([]attachment.Content, error) {
		contents, err := attach(ctx)
		return contents, awaitingConfigMap(err, t)
	}
}

// artifacts returns a function that reads the artifacts that a Turn names, which belong to other Turns. The function
// reads the other Turn from the API server, because the cache has no finished Turns. It redacts the texts of artifacts
// again, because the process may have learned of further credentials of either Turn since the artifact was written.
// session is the Session of the Turn, or nil if there is none or it was deleted.
func (e *Executor) artifacts(t *v1alpha1.Turn, session *v1alpha1.Session) translate.Artifacts {
	return func(ctx context.Context, a *v1alpha1.Attachment, most int) ([]byte, error) {
		// The schema of an older version accepted any name. The client cannot ask for such a name, in any attempt.
		if len(apicontent.IsPathSegmentName(a.ArtifactRef.TurnName)) > 0 {
			return nil, &turn.ArtifactError{Message: "it does not exist"}
		}
		reserve := e.reserveIn(t.Namespace)
		source := new(v1alpha1.Turn)
		err := e.Reader.Get(ctx, client.ObjectKey{Namespace: t.Namespace, Name: a.ArtifactRef.TurnName}, source)
		if apierrors.IsNotFound(err) {
			return nil, &turn.ArtifactError{Message: "it does not exist"}
		}
		if err != nil {
			return nil, err
		}
		var uid string
		if a.ArtifactRef.Scope != v1alpha1.ArtifactScopeNamespace && session != nil && source.Spec.SessionRef != nil {
			if uid, err = e.Engine.Reference(ctx, string(source.UID), reserve); err != nil {
				return nil, err
			}
		}
		if why := translate.OutOfScope(t, a.ArtifactRef, source, uidOf(session), uid); why != "" {
			return nil, &turn.ArtifactError{Message: why}
		}
		content, err := turn.ReadArtifact(ctx, e.Engine.Journal, string(source.UID), a.ArtifactRef.Name, most, reserve)
		if err != nil || model.KindOf(a.MediaType) != model.AttachedText {
			return content, err
		}
		namespaces := append(t.CredentialNamespaces(), source.CredentialNamespaces()...)
		slices.Sort(namespaces)
		return []byte(e.Credentials.RedactFunc(slices.Compact(namespaces)...)(string(content))), nil
	}
}

// uidOf returns the UID of a Session, or an empty string if session is nil.
func uidOf(session *v1alpha1.Session) string {
	if session == nil {
		return ""
	}
	return string(session.UID)
}
