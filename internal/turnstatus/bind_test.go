package turnstatus_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/turnstatus"
)

func TestBindKeepsTheStoreOfTheJournal(t *testing.T) {
	for name, tc := range map[string]struct {
		reason string
		before *v1alpha1.ExecutorBinding
		want   v1alpha1.ExecutorBinding
	}{
		"first": {
			"the store is that of its executor", nil,
			v1alpha1.ExecutorBinding{Name: "e", Epoch: 1, StoreID: "new", StoreIncarnation: "2", SideEffects: true},
		},
		"begun": {
			"the next run compares", &v1alpha1.ExecutorBinding{
				Epoch: 3, StoreID: "old", StoreIncarnation: "1",
				JournalEntries: new(int64(4)),
			},
			v1alpha1.ExecutorBinding{Name: "e", Epoch: 4, StoreID: "old", StoreIncarnation: "1", JournalEntries: new(int64(4))},
		},
		"maybe begun": {
			"its entries are unknown", &v1alpha1.ExecutorBinding{Epoch: 3, StoreID: "old", StoreIncarnation: "1", SideEffects: true},
			v1alpha1.ExecutorBinding{Name: "e", Epoch: 4, StoreID: "old", StoreIncarnation: "1", SideEffects: true},
		},
		"nothing begun": {
			"it may begin anywhere", &v1alpha1.ExecutorBinding{
				Epoch: 3, StoreID: "old", StoreIncarnation: "1",
				JournalEntries: new(int64(0)), JournalComplete: true,
			},
			v1alpha1.ExecutorBinding{
				Name: "e", Epoch: 4, StoreID: "new", StoreIncarnation: "2",
				JournalEntries: new(int64(0)), JournalComplete: true, SideEffects: true,
			},
		},
		"nothing begun, as far as was written": {
			"a run may have begun after that", &v1alpha1.ExecutorBinding{
				Epoch: 3, StoreID: "old", StoreIncarnation: "1",
				JournalEntries: new(int64(0)),
			},
			v1alpha1.ExecutorBinding{Name: "e", Epoch: 4, StoreID: "old", StoreIncarnation: "1", JournalEntries: new(int64(0))},
		},
		"handed back": {
			"these are all entries", &v1alpha1.ExecutorBinding{
				Epoch: 3, StoreID: "old", StoreIncarnation: "1",
				JournalEntries: new(int64(4)), JournalComplete: true,
			},
			v1alpha1.ExecutorBinding{
				Name: "e", Epoch: 4, StoreID: "old", StoreIncarnation: "1",
				JournalEntries: new(int64(4)), JournalComplete: true,
			},
		},
		"bound, and lost with its executor": {
			"its work is unknown", &v1alpha1.ExecutorBinding{
				Name: "gone", Epoch: 3, StoreID: "old", StoreIncarnation: "1", JournalEntries: new(int64(0)), JournalComplete: true,
			},
			v1alpha1.ExecutorBinding{Name: "e", Epoch: 4, StoreID: "old", StoreIncarnation: "1", JournalEntries: new(int64(0))},
		},
		"bound by an older version": {
			"its store is not known, and stays so until a run has found its journal", &v1alpha1.ExecutorBinding{Epoch: 3},
			v1alpha1.ExecutorBinding{Name: "e", Epoch: 4},
		},
	} {
		t.Run(name, func(t *testing.T) {
			turn := &v1alpha1.Turn{Status: v1alpha1.TurnStatus{Executor: tc.before}}
			got := turnstatus.Bind(turn, nil, "e", "new", "2")
			if diff := cmp.Diff(&tc.want, got); diff != "" {
				t.Errorf("%s (-want +got):\n%s", tc.reason, diff)
			}
		})
	}
}
