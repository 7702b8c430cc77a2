package postgres_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/capstan-dev/capstan/internal/runtime/budget"
	"github.com/capstan-dev/capstan/internal/runtime/journal"
	"github.com/capstan-dev/capstan/internal/store/postgres/postgrestest"
)

// TestCancelledWaitForStandby cancels the wait of a commit for the standby, as administrators do with hanging
// statements. The server then reports a commit and only a warning. No call may succeed, because the standby lacks the
// commit.
func TestCancelledWaitForStandby(t *testing.T) {
	primary, standby := postgrestest.Pair(t)
	s := openAt(t, primary.URL("postgres"))
	for _, uid := range []string{"a", "old"} {
		if err := s.Append(t.Context(), uid, entry(1, 1)); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := s.Mark(t.Context(), 0); err != nil {
		t.Fatal(err)
	}
	primary.WaitForStandby(t, standby)
	primary.Disconnect(t, standby)
	primary.Set(t, "synchronous_standby_names", "*")
	admin, err := pgx.Connect(t.Context(), primary.URL("postgres"))
	if err != nil {
		t.Fatal(err)
	}
	defer admin.Close(context.WithoutCancel(t.Context())) //nolint:errcheck // because the test ends
	reserving := entry(1, 1)
	reserving.Ledger = &budget.Change{Reserve: []budget.Reservation{{Hold: budget.Hold{Key: budget.Key{Budget: "x", End: 1}, Tokens: 2}}}}

	for _, tc := range []struct {
		name string
		call func() error
	}{
		{"Append", func() error { return s.Append(t.Context(), "a", entry(2, 1)) }},
		{"Append that was written", func() error { return s.Append(t.Context(), "a", entry(2, 1)) }},
		{"Append that changes a Budget", func() error { return s.Append(t.Context(), "b", reserving) }},
		{"Mark", func() error { _, err := s.Mark(t.Context(), 0); return err }},
		{"Retire", func() error { return s.Retire(t.Context(), time.Unix(1, 0), "old") }},
	} {
		ended := make(chan error, 1)
		go func() { ended <- tc.call() }()
		err := cancelWaits(t, admin, ended)
		if err == nil || errors.Is(err, journal.ErrSequence) || !strings.Contains(err.Error(), "standby") {
			t.Errorf("%s: %v, want an error that says that the standby may lack the commit", tc.name, err)
		}
		if strings.HasPrefix(tc.name, "Append") && err != nil && !strings.Contains(err.Error(), "not known") &&
			tc.name != "Append that was written" {
			t.Errorf("%s: %v, want an error that says that the outcome is unknown", tc.name, err)
		}
	}
	primary.Set(t, "synchronous_standby_names", "")
	if err := s.Append(t.Context(), "a", entry(2, 1)); !errors.Is(err, journal.ErrSequence) {
		t.Errorf("Append: %v, want ErrSequence, because the entry is on the server's disk", err)
	}
	if err := s.Append(t.Context(), "a", entry(3, 1)); err != nil {
		t.Errorf("Append without a standby: %v, want no error", err)
	}
}

// cancelWaits cancels waits for the standby until a call has ended, and returns the error of the call.
func cancelWaits(t *testing.T, admin *pgx.Conn, ended <-chan error) error {
	t.Helper()
	for {
		select {
		case err := <-ended:
			return err
		default:
		}
		if _, err := admin.Exec(t.Context(), `SELECT pg_cancel_backend(pid) FROM pg_stat_activity
			WHERE wait_event = 'SyncRep'`); err != nil {
			t.Fatal(err)
		}
	}
}
