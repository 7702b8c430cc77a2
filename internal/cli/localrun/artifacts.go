package localrun

import (
	"context"
	"fmt"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/cli/journals"
	"github.com/capstan-dev/capstan/internal/runtime/turn"
	"github.com/capstan-dev/capstan/internal/translate"
)

// artifacts returns a function that reads artifacts of other Turns from the journals of --data-dir. If several Turns
// have the same name, it reads from the newest one. Any Turn may be named, because all belong to the same user. If
// the named Turn does not exist, the Turn t does not end, so the same command can continue it later.
func (j *localRun) artifacts(t *v1alpha1.Turn) translate.Artifacts {
	return func(ctx context.Context, a *v1alpha1.Attachment, maxBytes int) ([]byte, error) {
		uid, err := journals.Newest(ctx, j.store, t.Namespace, a.ArtifactRef.TurnName, string(t.UID))
		if err != nil {
			return nil, err
		}
		if uid == "" {
			return nil, fmt.Errorf("--data-dir has no journal of a Turn %s/%s: run it first, with the same --data-dir",
				t.Namespace, a.ArtifactRef.TurnName)
		}
		return turn.ReadArtifact(ctx, j.store, uid, a.ArtifactRef.Name, maxBytes, nil)
	}
}
