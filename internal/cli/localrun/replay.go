package localrun

import (
	"context"
	"crypto/rand"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/cli/bundle"
	"github.com/capstan-dev/capstan/internal/runtime/prepare"
	"github.com/capstan-dev/capstan/internal/runtime/turn"
	"github.com/capstan-dev/capstan/internal/translate"
)

// Replay runs a recorded Turn again, with the Agent and the profile of a bundle, and returns the Turn with its status.
// Its calls are answered from the recording, and no tool is called. The Agent of the bundle must have no tools. Replay
// returns an error if the Turn has not ended. A recorded result that cannot be read cancels the Turn. Replay is safe
// for concurrent use, even with the same recording.
func (b *Batch) Replay(p *bundle.Bundle, r *turn.Recording, answers *turn.Answers) (*v1alpha1.Turn, *turn.Result, error) {
	j, t := b.run, p.Turn.DeepCopy()
	t.UID = bundle.UIDOf([]byte(rand.Text())) // because the same Turn may be replayed several times
	if err := p.CheckAttachments(); err != nil {
		return nil, nil, err
	}
	w, err := j.begin(j.life, p, t, j.bind(t, earlierRuns{}), "")
	if err != nil {
		return nil, nil, err
	}
	objects := p.Objects()
	objects.Turn, objects.Redaction = t, w.redaction
	w.in.Preparation = func(ctx context.Context) (prepare.Input, error) {
		in, err := translate.PrepareAgain(ctx, &r.Input, objects)
		in.Tools, in.Turn.Attachments = nil, nil // the run adds both
		return in, err
	}
	w.in.Attach, w.in.AttachBytes = translate.AttachRecorded(r, w.redaction)
	w.in.Toolbox, w.in.Tools = nil, answers.Tools()
	var release context.CancelFunc
	w.in.Cancel, release = answers.Within(j.cancel) //nolint:fatcontext // because each replay has a turn.Input of its own
	defer release()
	w.in.Number = r.Number // the replay has no Session, so it would always count as the first Turn
	return j.runToEnd(w)
}
