package postgres_test

import (
	"context"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/capstan-dev/capstan/internal/runtime/journal"
	"github.com/capstan-dev/capstan/internal/runtime/memories"
	"github.com/capstan-dev/capstan/internal/runtime/task"
	"github.com/capstan-dev/capstan/internal/runtime/turnrecord"
	"github.com/capstan-dev/capstan/internal/store/postgres"
	"github.com/capstan-dev/capstan/internal/store/postgres/postgrestest"
)

// TestNoCallFailsBecauseOfADeadlock makes two calls wait for a lock, and then releases the lock. Each of them locks
// several rows. The order of the rows in the tables is not that of their keys.
func TestNoCallFailsBecauseOfADeadlock(t *testing.T) {
	at := time.Unix(1_000_000, 0).UTC()
	learned := func(texts ...string) (all []memories.Memory) {
		for _, text := range texts {
			m := memories.Memory{
				Namespace: "helpdesk", Agent: "desk", Scope: memories.User, Text: text, Requester: "ada", Turn: "turn", TurnUID: "z turn",
				Learned: at, Expires: at.Add(time.Hour),
			}
			m.Identify()
			all = append(all, m)
		}
		return all
	}
	learn := func(ctx context.Context, s *postgres.Store, uid string, all []memories.Memory) error {
		k, err := s.ClaimTask(ctx, task.Search{Now: at, Until: at.Add(time.Minute)})
		if err == nil {
			err = s.BeginTask(ctx, k.Held(), task.Start{Now: at, MaxPerHour: 10})
		}
		if err != nil {
			return err
		}
		for i := range all {
			all[i].TurnUID, all[i].Learned = uid, all[i].Learned.Add(time.Second)
		}
		return s.FinishTask(ctx, k.Held(), task.Result{Learned: &task.Learned{Memories: all, MaxItems: 10}}, 0)
	}
	retire := func(ctx context.Context, s *postgres.Store) error { return s.Retire(ctx, at, "z turn", "a session") }
	observe := func(ctx context.Context, s *postgres.Store) error {
		return s.Observe(ctx, memories.Observation{
			TurnUID: "z turn", SessionUID: "a session", Namespace: "helpdesk", Agent: "desk", Time: at,
		})
	}
	for name, tc := range map[string]struct {
		hold          string
		first, second func(ctx context.Context, s *postgres.Store) error
	}{
		"an observation of a Turn that is retired": {
			`SELECT FROM capstan_turn WHERE turn_uid = 'z turn' FOR UPDATE`, retire, observe,
		},
		"an observation of a Turn that is forgotten": {
			`SELECT FROM capstan_turn WHERE turn_uid = 'z turn' FOR UPDATE`,
			func(ctx context.Context, s *postgres.Store) error { return s.Forget(ctx, at, "z turn", "a session") }, observe,
		},
		"memories that are learned again while their Turn is retired": {
			`SELECT FROM capstan_memory WHERE text = 'one' FOR UPDATE`, retire,
			func(ctx context.Context, s *postgres.Store) error {
				return learn(ctx, s, "zz turn", learned("two", "one"))
			},
		},
		"a number of a Turn that is retired with its Session": {
			`SELECT FROM capstan_record FOR UPDATE`,
			func(ctx context.Context, s *postgres.Store) error {
				e := entry(2, 1)
				e.TurnNumber = &journal.TurnNumber{TurnUID: "z turn", Number: 2}
				return s.Append(ctx, "a session", e)
			}, retire,
		},
	} {
		t.Run(name, func(t *testing.T) {
			databaseURL := postgrestest.Database(t)
			s := openAt(t, databaseURL)
			for _, uid := range []string{"zz turn", "z turn", "a session"} {
				e := entry(1, 1)
				if uid != "a session" {
					e.Kind = journal.Finalized
					e.TurnRecord = &turnrecord.Record{UID: uid, Namespace: "helpdesk", Turn: uid, Agent: "desk", Completed: at}
					e.Tasks = []task.Task{{UID: uid, Kind: task.Learn, Namespace: "helpdesk", Turn: uid, Agent: "desk", Created: at}}
				}
				if err := s.Append(t.Context(), uid, e); err != nil {
					t.Fatal(err)
				}
			}
			if err := learn(t.Context(), s, "z turn", learned("one", "two")); err != nil {
				t.Fatal(err)
			}
			conn, err := pgx.Connect(t.Context(), databaseURL)
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close(context.WithoutCancel(t.Context())) //nolint:errcheck // because the test ends
			if _, err := conn.Exec(t.Context(), `BEGIN; `+tc.hold); err != nil {
				t.Fatal(err)
			}
			ended := make(chan error, 2)
			for i, call := range []func(ctx context.Context, s *postgres.Store) error{tc.first, tc.second} {
				go func() { ended <- call(t.Context(), s) }()
				for waiting := 0; waiting <= i; {
					if err := conn.QueryRow(t.Context(), `SELECT count(DISTINCT pid)
						FROM pg_stat_clear_snapshot(), pg_locks WHERE NOT granted
						AND pid IN (SELECT pid FROM pg_stat_activity WHERE datname = current_database())`).Scan(&waiting); err != nil {
						t.Fatal(err)
					}
				}
			}
			if _, err := conn.Exec(t.Context(), `ROLLBACK`); err != nil {
				t.Fatal(err)
			}
			for range 2 {
				if err := <-ended; err != nil {
					t.Errorf("a call failed: %v", err)
				}
			}
		})
	}
}
