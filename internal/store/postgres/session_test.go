package postgres

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/url"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/capstan-dev/capstan/internal/runtime/budget"
	"github.com/capstan-dev/capstan/internal/runtime/journal"
	"github.com/capstan-dev/capstan/internal/runtime/turnrecord"
	"github.com/capstan-dev/capstan/internal/store"
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
			s := OpenAt(t, databaseURL)
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

// TestServerNoticesALostNode checks that the server sends keep-alives, so that it closes the connections of a node that
// is lost without a word.
func TestServerNoticesALostNode(t *testing.T) {
	host := fmt.Sprintf("127.%d.%d.1", 1+rand.IntN(254), rand.IntN(255)) // no other server has this address and the usual port
	server := postgrestest.NewServer(t, "listen_addresses="+host)
	u, err := url.Parse(server.URL("postgres"))
	if err != nil {
		t.Fatal(err)
	}
	u.Host, u.RawQuery = host, ""
	s := OpenAt(t, u.String())
	var idle, interval, count int
	err = s.pool.QueryRow(t.Context(), `SELECT current_setting('tcp_keepalives_idle')::int,
		current_setting('tcp_keepalives_interval')::int, current_setting('tcp_keepalives_count')::int`).Scan(&idle, &interval, &count)
	if err != nil {
		t.Fatal(err)
	}
	if got := time.Duration(idle+interval*count) * time.Second; idle == 0 || got != maxSilence {
		t.Errorf("the server closes a connection after %s without an answer, want %s as this side does", got, maxSilence)
	}
}

// TestPausedProcessLosesItsLocks pauses a process in the middle of a transaction, as SIGSTOP does: its connection stays
// open, and it sends nothing. Another process must be able to write soon. The paused process must be able to write
// again when it continues.
func TestPausedProcessLosesItsLocks(t *testing.T) {
	t.Parallel()
	databaseURL := postgrestest.Database(t)
	paused, other := OpenAt(t, databaseURL), OpenAt(t, databaseURL)
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

// TestRefusalsKeepConnections checks that the store closes no connection because it refuses something.
func TestRefusalsKeepConnections(t *testing.T) {
	s := OpenAt(t, postgrestest.Database(t))
	request := journal.Entry{
		Seq: 1, Epoch: 1, Kind: journal.ModelRequested, Version: 1, Time: time.Unix(1, 0), Payload: []byte(`{}`),
		Ledger: &budget.Change{Reserve: []budget.Reservation{{
			Hold: budget.Hold{Key: budget.Key{Budget: "x", End: 1}, Tokens: 2}, Limits: budget.Limits{Tokens: new(int64(1))},
		}}},
	}
	for name, call := range map[string]struct {
		do     func() error
		isWant func(error) bool
	}{
		"a Budget": {
			func() error { return s.Append(t.Context(), "a", request) },
			func(err error) bool { _, refused := errors.AsType[*budget.Refusal](err); return refused },
		},
		"feedback": {
			func() error { return s.AddFeedback(t.Context(), "ns", "none", "", turnrecord.Feedback{Score: "good"}) },
			func(err error) bool { return errors.Is(err, store.ErrNoRecord) },
		},
	} {
		opened := s.pool.Stat().NewConnsCount()
		for range 3 {
			if err := call.do(); !call.isWant(err) {
				t.Errorf("%s: %v, want a refusal", name, err)
			}
		}
		if again := s.pool.Stat().NewConnsCount() - opened; again != 0 {
			t.Errorf("%s: the store has opened %d connections after refusals, want it to keep its connection", name, again)
		}
	}
}

// TestContentionKeepsConnections checks that a call that times out because others hold a lock, or have their turn
// first, closes no connections. A server that has not answered for longer may be dead.
func TestContentionKeepsConnections(t *testing.T) {
	s := OpenAt(t, postgrestest.Database(t))
	for name, tc := range map[string]struct {
		silent time.Duration
		want   int64
	}{
		"a call that has just begun to wait for the server": {0, 0},
		"a call that waits for longer than for a lock":      {time.Hour, 1},
	} {
		if err := s.Check(t.Context()); err != nil {
			t.Fatal(err)
		}
		opened := s.pool.Stat().NewConnsCount()
		err := s.run(t.Context(), time.Millisecond, func(ctx context.Context) error {
			w := ctx.Value(serverWaitKey{}).(*serverWait)
			w.since = w.since.Add(-tc.silent)
			<-ctx.Done()
			return ctx.Err()
		})
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%s: %v, want it to time out", name, err)
		}
		if err := s.Check(t.Context()); err != nil {
			t.Fatal(err)
		}
		if again := s.pool.Stat().NewConnsCount() - opened; again != tc.want {
			t.Errorf("%s: the store has opened %d connections, want %d", name, again, tc.want)
		}
	}
}

// TestReloadKeepsCommitsOfOpenConnections changes the server's synchronous_commit while a connection is open.
func TestReloadKeepsCommitsOfOpenConnections(t *testing.T) {
	server := postgrestest.NewServer(t, "max_wal_senders=0", "wal_level=minimal")
	s := OpenAt(t, server.URL("postgres"))
	setting := func() (value string) {
		if err := s.pool.QueryRow(t.Context(), "SELECT current_setting('synchronous_commit')").Scan(&value); err != nil {
			t.Fatal(err)
		}
		return value
	}
	server.Set(t, "synchronous_commit", "off")
	if got := setting(); got != "on" {
		t.Errorf("synchronous_commit of an open connection is %q, want it to stay on", got)
	}
	server.Set(t, "synchronous_commit", "local")
	server.Set(t, "synchronous_standby_names", "none")
	var confirms bool
	if err := s.pool.QueryRow(t.Context(), "SELECT "+standbyConfirms).Scan(&confirms); err != nil || confirms {
		t.Errorf("standbyConfirms is %t, %v; want false, because new connections do not wait for a standby", confirms, err)
	}
	s.pool.Reset()
	if got := setting(); got != "local" {
		t.Errorf("synchronous_commit of a new connection is %q, want the server's local", got)
	}
	server.Set(t, "synchronous_commit", "on")
	if got := setting(); got != "on" {
		t.Errorf("synchronous_commit of an open connection is %q, want it to follow the server from local to on", got)
	}
}

// TestConnectionsFollowNewestTimeline opens a connection to each of two servers that both take writes.
func TestConnectionsFollowNewestTimeline(t *testing.T) {
	t.Parallel()
	primary, standby := postgrestest.Pair(t)
	s := OpenAt(t, primary.Both(standby, "postgres"))
	promoted := false
	timelines := func() (all []string) {
		for range 2 { // two connections at the same time
			conn, err := s.pool.Acquire(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Release()
			var timeline string
			if err := conn.QueryRow(t.Context(), "SELECT left(pg_walfile_name(pg_current_wal_lsn()), 8)").Scan(&timeline); err != nil {
				t.Fatal(err)
			}
			all = append(all, timeline)
			if !promoted {
				promoted = true
				if err := standby.Promote(t.Context()); err != nil {
					t.Fatal(err)
				}
				primary.Set(t, "default_transaction_read_only", "on") // new connections reach the new primary
			}
		}
		return all
	}
	if diff := cmp.Diff([]string{"00000001", "00000002"}, timelines()); diff != "" {
		t.Fatalf("the timelines of the connections (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]string{"00000002", "00000002"}, timelines()); diff != "" {
		t.Errorf("the timelines of the next connections (-want +got):\n%s", diff)
	}
}
