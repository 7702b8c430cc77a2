package budgets

import (
	"testing"
	"time"

	"github.com/go-logr/logr"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	core "github.com/capstan-dev/capstan/internal/runtime/budget"
	"github.com/capstan-dev/capstan/internal/runtime/journal"
	"github.com/capstan-dev/capstan/internal/store/sqlite/sqlitetest"
)

// TestPeriodContinuesAfterAWrongClock lets the clock be hours ahead for a while, in the next period. When it is right
// again, the limit of the earlier period is still reached.
func TestPeriodContinuesAfterAWrongClock(t *testing.T) {
	store := sqlitetest.Open(t)
	scheme := runtime.NewScheme()
	if err := v1alpha1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	b := &v1alpha1.Budget{
		ObjectMeta: metav1.ObjectMeta{Namespace: "helpdesk", Name: "day", UID: "uid"},
		Spec: v1alpha1.BudgetSpec{
			Period: v1alpha1.BudgetPeriodDay, Currency: "USD", Limits: v1alpha1.BudgetLimits{Tokens: new(int64(100))},
		},
	}
	c := fake.NewClientBuilder().WithScheme(scheme).WithObjects(b).WithStatusSubresource(b).Build()
	now := time.Date(2026, 11, 25, 21, 0, 0, 0, time.UTC)
	k := &Keeper{
		Ledger: store, Set: &Set{}, Client: c, Events: events.NewFakeRecorder(10), Now: func() time.Time { return now },
		Log: logr.Discard(),
	}
	k.Set.Put(b)
	p, err := core.PeriodAt(core.Day, time.UTC, now)
	if err != nil {
		t.Fatal(err)
	}
	hold := core.Hold{Key: core.KeyOf("uid", p), Currency: "USD", Tokens: 7}
	for i, change := range []core.Change{{Reserve: []core.Reservation{{Hold: hold}}}, {Outcome: &core.Amount{Tokens: 110}}} {
		entry := journal.Entry{Seq: int64(i + 1), Epoch: 1, Version: 1, Time: now, Payload: []byte("{}"), Ledger: &change}
		if err := store.Append(t.Context(), "turn", entry); err != nil {
			t.Fatal(err)
		}
	}
	for _, tc := range []struct {
		ahead time.Duration
		spent int64
	}{{0, 110}, {12 * time.Hour, 0}, {0, 110}} {
		now = p.Start.Add(21*time.Hour + tc.ahead)
		if err := k.round(t.Context()); err != nil {
			t.Fatal(err)
		}
		got := &v1alpha1.Budget{}
		if err := c.Get(t.Context(), client.ObjectKeyFromObject(b), got); err != nil || got.Status.Spent.Tokens != tc.spent {
			t.Errorf("at %s: %d tokens spent, %v; want %d", now, got.Status.Spent.Tokens, err, tc.spent)
		}
	}
}
