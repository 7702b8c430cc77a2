package journaltest

import (
	"fmt"
	"testing"
	"time"

	"github.com/capstan-dev/capstan/internal/runtime/turnrecord"
	"github.com/capstan-dev/capstan/internal/store"
)

// TrimmingContinues checks that TrimRecords counts all records once, and not for each batch: after a full batch, it
// continues with the same namespace. The store must have no records.
func TrimmingContinues(t *testing.T, s store.Records) {
	t.Helper()
	all := map[string]int{"helpdesk": 5, "sales": 4}
	for namespace, n := range all {
		for i := range n {
			r := turnrecord.Record{UID: fmt.Sprint(namespace, i), Namespace: namespace, Completed: time.Unix(int64(i), 0)}
			if _, err := s.AddRecords(t.Context(), r); err != nil {
				t.Fatal(err)
			}
		}
	}
	for i, want := range []struct{ deleted, helpdesk, sales int }{{2, 3, 4}, {2, 1, 4}, {2, 1, 2}, {1, 1, 1}, {0, 1, 1}} {
		n, err := s.TrimRecords(t.Context(), 1, 2)
		if err != nil || n != want.deleted {
			t.Errorf("call %d: %d, %v; want %d", i, n, err, want.deleted)
		}
		for namespace, want := range map[string]int{"helpdesk": want.helpdesk, "sales": want.sales} {
			left, _, err := s.Records(t.Context(), store.RecordQuery{RecordSelector: store.RecordSelector{Namespace: namespace}})
			if err != nil || len(left) != want {
				t.Errorf("after call %d: %d records of namespace %s, %v; want %d", i, len(left), namespace, err, want)
			}
		}
	}
}
