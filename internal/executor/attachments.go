package executor

import (
	"context"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/runtime/attachment"
	"github.com/capstan-dev/capstan/internal/runtime/turn"
	"github.com/capstan-dev/capstan/internal/translate"
)

// attach lets a run read the attachments of its Turn. If a ConfigMap is missing, the Turn waits for it.
func (e *Executor) attach(in *turn.Input, t *v1alpha1.Turn, agent *v1alpha1.Agent) {
	if len(t.Spec.Attachments) == 0 {
		return
	}
	attach, most := translate.Attach(t, translate.AttachmentSources{ConfigMaps: e.Contents(t.Namespace), Fetch: e.Fetch(t.Namespace)})
	in.AttachBytes = most
	in.Attach = func(ctx context.Context) ([]attachment.Content, error) {
		contents, err := attach(ctx)
		return contents, awaitingConfigMap(err, agent.Name)
	}
}
