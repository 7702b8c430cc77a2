package manager

import (
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/tools/events"

	"github.com/capstan-dev/capstan/internal/executor"
	"github.com/capstan-dev/capstan/internal/store/sqlite/sqlitetest"
)

// TestIdentify checks that the manager compares its store with the Leases of executors when it starts, also with the
// Lease of an executor that no longer runs, and with the Lease of the store when that Lease is gone, too.
func TestIdentify(t *testing.T) {
	for name, tc := range map[string]struct{ ofStore, behind bool }{
		"at the published position":                             {false, false},
		"an older copy":                                         {false, true},
		"at the position that the Lease of the store has":       {true, false},
		"an older copy, after the executor's Lease was deleted": {true, true},
	} {
		t.Run(name, func(t *testing.T) {
			behind := tc.behind
			journals := sqlitetest.Open(t)
			before, err := journals.Mark(t.Context(), 0)
			if err != nil {
				t.Fatal(err)
			}
			position := "1"
			if behind {
				position = "7"
			}
			lease := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{
				Namespace: "capstan-system", Name: executor.LeasePrefix + "gone",
				Labels:      map[string]string{executor.LeaseLabel: executor.LeaseLabelValue},
				Annotations: map[string]string{executor.StoreAnnotation: before.ID, executor.PositionAnnotation: position},
			}}
			if tc.ofStore {
				lease.Name = executor.StoreLeaseName(before.ID)
			}
			recorder := events.NewFakeRecorder(2)
			p := &parts{
				options: Options{Namespace: "capstan-system", ExecutorName: "new"}, clientset: fake.NewClientset(lease), store: journals,
				events: recorder, log: logr.Discard(),
			}
			if err := p.identify(t.Context(), time.Now().Add(startPatience)); err != nil {
				t.Fatal(err)
			}
			if got := p.identity.Last(); got.ID != before.ID || (got.Incarnation != before.Incarnation) != behind {
				t.Errorf("the store is %+v and was %+v, want the same ID, and a new incarnation: %t", got, before, behind)
			}
			close(recorder.Events)
			var notes []string
			for e := range recorder.Events {
				notes = append(notes, e)
			}
			if behind != (len(notes) == 1 && strings.Contains(notes[0], "Warning StoreLostEntries") &&
				strings.Contains(notes[0], "it is at position 1 and had reached 7")) {
				t.Errorf("Events %q, want one that reports the loss: %t", notes, behind)
			}
		})
	}
}
