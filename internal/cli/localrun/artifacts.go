package localrun

import (
	"context"
	"fmt"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/cli/journals"
	"github.com/capstan-dev/capstan/internal/runtime/turn"
	"github.com/capstan-dev/capstan/internal/translate"
)

// artifacts returns the function that reads artifacts of other Turns of the folder for a Turn. The newest Turn of a
// name counts. Every Turn of the folder may be named, because all are of the same user. If there is none, the Turn does
// not end, so the same command continues it later.
func (j *localRun) artifacts(t *v1alpha1.Turn) translate.Artifacts {
	return func(ctx context.Context, a *v1alpha1.Attachment, most int) ([]byte, error) {
		uid, err := journals.Newest(ctx, j.store, t.Namespace, a.ArtifactRef.TurnName, string(t.UID))
		if err != nil {
			return nil, err
		}
		if uid == "" {
			return nil, fmt.Errorf("--data-dir has no journal of a Turn %s/%s: run it first, with the same --data-dir",
				t.Namespace, a.ArtifactRef.TurnName)
		}
		return turn.ReadArtifact(ctx, j.store, uid, a.ArtifactRef.Name, most, nil)
	}
}
