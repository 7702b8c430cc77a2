package executor

import (
	"context"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/redact"
	"github.com/capstan-dev/capstan/internal/runtime/attachment"
	"github.com/capstan-dev/capstan/internal/runtime/model"
	"github.com/capstan-dev/capstan/internal/runtime/turn"
	"github.com/capstan-dev/capstan/internal/translate"
)

// attach lets a run read the attachments of its Turn. If a ConfigMap is missing, the Turn waits for it.
func (e *Executor) attach(in *turn.Input, t *v1alpha1.Turn, redaction *redact.TurnRedactor) {
	if len(t.Spec.Attachments) == 0 {
		return
	}
	attach, most := translate.Attach(t, translate.AttachmentSources{
		ConfigMaps: e.AttachmentConfigMaps(t.Namespace), Fetch: e.Fetch(t.Namespace), Artifacts: e.artifacts(t),
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
// again, because the process may have learned of further credentials since the artifact was written.
func (e *Executor) artifacts(t *v1alpha1.Turn) translate.Artifacts {
	return func(ctx context.Context, a *v1alpha1.Attachment, most int) ([]byte, error) {
		source := new(v1alpha1.Turn)
		err := e.Reader.Get(ctx, client.ObjectKey{Namespace: t.Namespace, Name: a.ArtifactRef.TurnName}, source)
		if apierrors.IsNotFound(err) {
			return nil, &turn.ArtifactError{Message: "it does not exist"}
		}
		if err != nil {
			return nil, err
		}
		if why := translate.OutOfScope(t, a.ArtifactRef, source); why != "" {
			return nil, &turn.ArtifactError{Message: why}
		}
		content, err := turn.ReadArtifact(ctx, e.Engine.Journal, string(source.UID), a.ArtifactRef.Name, most,
			func(ctx context.Context, bytes int64) (func(), error) {
				return e.reserveResult(ctx, t.Namespace, bytes)
			})
		if err != nil || model.KindOf(a.MediaType) != model.AttachedText {
			return content, err
		}
		return []byte(e.Credentials.RedactFunc(t.CredentialNamespaces()...)(string(content))), nil
	}
}
