package postgres_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/capstan-dev/capstan/internal/runtime/journal"
	"github.com/capstan-dev/capstan/internal/runtime/memories"
	"github.com/capstan-dev/capstan/internal/runtime/task"
	"github.com/capstan-dev/capstan/internal/runtime/turnrecord"
	"github.com/capstan-dev/capstan/internal/store"
	"github.com/capstan-dev/capstan/internal/store/postgres"
	"github.com/capstan-dev/capstan/internal/store/postgres/postgrestest"
)

// calls are calls of a store. They succeed if the retired journal "old" has one entry, and if the server that takes
// writes has two entries of the journal "behind" and the record of its Turn.
var calls = map[string]func(ctx context.Context, s *postgres.Store) error{
	"Append": func(ctx context.Context, s *postgres.Store) error { return s.Append(ctx, "new", entry(1, 1)) },
	"Append that numbers": func(ctx context.Context, s *postgres.Store) error {
		e := entry(1, 1)
		e.TurnNumber = &journal.TurnNumber{TurnUID: "behind", Number: 7}
		if err := s.Append(ctx, "session", e); err != nil {
			return err
		}
		records, _, err := s.Records(ctx, store.RecordQuery{})
		if err == nil && (len(records) != 1 || records[0].TurnNumber != 7) {
			err = fmt.Errorf("the records are %+v, want the one that the primary has, with the new number", records)
		}
		return err
	},
	"Append that is refused": func(ctx context.Context, s *postgres.Store) error {
		if err := s.Append(ctx, "old", entry(5, 1)); !errors.Is(err, journal.ErrSequence) {
			return fmt.Errorf("%w, want ErrSequence", err)
		}
		return nil
	},
	"Read": func(ctx context.Context, s *postgres.Store) error {
		got, err := journal.Collect(ctx, s, "behind")
		if err == nil && len(got) != 2 {
			err = fmt.Errorf("%d entries, want the 2 that the primary has", len(got))
		}
		return err
	},
	"Last": func(ctx context.Context, s *postgres.Store) error {
		last, err := s.Last(ctx, "behind")
		if err == nil && last != 2 {
			err = fmt.Errorf("the last entry is %d, want 2, as on the primary", last)
		}
		return err
	},
	"Artifact": func(ctx context.Context, s *postgres.Store) error {
		if _, err := s.Artifact(ctx, "old", "none"); !errors.Is(err, journal.ErrNoArtifact) {
			return fmt.Errorf("%w, want ErrNoArtifact", err)
		}
		return nil
	},
	"Observe": func(ctx context.Context, s *postgres.Store) error {
		o := memories.Observation{TurnUID: "behind", Namespace: "helpdesk", Agent: "desk", Turn: "behind", Time: time.Unix(1, 0)}
		if err := s.Observe(ctx, o); err != nil {
			return err
		}
		stored, err := s.Observations(ctx, "helpdesk", "desk", 10)
		if err == nil && len(stored) != 1 {
			err = fmt.Errorf("the observations are %+v, want one", stored)
		}
		return err
	},
	"AddFeedback": func(ctx context.Context, s *postgres.Store) error {
		return s.AddFeedback(ctx, "helpdesk", "behind", "", turnrecord.Feedback{User: "ada", Score: "1", Time: time.Unix(1, 0)})
	},
	"ClaimTask": func(ctx context.Context, s *postgres.Store) error {
		_, err := s.ClaimTask(ctx, task.Search{Now: time.Unix(1, 0), Until: time.Unix(60, 0)})
		return err
	},
	"Forget": func(ctx context.Context, s *postgres.Store) error { return s.Forget(ctx, time.Unix(1, 0), "nothing") },
	"Retire": func(ctx context.Context, s *postgres.Store) error { return s.Retire(ctx, time.Unix(1, 0), "nothing") },
	"Purge": func(ctx context.Context, s *postgres.Store) error {
		_, err := s.Purge(ctx, time.Unix(1, 0), 1)
		return err
	},
	"UIDs":  func(ctx context.Context, s *postgres.Store) error { _, err := s.UIDs(ctx, "", 1); return err },
	"Size":  func(ctx context.Context, s *postgres.Store) error { _, err := s.Size(ctx); return err },
	"State": func(ctx context.Context, s *postgres.Store) error { _, err := s.State(ctx); return err },
	"Mark":  func(ctx context.Context, s *postgres.Store) error { _, err := s.Mark(ctx, 0); return err },
	"Check": func(ctx context.Context, s *postgres.Store) error { return s.Check(ctx) },
}

