package recordkeeper

import (
	"errors"
	"testing"
	"time"

	"github.com/capstan-dev/capstan/internal/runtime/journal"
	"github.com/capstan-dev/capstan/internal/runtime/journal/journaltest"
	"github.com/capstan-dev/capstan/internal/runtime/task"
)

// TestTasksCountAfterAWrongClock lets the clock be hours ahead for a while. When it is right again, the tokens of the
// last day still count against the limit of the Agent.
func TestTasksCountAfterAWrongClock(t *testing.T) {
	s := &journaltest.Store{}
	claim := func(uid string, at time.Time) task.Held {
		t.Helper()
		k := task.Task{UID: uid, Kind: task.Learn, Namespace: "helpdesk", Turn: uid, Agent: "desk", Created: at}
		err := s.Append(t.Context(), uid, journal.Entry{
			Seq: 1, Epoch: 1, Time: at, Kind: journal.Finalized, Payload: []byte(`{}`), Tasks: []task.Task{k},
		})
		if err != nil {
			t.Fatal(err)
		}
		claimed, err := s.ClaimTask(t.Context(), task.Search{Now: at, Until: at.Add(time.Minute)})
		if err != nil || claimed == nil {
			t.Fatalf("ClaimTask: %v, %v", claimed, err)
		}
		return claimed.Held()
	}
	start := task.Start{MaxPerHour: 10, MaxTokensPerDay: 10, Tokens: 10}
	start.Now = now.Add(-12 * time.Hour)
	earlier := claim("earlier", start.Now)
	if err := errors.Join(
		s.BeginTask(t.Context(), earlier, start),
		s.FinishTask(t.Context(), earlier, task.Result{}, 10),
		s.PublishTask(t.Context(), earlier, start.Now),
	); err != nil {
		t.Fatal(err)
	}
	k := keeper(t, s)
	k.Now = func() time.Time { return now.Add(14 * time.Hour) }
	if err := k.Round(t.Context()); err != nil {
		t.Fatal(err)
	}
	start.Now = now
	err := s.BeginTask(t.Context(), claim("later", now), start)
	if refused, ok := errors.AsType[*task.Refusal](err); !ok || refused.Skip != task.TokenLimit {
		t.Errorf("BeginTask: %v, want a refusal because of the tokens of the earlier task", err)
	}
}
