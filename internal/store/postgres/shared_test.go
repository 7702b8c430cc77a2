package postgres_test

import (
	"context"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/capstan-dev/capstan/internal/runtime/journal"
	"github.com/capstan-dev/capstan/internal/runtime/task"
	"github.com/capstan-dev/capstan/internal/runtime/turnrecord"
	"github.com/capstan-dev/capstan/internal/store"
	"github.com/capstan-dev/capstan/internal/store/postgres"
	"github.com/capstan-dev/capstan/internal/store/postgres/postgrestest"
)

// TestInstallationsThatShareSchema opens the same tables for different namespaces. What one installation deletes by its
// own retention, and the tasks that it claims, must be its own.
func TestInstallationsThatShareSchema(t *testing.T) {
	databaseURL := postgrestest.Database(t)
	all := openAt(t, databaseURL)
	now := time.Unix(1000, 0)
	for _, namespace := range []string{"helpdesk", "sales", ""} {
		uid := "of-" + namespace
		e := entry(1, 1)
		e.Kind, e.Namespace = journal.Finalized, namespace
		if namespace != "" { // an older version has written neither the namespace nor the record nor the task
			e.TurnRecord = &turnrecord.Record{UID: uid, Namespace: namespace, Completed: now}
			e.Tasks = []task.Task{{UID: uid, Kind: task.Learn, Namespace: namespace, Created: now}}
		}
		if err := all.Append(t.Context(), uid, e); err != nil {
			t.Fatal(err)
		}
	}
	later := now.Add(time.Hour)
	claim := func(s *postgres.Store) string {
		k, err := s.ClaimTask(t.Context(), task.Search{Now: later, Until: later.Add(time.Hour)})
		if err != nil {
			t.Fatal(err)
		}
		if k == nil {
			return ""
		}
		return k.Namespace
	}
	s, err := postgres.Open(t.Context(), databaseURL, "sales", "other")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	whole, err := all.Use(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	older := whole.Bytes - whole.Namespaces["helpdesk"] - whole.Namespaces["sales"]
	want := store.Use{
		Free: -1, Bytes: older + whole.Namespaces["sales"], Namespaces: map[string]int64{"sales": whole.Namespaces["sales"]},
	}
	space, err := s.Use(t.Context())
	if diff := cmp.Diff(want, space); diff != "" || err != nil || len(whole.Namespaces) != 2 || older <= 0 {
		t.Errorf("Use of sales, of %+v in all (error %v; -want +got):\n%s", whole, err, diff)
	}
	use, err := s.TaskUse(t.Context())
	if err != nil || len(use) != 1 || use[0].Namespace != "sales" {
		t.Errorf("TaskUse: %+v, %v; want the task of sales", use, err)
	}
	if first, second := claim(s), claim(s); first != "sales" || second != "" {
		t.Errorf("ClaimTask has claimed tasks of %q and %q, want the only task of sales", first, second)
	}
	if err := all.Retire(t.Context(), now, "of-helpdesk", "of-sales", "of-"); err != nil {
		t.Fatal(err)
	}
	n, err := s.Purge(t.Context(), later, 10)
	left := map[string]int{}
	for _, uid := range []string{"of-helpdesk", "of-sales", "of-"} {
		left[uid] = len(entries(t, all, uid))
	}
	if diff := cmp.Diff(map[string]int{"of-helpdesk": 1, "of-sales": 0, "of-": 0}, left); diff != "" || n != 2 || err != nil {
		t.Errorf("Purge: %d, %v; want the journals of sales and of no namespace deleted; entries (-want +got):\n%s", n, err, diff)
	}
	for name, remove := range map[string]func(context.Context) (int, error){
		"PurgeRecords": func(ctx context.Context) (int, error) { return s.PurgeRecords(ctx, later, 10) },
		"TrimRecords":  func(ctx context.Context) (int, error) { return s.TrimRecords(ctx, 0, 10) },
	} {
		if _, err := all.AddRecords(t.Context(), turnrecord.Record{UID: "of-sales", Namespace: "sales", Completed: now}); err != nil {
			t.Fatal(err)
		}
		n, err := remove(t.Context())
		kept, _, readErr := all.Records(t.Context(), store.RecordQuery{})
		if n != 1 || err != nil || readErr != nil || len(kept) != 1 || kept[0].Namespace != "helpdesk" {
			t.Errorf("%s: %d, %v; want the record of sales deleted, and the record of helpdesk kept; records: %+v, %v", name, n, err,
				kept, readErr)
		}
	}
	if n, err := all.PurgeRecords(t.Context(), later, 10); n != 1 || err != nil {
		t.Errorf("PurgeRecords of a store of all namespaces: %d, %v; want the last record deleted", n, err)
	}
}
