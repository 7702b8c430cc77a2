package postgres_test

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"go.uber.org/goleak"

	"github.com/capstan-dev/capstan/internal/runtime/budget"
	"github.com/capstan-dev/capstan/internal/runtime/journal"
	"github.com/capstan-dev/capstan/internal/runtime/journal/journaltest"
	"github.com/capstan-dev/capstan/internal/runtime/turnrecord"
	"github.com/capstan-dev/capstan/internal/store"
	"github.com/capstan-dev/capstan/internal/store/postgres"
	"github.com/capstan-dev/capstan/internal/store/postgres/postgrestest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var openAt = postgres.OpenAt

func entry(seq, epoch int64) journal.Entry {
	return journal.Entry{
		Seq: seq, Epoch: epoch, Kind: journal.ModelReplied, Version: 1, Time: time.Unix(1, 2).UTC(),
		Payload: fmt.Appendf(nil, `{"epoch":%d}`, epoch),
	}
}

// weaken gives a database the default settings that are most likely to break the contract of a journal.
func weaken(tb testing.TB, databaseURL string) {
	tb.Helper()
	for _, set := range []string{
		"default_transaction_isolation TO serializable", "synchronous_commit TO off",
		"statement_timeout TO 3600000",
	} {
		postgrestest.Exec(tb, databaseURL, "DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET "+set+"', current_database()); END $$")
	}
}

var _ store.Store = (*postgres.Store)(nil)

// shelf opens stores, and reopens them. It maps each store to the URL of its database.
type shelf map[journal.Journal]string

func (f shelf) open(t *testing.T) *postgres.Store {
	t.Helper()
	databaseURL := postgrestest.Database(t)
	// The contract must hold with any default settings of a server.
	weaken(t, databaseURL)
	s := openAt(t, databaseURL)
	f[s] = databaseURL
	return s
}

func (f shelf) reopen(t *testing.T, j journal.Journal) *postgres.Store {
	t.Helper()
	if err := j.(*postgres.Store).Close(); err != nil {
		t.Fatalf("Close: %v", err)
	}
	s := openAt(t, f[j])
	f[s] = f[j]
	return s
}

func TestJournalContract(t *testing.T) {
	f := shelf{}
	journaltest.Run(t,
		func(t *testing.T) journal.Journal { return f.open(t) },
		func(t *testing.T, j journal.Journal) journal.Journal { return f.reopen(t, j) })
}

func TestKeeperContract(t *testing.T) {
	f := shelf{}
	journaltest.RunKeeper(t,
		func(t *testing.T) journaltest.Keeper { return f.open(t) },
		func(t *testing.T, k journaltest.Keeper) journaltest.Keeper {
			// Size uses statistics. They are up to date when all sessions have ended and ANALYZE has counted the rows.
			if err := k.(*postgres.Store).Close(); err != nil {
				t.Fatalf("Close: %v", err)
			}
			postgrestest.Exec(t, f[k], `DO $$ BEGIN
				WHILE EXISTS (SELECT FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'capstan') LOOP
					PERFORM pg_sleep(0.01), pg_stat_clear_snapshot();
				END LOOP;
			END $$`)
			postgrestest.Exec(t, f[k], `ANALYZE`)
			return f.reopen(t, k)
		})
}

func TestLedgerContract(t *testing.T) {
	f := shelf{}
	journaltest.RunLedger(t, func(t *testing.T) journaltest.LedgerStore { return f.open(t) })
}

func TestLossContract(t *testing.T) {
	f := shelf{}
	journaltest.RunLoss(t,
		func(t *testing.T) journal.Journal { return f.open(t) },
		func(t *testing.T, j journal.Journal, uid string, after int64) {
			postgrestest.Exec(t, f[j], `DELETE FROM capstan_journal WHERE turn_uid = $1 AND seq > $2`, uid, after)
			postgrestest.Exec(t, f[j], `UPDATE capstan_turn SET seq = $2 WHERE turn_uid = $1`, uid, after)
			postgrestest.Exec(t, f[j], `DELETE FROM capstan_turn WHERE seq = 0`)
		})
}

func TestPositionContract(t *testing.T) {
	journaltest.RunPosition(t, func(t *testing.T) func() (journaltest.PositionStore, error) {
		databaseURL := postgrestest.Database(t)
		return func() (journaltest.PositionStore, error) { return postgres.Open(t.Context(), databaseURL) }
	})
}