// TestFailoverThatKeepsConnections demotes the primary, so that it takes no writes, but keeps its connections open. The
// first call of each kind must reach the new primary.
func TestFailoverThatKeepsConnections(t *testing.T) {
	for name, service := range map[string]bool{"a URL with both servers": false, "a Service that leads to the new primary": true} {
		t.Run(name, func(t *testing.T) {
			primary, standby := postgrestest.Pair(t)
			stores, proxies := map[string]*postgres.Store{}, []*postgrestest.Proxy{}
			for call := range calls {
				databaseURL := primary.Both(standby, "postgres")
				if service {
					p := postgrestest.NewProxy(t, primary.URL("postgres"))
					proxies, databaseURL = append(proxies, p), p.URL
				}
				stores[call] = openAt(t, databaseURL)
			}
			first := stores["Append"]
			for _, uid := range []string{"old", "behind"} {
				if err := first.Append(t.Context(), uid, entry(1, 1)); err != nil {
					t.Fatal(err)
				}
			}
			if err := first.Retire(t.Context(), time.Unix(1, 0), "old"); err != nil {
				t.Fatal(err)
			}
			before, err := first.State(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			primary.WaitForStandby(t, standby)

			primary.Set(t, "default_transaction_read_only", "on")
			if err := standby.Promote(t.Context()); err != nil {
				t.Fatal(err)
			}
			for _, p := range proxies {
				p.DirectTo(t, standby.URL("postgres"))
			}
			promoted := openAt(t, standby.URL("postgres"))
			end := entry(2, 1)
			end.TurnRecord = &turnrecord.Record{UID: "behind", Namespace: "helpdesk", Turn: "behind", Completed: time.Unix(1, 0)}
			if err := promoted.Append(t.Context(), "behind", end); err != nil {
				t.Fatal(err)
			}
			since := time.Now()
			var slowest time.Duration
			for name, call := range calls {
				began := time.Now()
				if err := call(t.Context(), stores[name]); err != nil {
					t.Errorf("%s after the failover: %v, want it to reach the new primary", name, err)
				}
				slowest = max(slowest, time.Since(began))
			}
			t.Logf("all %d stores continued within %s, the slowest took %s", len(calls), time.Since(since), slowest)
			after, err := first.State(t.Context())
			if err != nil || after.ID != before.ID {
				t.Errorf("State: %+v, %v; want the ID of %+v", after, err, before)
			}
		})
	}
}

// TestReadOnlyServer checks that all calls fail and return the reason if the only server takes no writes, and that the
// store recovers when the server takes writes again.
func TestReadOnlyServer(t *testing.T) {
	server := postgrestest.NewServer(t)
	s := openAt(t, server.URL("postgres"))
	if err := s.Append(t.Context(), "a", entry(1, 1)); err != nil {
		t.Fatal(err)
	}
	server.Set(t, "default_transaction_read_only", "on")
	for range 2 { // on the existing connection and on a new one
		for name, call := range calls {
			err := call(t.Context(), s)
			if err == nil || !strings.Contains(err.Error(), "takes no writes") ||
				strings.Contains(err.Error(), "not known") || !postgres.IsAway(err) {
				t.Errorf("%s: %v, want an error that says that the server takes no writes, and not that the outcome is unknown", name,
					err)
			}
		}
	}
	server.Set(t, "default_transaction_read_only", "off")
	if err := s.Append(t.Context(), "a", entry(2, 1)); err != nil {
		t.Errorf("Append when the server takes writes again: %v", err)
	}
}

// TestFormerPrimaryIsNotUsed starts a former primary again after a failover. It takes writes, because it does not know
// of its successor, and the URL names it first. The store must stay on the new primary.
func TestFormerPrimaryIsNotUsed(t *testing.T) {
	t.Parallel()
	primary, standby := postgrestest.Pair(t)
	s := openAt(t, primary.Both(standby, "postgres"))
	if err := s.Append(t.Context(), "a", entry(1, 1)); err != nil {
		t.Fatal(err)
	}
	primary.WaitForStandby(t, standby)
	primary.FailOver(t, standby)
	if _, err := s.Mark(t.Context(), 0); err != nil {
		t.Fatal(err)
	}
	if err := primary.Resume(t.Context()); err != nil {
		t.Fatal(err)
	}
	const end = `SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE application_name = 'capstan'`
	postgrestest.Exec(t, standby.URL("postgres"), end) // the next call needs a new connection
	if _, err := s.State(t.Context()); err != nil {
		t.Errorf("State: %v, want the state of the new primary", err)
	}
	if err := s.Append(t.Context(), "a", entry(2, 1)); err != nil {
		t.Errorf("Append: %v, want it to reach the new primary", err)
	}
	if got := entries(t, openAt(t, standby.URL("postgres")), "a"); len(got) != 2 {
		t.Errorf("the new primary has %d entries, want 2", len(got))
	}
	if err := standby.Stop(t.Context(), postgrestest.Immediate); err != nil {
		t.Fatal(err)
	}
	var err error
	for range 2 { // the first call may find that its connection is broken
		err = s.Check(t.Context())
	}
	if err == nil || !strings.Contains(err.Error(), "former primary") {
		t.Errorf("Check without the new primary: %v, want an error that names the former primary", err)
	}
}

// TestReplicaWithoutLastEntries promotes an asynchronous standby that does not have the last acknowledged entry.
func TestReplicaWithoutLastEntries(t *testing.T) {
	primary, standby := postgrestest.Pair(t)
	s := openAt(t, primary.Both(standby, "postgres"))
	log := open(t, s, "a")
	record := journal.Record{Kind: journal.ModelReplied, Payload: "reply"}
	for range 2 {
		if err := log.Append(t.Context(), record); err != nil {
			t.Fatal(err)
		}
	}
	primary.WaitForStandby(t, standby)
	primary.Disconnect(t, standby)
	if err := log.Append(t.Context(), record); err != nil {
		t.Fatal(err)
	}
	primary.FailOver(t, standby)
	since := time.Now()
	if err := log.Append(t.Context(), record); !errors.Is(err, journal.ErrLost) {
		t.Errorf("Append: %v, want ErrLost", err)
	}
	t.Logf("the loss was detected %s after the promotion", time.Since(since))
	for known, want := range map[int64]error{2: nil, 3: journal.ErrLost} {
		_, err := journal.Open(t.Context(), "a", 2, journal.Options{
			Journal: s, Now: time.Now, Apply: func(journal.Entry) error { return nil }, Known: known,
		})
		if !errors.Is(err, want) || want == nil && err != nil {
			t.Errorf("Open of a journal of which %d entries are known: %v, want %v", known, err, want)
		}
	}
}

// TestSilentServer checks a server whose connections stay open but that sends no replies. No call may wait forever, and
// the next call must connect again.
func TestSilentServer(t *testing.T) {
	t.Parallel() // takes as long as the timeout of an append
	primary, standby := postgrestest.Pair(t)
	p := postgrestest.NewProxy(t, primary.URL("postgres"))
	s := openAt(t, strings.Replace(p.URL, "pool_max_conns=1", "pool_max_conns=8", 1))
	log := open(t, s, "a")
	record := journal.Record{Kind: journal.ModelReplied, Payload: "reply"}
	if err := log.Append(t.Context(), record); err != nil {
		t.Fatal(err)
	}
	primary.WaitForStandby(t, standby)
	if err := standby.Promote(t.Context()); err != nil {
		t.Fatal(err)
	}
	p.DirectTo(t, standby.URL("postgres"))
	p.Freeze()
	since := time.Now()
	if err := log.Append(t.Context(), record); err != nil {
		t.Fatalf("Append: %v, want it to reach the new primary", err)
	}
	t.Logf("the append succeeded %s after the old primary stopped replying", time.Since(since))
	if got := entries(t, s, "a"); len(got) != 2 {
		t.Errorf("%d entries, want 2", len(got))
	}
}

// dialer counts the connections of a store. If hold is not nil, new connections wait until its channel is closed.
type dialer struct {
	dials atomic.Int64
	hold  atomic.Pointer[chan struct{}]
}

// openDialing opens a database with connections of the dialer. An attempt to connect may take a minute.
func (d *dialer) openDialing(t *testing.T, databaseURL string, connections int) *postgres.Store {
	t.Helper()
	u, err := url.Parse(databaseURL)
	if err != nil {
		t.Fatal("the server under test has a bad URL")
	}
	query := u.Query()
	query.Set("pool_max_conns", strconv.Itoa(connections))
	query.Set("connect_timeout", "60")
	u.RawQuery = query.Encode()
	s, err := postgres.OpenDialing(t.Context(), u.String(), func(ctx context.Context, network, address string) (net.Conn, error) {
		d.dials.Add(1)
		if hold := d.hold.Load(); hold != nil {
			<-*hold
		}
		return new(net.Dialer).DialContext(ctx, network, address)
	})
	if err != nil {
		t.Fatalf("Open: %v", err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
	})
	return s
}

// TestSlowConnectionIsUsed checks that a connection that takes longer than a call is kept for the next call. Otherwise
// no call would ever get a connection, for example while the first hosts of the URL do not respond.
func TestSlowConnectionIsUsed(t *testing.T) {
	var d dialer
	s := d.openDialing(t, postgrestest.Database(t), 1)
	s.CloseIdle(time.Now())
	hold := make(chan struct{})
	proceed := sync.OnceFunc(func() { close(hold) })
	defer proceed()
	d.hold.Store(&hold)
	before := d.dials.Load()
	for d.dials.Load() == before { // the time limit may be over before the call begins to connect
		if err := s.Ping(t.Context(), time.Millisecond); !errors.Is(err, context.DeadlineExceeded) {
			t.Fatalf("Ping: %v, want it to time out", err)
		}
	}
	proceed()
	if err := s.Ping(t.Context(), time.Minute); err != nil {
		t.Fatal(err)
	}
	if got := d.dials.Load() - before; got != 1 {
		t.Errorf("the store connected %d times, want once: the next call uses the connection", got)
	}
}

// TestOldIdleConnectionsAreClosed checks which connections are closed after a call of a server that does not respond.
func TestOldIdleConnectionsAreClosed(t *testing.T) {
	var d dialer
	s := d.openDialing(t, postgrestest.Database(t), 1)
	for name, tc := range map[string]struct {
		before time.Time
		want   int64
	}{
		"established before the call": {time.Now().Add(time.Hour), 1},
		"established since the call":  {time.Now().Add(-time.Hour), 0},
	} {
		t.Run(name, func(t *testing.T) {
			if err := s.Ping(t.Context(), time.Minute); err != nil {
				t.Fatal(err)
			}
			before := d.dials.Load()
			s.CloseIdle(tc.before)
			if err := s.Ping(t.Context(), time.Minute); err != nil {
				t.Fatal(err)
			}
			if got := d.dials.Load() - before; got != tc.want {
				t.Errorf("the store connected %d times, want %d", got, tc.want)
			}
		})
	}
}

// TestAppendWithoutStandbyIsNotTrusted makes an append time out while the server waits for its standby. The entry is
// then only on the server's own disk, and a repeated append that finds the entry there must not succeed.
func TestAppendWithoutStandbyIsNotTrusted(t *testing.T) {
	t.Parallel() // takes as long as the timeouts of two calls
	primary, standby := postgrestest.Pair(t)
	s := openAt(t, primary.URL("postgres"))
	if err := s.Append(t.Context(), "a", entry(1, 1)); err != nil {
		t.Fatal(err)
	}
	primary.Disconnect(t, standby)
	primary.Set(t, "synchronous_standby_names", "*")
	log, err := journal.Open(t.Context(), "a", 1, journal.Options{
		Journal: s, Now: time.Now, Apply: func(journal.Entry) error { return nil }, Patience: 12 * time.Second,
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := log.Append(t.Context(), journal.Record{Kind: journal.ModelReplied, Payload: "reply"}); err == nil {
		t.Error("Append succeeded with an entry that no standby has, want an error")
	}
	primary.Set(t, "synchronous_standby_names", "")
	if err := s.Append(t.Context(), "a", entry(2, 1)); !errors.Is(err, journal.ErrSequence) {
		t.Errorf("Append: %v, want ErrSequence, because the entry is on the server's disk", err)
	}
}

// TestMarkWithoutStandbyIsNotPublished makes a mark time out while the server waits for its standby. The server then
// shows the new position, which the standby lacks. No process may publish this position: after a failover, the store
// would seem to have lost entries.
func TestMarkWithoutStandbyIsNotPublished(t *testing.T) {
	t.Parallel()
	primary, standby := postgrestest.Pair(t)
	primary.Set(t, "synchronous_standby_names", "*")
	writer, idle := openAt(t, primary.Both(standby, "postgres")), openAt(t, primary.Both(standby, "postgres"))
	var losses int
	track := func(s *postgres.Store) *store.Tracker {
		tracker := store.NewTracker(s, store.TrackerOptions{Lost: func(int64, store.State, store.State) { losses++ }})
		if err := tracker.Mark(t.Context()); err != nil {
			t.Fatal(err)
		}
		return tracker
	}
	first := track(writer)
	second := track(idle)
	if err := first.Mark(t.Context()); err != nil || first.Last() != second.Last() {
		t.Fatalf("Mark: %v, the states are %+v and %+v; want the same state", err, first.Last(), second.Last())
	}
	before := first.Last()
	if err := writer.Append(t.Context(), "a", entry(1, 1)); err != nil {
		t.Fatal(err)
	}
	primary.WaitForStandby(t, standby)
	primary.Disconnect(t, standby)
	for state := before; state.Position == before.Position; {
		// The server ends the wait for the standby when the client cancels the statement.
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		if err := first.Mark(ctx); err == nil {
			t.Fatal("Mark succeeded with a position that no standby has")
		}
		cancel()
		var err error
		if state, err = writer.State(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	if err := second.Mark(ctx); err == nil {
		t.Error("Mark of an idle process returned a position that no standby has")
	}
	cancel()
	for _, tracker := range []*store.Tracker{first, second} {
		if _, err := tracker.Identity(t.Context()); err != nil || tracker.Last() != before {
			t.Errorf("Last: %+v, %v; want %+v, which the standby has", tracker.Last(), err, before)
		}
	}
	primary.FailOver(t, standby)
	standby.Set(t, "synchronous_standby_names", "")
	for _, tracker := range []*store.Tracker{first, second} {
		if err := tracker.Mark(t.Context()); err != nil || tracker.Last().Identity != before.Identity || losses != 0 {
			t.Errorf("Mark after the failover: %v, %+v, %d losses; want %+v and no loss", err, tracker.Last(), losses, before.Identity)
		}
	}
}

// TestIncarnationAfterFailover checks that the incarnation changes, unless all commits had waited for a standby and the
// new server has the last known mark.
func TestIncarnationAfterFailover(t *testing.T) {
	for name, tc := range map[string]struct {
		reason      string
		synchronous string
		behind      int64
		lost        bool
	}{
		"synchronous standby":                   {"the standby has each acknowledged entry", "*", 0, false},
		"asynchronous standby":                  {"the standby may lack the last entries", "", 0, true},
		"synchronous standby that lacks a mark": {"commits waited for another standby", "*", 1, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			primary, standby := postgrestest.Pair(t)
			primary.Set(t, "synchronous_standby_names", tc.synchronous)
			stores := []*postgres.Store{openAt(t, primary.Both(standby, "postgres")), openAt(t, primary.Both(standby, "postgres"))}
			s := stores[0]
			if err := s.Append(t.Context(), "a", entry(1, 1)); err != nil {
				t.Fatal(err)
			}
			before, err := s.Mark(t.Context(), 0)
			if err != nil {
				t.Fatal(err)
			}
			primary.WaitForStandby(t, standby)
			primary.FailOver(t, standby)
			if st, err := s.State(t.Context()); err != nil || !st.Unsure {
				t.Errorf("State: %+v, %v; want Unsure until the next mark", st, err)
			}
			found := make([]store.State, 0, len(stores))
			for _, s := range stores { // only one of several processes reports the loss
				st, err := s.Mark(t.Context(), before.Position+tc.behind)
				if err != nil || st.Unsure || (st.Incarnation != before.Incarnation) != tc.lost || st.ID != before.ID ||
					st.Position <= before.Position {
					t.Errorf("Mark: %+v, %v; want a new incarnation: %t, after %+v: %s", st, err, tc.lost, before, tc.reason)
				}
				found = append(found, st)
			}
			if found[0].Lost != tc.lost || found[1].Lost || found[0].Identity != found[1].Identity {
				t.Errorf("Mark: %+v, want the first state to report a loss: %t, the second to report none, and the same identity", found,
					tc.lost)
			}
		})
	}
}

// TestRestoredBackup checks that the incarnation changes when a dump replaces newer data, because the position
// decreases. It also changes when a dump is loaded into another server, even if no position is known and commits had
// waited for a standby.
func TestRestoredBackup(t *testing.T) {
	server := postgrestest.NewServer(t)
	s := openAt(t, server.URL("postgres"))
	first, err := s.Mark(t.Context(), 0)
	if err != nil {
		t.Fatal(err)
	}
	restore, err := server.Dump(t.Context(), "postgres")
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Append(t.Context(), "a", entry(1, 1)); err != nil {
		t.Fatal(err)
	}
	last, err := s.Mark(t.Context(), first.Position)
	if err != nil || last.Position <= first.Position || last.Lost {
		t.Fatalf("Mark: %+v, %v; want a position after %d", last, err, first.Position)
	}
	if err := restore(t.Context()); err != nil {
		t.Fatal(err)
	}
	got, err := s.Mark(t.Context(), last.Position)
	if err != nil || !got.Lost || got.Incarnation == first.Incarnation || got.ID != first.ID || len(entries(t, s, "a")) != 0 {
		t.Errorf("Mark: %+v, %v; want the store %+v with a new incarnation", got, err, first)
	}
	if err := restore(t.Context()); err != nil {
		t.Fatal(err)
	}
	postgrestest.Exec(t, server.URL("postgres"), `UPDATE capstan_store SET server = '7000000000000000000-00000001', confirmed = true`)
	if got, err := s.Mark(t.Context(), 0); err != nil || !got.Lost || got.ID != first.ID {
		t.Errorf("Mark in another server: %+v, %v; want the store %+v with a new incarnation", got, err, first)
	}
}
