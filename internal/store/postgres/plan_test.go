package postgres_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/capstan-dev/capstan/internal/runtime/journal/journaltest"
	"github.com/capstan-dev/capstan/internal/runtime/turnrecord"
	"github.com/capstan-dev/capstan/internal/store/postgres"
	"github.com/capstan-dev/capstan/internal/store/postgres/postgrestest"
)

// statements collects the statements of a store, with the number of their arguments.
type statements struct {
	mu  sync.Mutex
	all map[string]int
}

// TraceQueryStart collects a statement.
func (s *statements) TraceQueryStart(ctx context.Context, _ *pgx.Conn, data pgx.TraceQueryStartData) context.Context {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.all[data.SQL] = len(data.Args)
	return ctx
}

// TraceQueryEnd does nothing.
func (*statements) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

// genericPlan calls a store, and returns the generic plan of the statement with a text that the call executes. The
// server may use this plan for each prepared statement. A table is read as a whole only if no index fits, although the
// tables are small.
func genericPlan(t *testing.T, text string, call func(s *postgres.Store) error) string {
	t.Helper()
	dir, err := postgres.Migrations()
	if err != nil {
		t.Fatal(err)
	}
	databaseURL, traced := postgrestest.Database(t), &statements{all: map[string]int{}}
	s, err := postgres.OpenTraced(t.Context(), databaseURL, dir, traced)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close() //nolint:errcheck // because the test has what it needs
	if err := call(s); err != nil {
		t.Fatal(err)
	}
	conn, err := pgx.Connect(t.Context(), databaseURL)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.WithoutCancel(t.Context())) //nolint:errcheck // because the test has what it needs
	traced.mu.Lock()
	defer traced.mu.Unlock()
	for statement, args := range traced.all {
		if !strings.Contains(statement, text) {
			continue
		}
		explain := "EXPLAIN (COSTS OFF) EXECUTE p"
		if args > 0 {
			explain += "(NULL" + strings.Repeat(", NULL", args-1) + ")"
		}
		if _, err := conn.Exec(t.Context(), "SET plan_cache_mode = force_generic_plan; SET enable_seqscan = off; SET enable_sort = off; "+
			"PREPARE p AS "+statement, pgx.QueryExecModeSimpleProtocol); err != nil {
			t.Fatal(err)
		}
		rows, err := conn.Query(t.Context(), explain, pgx.QueryExecModeSimpleProtocol)
		if err != nil {
			t.Fatal(err)
		}
		lines, err := pgx.CollectRows(rows, pgx.RowTo[string])
		if err != nil {
			t.Fatal(err)
		}
		return strings.Join(lines, "\n")
	}
	t.Fatalf("the call executes no statement with the text %q", text)
	return ""
}

// TestExpiryReadsNoTable checks that the end of a time to live reads the tables with their indexes only.
func TestExpiryReadsNoTable(t *testing.T) {
	plan := genericPlan(t, "SET expired_until", func(s *postgres.Store) error {
		return s.SetExpired(t.Context(), "uid", time.Unix(1, 0))
	})
	if !strings.Contains(plan, "capstan_memory_session") || strings.Contains(plan, "Seq Scan on capstan_memory") {
		t.Errorf("the plan is\n%s\nwant a search with the index capstan_memory_session", plan)
	}
}

// TestRetiredJournalsAreReadInOrder checks that a page of retired journals reads an index in its order. Otherwise each
// page would read and sort all of them.
func TestRetiredJournalsAreReadInOrder(t *testing.T) {
	plan := genericPlan(t, "retired_at IS NOT NULL AND turn_uid", func(s *postgres.Store) error {
		_, err := s.RetiredUIDs(t.Context(), "", 1)
		return err
	})
	if !strings.Contains(plan, "using capstan_turn_retired_uid") || strings.Contains(plan, "Sort") {
		t.Errorf("the plan is\n%s\nwant a search with the index capstan_turn_retired_uid, without a sort", plan)
	}
}

// TestSearchForSurplusRecords checks that the search for surplus records reads an index in its order.
func TestSearchForSurplusRecords(t *testing.T) {
	plan := genericPlan(t, "DELETE FROM capstan_record", func(s *postgres.Store) error {
		for i := range 3 {
			r := turnrecord.Record{UID: fmt.Sprint(i), Namespace: "helpdesk", Completed: time.Unix(int64(i), 0)}
			if _, err := s.AddRecords(t.Context(), r); err != nil {
				return err
			}
		}
		n, err := s.TrimRecords(t.Context(), 2, 10)
		if err == nil && n != 1 {
			t.Errorf("%d records were deleted, want 1", n)
		}
		return err
	})
	if !strings.Contains(plan, "(namespace = $1) AND (ROW(completed, uid) <= ROW(") || strings.Contains(plan, "Sort") {
		t.Errorf("the plan is\n%s\nwant searches with the index capstan_record_namespace, without a sort", plan)
	}
}

// TestTrimmingContinues runs the shared test.
func TestTrimmingContinues(t *testing.T) {
	s, err := postgres.Open(t.Context(), postgrestest.Database(t))
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close() //nolint:errcheck // because the test has what it needs
	journaltest.TrimmingContinues(t, s)
}