func TestStateWithoutServerIdentity(t *testing.T) {
	s := openAt(t, postgrestest.Database(t))
	whole, err := s.State(t.Context())
	if err != nil || whole.Incarnation == "1" {
		t.Fatalf("State: %+v, %v; want the server's incarnation", whole, err)
	}
	databaseURL := postgrestest.NewServer(t).URL("postgres")
	for name, statement := range map[string]string{
		"system identifier": `REVOKE EXECUTE ON FUNCTION pg_control_system() FROM PUBLIC`,
		"position":          `REVOKE EXECUTE ON FUNCTION pg_current_wal_lsn() FROM PUBLIC`,
	} {
		t.Run(name, func(t *testing.T) {
			plain := createUser(t, databaseURL)
			s := openAt(t, plain)
			before, err := s.State(t.Context())
			if err != nil || before.Incarnation == "1" {
				t.Fatalf("State of an ordinary user: %+v, %v; want the server's incarnation", before, err)
			}
			postgrestest.Exec(t, databaseURL, statement)
			after, err := s.State(t.Context())
			if want := (store.Identity{ID: before.ID, Incarnation: "1"}); err != nil || after.Identity != want {
				t.Errorf("State: %+v, %v; want %+v", after, err, want)
			}
			if marked, err := s.Mark(t.Context(), 0); err != nil || marked.Lost {
				t.Errorf("Mark: %+v, %v; want no loss, because the server reveals nothing", marked, err)
			}
			postgrestest.Exec(t, databaseURL, strings.Replace(strings.Replace(statement, "REVOKE", "GRANT", 1), "FROM", "TO", 1))
		})
	}
}

// createUser creates a user with permissions for its own schema only, and returns the URL of the database for this
// user.
func createUser(t *testing.T, databaseURL string) string {
	t.Helper()
	name := "user_" + strings.ToLower(rand.Text())
	postgrestest.Exec(t, databaseURL, `CREATE ROLE `+name+` LOGIN PASSWORD 'ordinary'`)
	postgrestest.Exec(t, databaseURL, `CREATE SCHEMA AUTHORIZATION `+name)
	u, err := url.Parse(databaseURL)
	if err != nil {
		t.Fatal(err)
	}
	u.User = url.UserPassword(name, "ordinary")
	return u.String()
}

func TestCallsAfterClose(t *testing.T) {
	s := openAt(t, postgrestest.Database(t))
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	_, read := journal.Collect(t.Context(), s, "a")
	_, artifact := s.Artifact(t.Context(), "a", "b")
	_, list := s.UIDs(t.Context(), "", 1)
	_, purge := s.Purge(t.Context(), time.Unix(1, 0), 1)
	_, size := s.Size(t.Context())
	_, state := s.State(t.Context())
	for name, err := range map[string]error{
		"Append": s.Append(t.Context(), "a", entry(1, 1)), "Read": read, "Artifact": artifact, "UIDs": list, "Purge": purge, "Size": size,
		"State":  state,
		"Retire": s.Retire(t.Context(), time.Unix(1, 0), "a"), "Check": s.Check(t.Context()),
	} {
		if !errors.Is(err, postgres.ErrClosed) {
			t.Errorf("%s: %v, want ErrClosed", name, err)
		}
	}
}

func TestConcurrentOpenOfNewDatabase(t *testing.T) {
	t.Parallel()
	databaseURL := postgrestest.Database(t)
	var group sync.WaitGroup
	for i := range 4 {
		group.Go(func() {
			s, err := postgres.Open(t.Context(), databaseURL)
			if err != nil {
				t.Errorf("Open: %v, want all calls to open the new database", err)
				return
			}
			if err := s.Append(t.Context(), fmt.Sprint(i), entry(1, 1)); err != nil {
				t.Errorf("Append: %v", err)
			}
			if err := s.Close(); err != nil {
				t.Errorf("Close: %v", err)
			}
		})
	}
	group.Wait()
}

func TestStoreWorksAfterCancelledCalls(t *testing.T) {
	s := openAt(t, postgrestest.Database(t))
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if err := s.Append(ended, "a", entry(1, 1)); !errors.Is(err, context.Canceled) {
		t.Errorf("Append: %v, want the context's error", err)
	}
	if err := s.Append(t.Context(), "a", entry(1, 1)); err != nil {
		t.Errorf("Append after a cancelled call: %v", err)
	}
}

