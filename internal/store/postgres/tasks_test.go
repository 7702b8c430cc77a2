package postgres_test

import (
	"testing"
	"time"

	"github.com/capstan-dev/capstan/internal/runtime/budget"
	"github.com/capstan-dev/capstan/internal/runtime/journal"
	"github.com/capstan-dev/capstan/internal/runtime/model"
	"github.com/capstan-dev/capstan/internal/runtime/task"
	"github.com/capstan-dev/capstan/internal/runtime/turnrecord"
	"github.com/capstan-dev/capstan/internal/store"
	"github.com/capstan-dev/capstan/internal/store/postgres"
	"github.com/capstan-dev/capstan/internal/store/postgres/postgrestest"
)

// TestFailedDeletionLeavesNoReservation makes the charge of an open request fail while DeleteMemories ends the task, as
// if the process were killed. It checks that a second call ends the task and charges the request.
func TestFailedDeletionLeavesNoReservation(t *testing.T) {
	databaseURL := postgrestest.Database(t)
	s, err := postgres.Open(t.Context(), databaseURL)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	begin := time.Unix(1_000_000, 0).UTC()
	e := entry(1, 1)
	e.Kind, e.Time = journal.Finalized, begin
	e.TurnRecord = &turnrecord.Record{UID: "a", Namespace: "helpdesk", Turn: "one", Agent: "desk", Requester: "ada", Completed: begin}
	e.Tasks = []task.Task{{
		UID: "a", Kind: task.Learn, Namespace: "helpdesk", Turn: "one", Agent: "desk", Requester: "ada", Created: begin,
	}}
	if err := s.Append(t.Context(), "a", e); err != nil {
		t.Fatal(err)
	}
	k, err := s.ClaimTask(t.Context(), task.Search{Now: begin, Until: begin.Add(time.Minute)})
	if err != nil || k == nil {
		t.Fatalf("ClaimTask: %v, %v", k, err)
	}
	if err := s.BeginTask(t.Context(), k.Held(), task.Start{Now: begin, MaxPerHour: 1, Tokens: 1}); err != nil {
		t.Fatal(err)
	}
	if err := s.ChargeTask(t.Context(), k.Held(), task.Charge{
		Next: &turnrecord.Expense{For: string(task.Learn), Requests: 1, Usage: model.Usage{InputTokens: 10}},
		Reserve: []budget.Reservation{{
			Hold: budget.Hold{
				Key: budget.Key{Budget: "x", Start: begin.Add(-time.Hour).Unix(), End: begin.Add(time.Hour).Unix()}, Tokens: 100,
				Unknown: budget.Amount{Tokens: 10},
			},
		}},
	}); err != nil {
		t.Fatal(err)
	}

	postgrestest.Exec(t, databaseURL, `ALTER TABLE capstan_budget_hold RENAME TO away`)
	ofAda := store.MemorySelector{Namespace: "helpdesk", Requester: "ada"}
	if n, err := s.DeleteMemories(t.Context(), ofAda, begin, 10); err == nil {
		t.Fatalf("DeleteMemories: %d, want the error of the charge", n)
	}
	postgrestest.Exec(t, databaseURL, `ALTER TABLE away RENAME TO capstan_budget_hold`)
	if _, err := s.DeleteMemories(t.Context(), ofAda, begin, 10); err != nil {
		t.Fatal(err)
	}
	accounts, err := s.Accounts(t.Context(), begin)
	if err != nil || len(accounts) != 1 || accounts[0].ReservedTokens != 0 || accounts[0].Tokens != 10 {
		t.Errorf("accounts after the second deletion: %+v (error %v), want 10 tokens and nothing reserved", accounts, err)
	}
}
