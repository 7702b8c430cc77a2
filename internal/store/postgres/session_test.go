package postgres

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/capstan-dev/capstan/internal/runtime/journal"
	"github.com/capstan-dev/capstan/internal/store/postgres/postgrestest"
)

func TestSessionSettings(t *testing.T) {
	tests := map[string]struct {
		reason, server, want string
	}{
		"defaults": {
			reason: "the server limits the time of each statement",
			server: "on", want: "on",
		},
		"asynchronous commit": {
			reason: "an acknowledged append must survive a crash",
			server: "off", want: "on",
		},
		"commits that wait for standbys": {
			reason: "the store must not weaken the setting of the administrator",
			server: "remote_apply", want: "remote_apply",
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			databaseURL := postgrestest.Database(t)
			postgrestest.Exec(t, databaseURL, `DO $$ BEGIN `+
				`EXECUTE format('ALTER DATABASE %I SET synchronous_commit TO `+tt.server+`', current_database());
				EXECUTE format('ALTER DATABASE %I SET default_transaction_isolation TO serializable', current_database()); END $$`)
			s, err := Open(t.Context(), databaseURL)
			if err != nil {
				t.Fatal(err)
			}
			defer func() {
				if err := s.Close(); err != nil {
					t.Error(err)
				}
			}()
			got := map[string]string{}
			for setting := range map[string]bool{
				"synchronous_commit": true, "default_transaction_isolation": true, "statement_timeout": true,
				"lock_timeout": true, "idle_in_transaction_session_timeout": true, "application_name": true,
			} {
				var value string
				if err := s.pool.QueryRow(t.Context(), "SELECT current_setting($1)", setting).Scan(&value); err != nil {
					t.Fatal(err)
				}
				got[setting] = value
			}
			want := map[string]string{
				"synchronous_commit": tt.want, "default_transaction_isolation": "read committed", "statement_timeout": "1min",
				"lock_timeout": "5s", "idle_in_transaction_session_timeout": "4s", "application_name": "capstan",
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("%s: -want +got:\n%s", tt.reason, diff)
			}
		})
	}
}

// TestPausedProcessLosesItsLocks pauses a process in the middle of a transaction, as SIGSTOP does: its connection stays
// open, and it sends nothing. Another process must be able to write soon. The paused process must be able to write
// again when it continues.
func TestPausedProcessLosesItsLocks(t *testing.T) {
	t.Parallel()
	databaseURL := postgrestest.Database(t)
	open := func() *Store {
		s, err := Open(t.Context(), databaseURL)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := s.Close(); err != nil {
				t.Error(err)
			}
		})
		return s
	}
	paused, other := open(), open()
	entry := func(seq int64) journal.Entry {
		return journal.Entry{Seq: seq, Epoch: 1, Kind: journal.ModelReplied, Version: 1, Time: time.Unix(1, 0), Payload: []byte(`{}`)}
	}
	if err := paused.Append(t.Context(), "a", entry(1)); err != nil {
		t.Fatal(err)
	}
	conn, err := paused.pool.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Exec(t.Context(), `BEGIN; SELECT FROM capstan_turn FOR UPDATE`); err != nil {
		t.Fatal(err)
	}
	err = other.Append(t.Context(), "a", entry(2))
	for tries := 0; err != nil && tries < 3; tries++ { // a run also retries; an append may time out on a busy machine
		err = other.Append(t.Context(), "a", entry(2))
	}
	if err != nil {
		t.Errorf("Append of another process: %v, want no error", err)
	}
	if _, err := conn.Exec(t.Context(), `COMMIT`); err == nil || !isConnectionLost(err) {
		t.Errorf("COMMIT of the paused process: %v, want an error that means a lost connection", err)
	}
	conn.Release()
	if err := paused.Append(t.Context(), "a", entry(3)); err != nil {
		t.Errorf("Append of the process that was paused: %v, want no error", err)
	}
}