// TestReadsDoNotDelayOthers checks that Turns do not wait for lists of users, and that the check, the state and the
// mark do not wait for any other call.
func TestReadsDoNotDelayOthers(t *testing.T) {
	databaseURL := postgrestest.Database(t)
	s := openAt(t, databaseURL)
	// A list does not end before its context, as on a busy server.
	postgrestest.Exec(t, databaseURL, `ALTER TABLE capstan_record RENAME TO hidden`)
	postgrestest.Exec(t, databaseURL, `CREATE VIEW capstan_record AS
		SELECT hidden.* FROM (SELECT pg_sleep(3600) OFFSET 0) AS never LEFT JOIN hidden ON true`)
	for name, tc := range map[string]struct {
		of    func(context.Context) context.Context
		lists int // how many lists the server has at least before the calls
		call  func(ctx context.Context, i int64) error
	}{
		"calls of Turns while users list": {store.OfLists, s.MaxConns() / 4, func(ctx context.Context, i int64) error {
			return s.Append(ctx, "a", entry(i+1, 1))
		}},
		"a list that gets no connection": {store.OfLists, s.MaxConns() / 4, func(ctx context.Context, i int64) error {
			if i > 0 {
				return nil
			}
			if err := s.Busy(ctx); !postgres.IsAway(err) || !strings.Contains(err.Error(), "are in use: try again later") {
				return fmt.Errorf("%w, want an error that says that the connections are in use", err)
			}
			return nil
		}},
		"checks while all connections are used": {
			func(ctx context.Context) context.Context { return ctx }, s.MaxConns() - 1,
			func(ctx context.Context, _ int64) error {
				_, state := s.State(ctx)
				_, mark := s.Mark(ctx, 0)
				return errors.Join(s.Check(ctx), state, mark)
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			user, err := pgx.Connect(t.Context(), databaseURL)
			if err != nil {
				t.Fatal(err)
			}
			defer user.Close(context.WithoutCancel(t.Context())) //nolint:errcheck // because the test ends
			listing, stop := context.WithCancel(tc.of(t.Context()))
			var group sync.WaitGroup
			defer group.Wait()
			defer stop()
			for range 2 * s.MaxConns() {
				group.Go(func() {
					if _, _, err := s.Records(listing, store.RecordQuery{}); err == nil {
						t.Error("Records returned no error, want it to wait until the end of its context")
					}
				})
			}
			for lists := 0; lists < tc.lists; {
				if err := user.QueryRow(t.Context(), `SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()
					AND state = 'active' AND wait_event = 'PgSleep'`).Scan(&lists); err != nil {
					t.Fatal(err)
				}
			}
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			for i := range int64(100) { // for so long that the lists would take the connections that they may use
				if err := tc.call(ctx, i); err != nil {
					t.Fatalf("call %d: %v", i, err)
				}
			}
		})
	}
}

// TestBudgetDelaysNoOtherAppends checks that appends that wait for the account of a Budget do not take all connections.
func TestBudgetDelaysNoOtherAppends(t *testing.T) {
	databaseURL := postgrestest.Database(t)
	s := openAt(t, databaseURL)
	request := entry(1, 1)
	request.Namespace = "helpdesk"
	request.Ledger = &budget.Change{Reserve: []budget.Reservation{{Hold: budget.Hold{Key: budget.Key{Budget: "x", End: 1}, Tokens: 1}}}}
	if err := s.Append(t.Context(), "first", request); err != nil {
		t.Fatal(err)
	}
	connect := func() *pgx.Conn {
		conn, err := pgx.Connect(t.Context(), databaseURL)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { conn.Close(context.WithoutCancel(t.Context())) }) //nolint:errcheck // because the test ends
		return conn
	}
	if _, err := connect().Exec(t.Context(), `BEGIN; SELECT FROM capstan_budget FOR UPDATE`); err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	var group sync.WaitGroup
	defer group.Wait()
	defer stop()
	var ended atomic.Int64
	for i := range 4 * s.MaxConns() {
		group.Go(func() {
			for ctx.Err() == nil { // a run also tries again
				if err := s.Append(ctx, fmt.Sprint(i), request); err == nil {
					t.Error("Append returned no error, want it to wait for the account")
				}
				ended.Add(1)
			}
		})
	}
	observer := connect()
	for waiting := 0; waiting < s.MaxConns()/2; {
		if err := observer.QueryRow(t.Context(), `SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()
			AND wait_event_type = 'Lock'`).Scan(&waiting); err != nil {
			t.Fatal(err)
		}
	}
	waited := true
	for i := range int64(10) {
		before := ended.Load()
		if err := s.Append(t.Context(), "other", entry(i+1, 1)); err != nil {
			t.Fatalf("Append %d without a Budget: %v", i, err)
		}
		waited = waited && ended.Load() != before
	}
	if waited {
		t.Error("each append without a Budget waited until an append with a Budget had ended")
	}
}

// TestSizeCountsAllTables checks that the size of the store contains its records, memories and tasks.
func TestSizeCountsAllTables(t *testing.T) {
	databaseURL := postgrestest.Database(t)
	s := openAt(t, databaseURL)
	r := turnrecord.Record{UID: "a", Namespace: "helpdesk", Turn: "one", Completed: time.Unix(1, 0)}
	if _, err := s.AddRecords(t.Context(), r); err != nil {
		t.Fatal(err)
	}
	conn, err := pgx.Connect(t.Context(), databaseURL)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.WithoutCancel(t.Context())) //nolint:errcheck // because the test ends
	var want int64
	if err := conn.QueryRow(t.Context(), `SELECT sum(pg_total_relation_size(oid))::bigint FROM pg_class
		WHERE relnamespace = current_schema()::regnamespace AND relkind = 'r'`).Scan(&want); err != nil {
		t.Fatal(err)
	}
	if got, err := s.Size(t.Context()); err != nil || got.Bytes != want {
		t.Errorf("Size: %d bytes, %v; want the %d bytes of all tables", got.Bytes, err, want)
	}
}

// entries returns all entries of a journal.
func entries(tb testing.TB, s *postgres.Store, uid string) []journal.Entry {
	tb.Helper()
	all, err := journal.Collect(tb.Context(), s, uid)
	if err != nil {
		tb.Fatal(err)
	}
	return all
}
