package turn

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/capstan-dev/capstan/internal/runtime/journal"
	"github.com/capstan-dev/capstan/internal/runtime/judge"
	"github.com/capstan-dev/capstan/internal/runtime/task"
)

// judges returns the judges that evaluate the answer.
func (r *run) judges() []judge.Judge {
	if r.in.Judges == nil {
		return nil
	}
	return r.in.Judges()
}

// followUps returns the tasks that follow the end of the Turn. They are stored in the same append as the end.
func (r *run) followUps(result *Result) (all []task.Task) {
	if result.Text == "" || r.gone || result.Stop != StopCompleted && result.Stop != StopToolEnded {
		return nil
	}
	session, _ := r.sessionPlace()
	add := func(kind task.Kind, may func() bool) {
		if may == nil || may() {
			all = append(all, task.Task{
				Kind: kind, Namespace: r.in.Namespace, Turn: r.in.Name, Agent: r.in.About.Agent, Session: session,
				Requester: r.in.Requester,
			})
		}
	}
	if f := r.replayed.input; f != nil && len(f.Judges) > 0 {
		add(task.Evaluate, r.in.MayEvaluate)
	}
	if r.in.MayLearn != nil {
		add(task.Learn, r.in.MayLearn)
	}
	return all
}

// ErrNoJudges is returned for a Turn whose journal has no judges.
var ErrNoJudges = errors.New("the journal of the turn has no judges")

// Judges reads the judges of a Turn from its journal. It returns ErrNoJudges if there are none.
func Judges(ctx context.Context, j journal.Journal, uid string) ([]judge.Judge, error) {
	for e, err := range j.Read(ctx, uid, 0) {
		if err != nil {
			return nil, fmt.Errorf("failed to read the journal of %q: %w", uid, err)
		}
		if e.Kind != journal.PreparationInput {
			continue
		}
		if err := journal.LoadPayload(ctx, j, uid, &e); err != nil {
			return nil, err
		}
		var f struct {
			Judges []judge.Judge `json:"judges"`
		}
		if err := json.Unmarshal(e.Payload, &f); err != nil {
			return nil, fmt.Errorf("failed to read entry %d (%q) of the journal of %q: %w: %w", e.Seq, e.Kind, uid, journal.ErrDamaged, err)
		}
		if len(f.Judges) > judge.MaxPerProfile {
			f.Judges = f.Judges[:judge.MaxPerProfile]
		}
		if len(f.Judges) > 0 {
			return f.Judges, nil
		}
		break
	}
	return nil, ErrNoJudges
}
