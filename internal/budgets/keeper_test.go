package budgets

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/shopspring/decimal"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/approvals"
	core "github.com/capstan-dev/capstan/internal/runtime/budget"
	"github.com/capstan-dev/capstan/internal/runtime/journal"
	"github.com/capstan-dev/capstan/internal/runtime/journal/journaltest"
	"github.com/capstan-dev/capstan/internal/runtime/zone"
	"github.com/capstan-dev/capstan/internal/store/sqlite/sqlitetest"
	"github.com/capstan-dev/capstan/internal/translate"
)

// TestStatusFollowsTheLedger checks the status of a Budget from its first request to its deletion, with a warning, a
// reached limit and a reset, on a real store.
func TestStatusFollowsTheLedger(t *testing.T) {
	store := sqlitetest.Open(t)
	scheme := runtime.NewScheme()
	if err := v1alpha1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	b := &v1alpha1.Budget{
		ObjectMeta: metav1.ObjectMeta{Namespace: "helpdesk", Name: "day", UID: "uid", Generation: 3},
		Spec: v1alpha1.BudgetSpec{
			Period: v1alpha1.BudgetPeriodDay, TimeZone: "Europe/Berlin", Currency: "USD", WarnPercent: new(int32(50)),
			Limits: v1alpha1.BudgetLimits{Tokens: new(int64(100))},
		},
	}
	c := fake.NewClientBuilder().WithScheme(scheme).WithObjects(b).WithStatusSubresource(b).Build()
	recorder := events.NewFakeRecorder(10)
	now := time.Date(2026, 11, 25, 21, 0, 0, 0, time.UTC)
	k := &Keeper{Ledger: store, Set: &Set{}, Client: c, Events: recorder, Now: func() time.Time { return now }, Log: logr.Discard()}
	k.Set.Put(b)
	seq := int64(0)
	change := func(l core.Change) {
		t.Helper()
		seq++
		entry := journal.Entry{Seq: seq, Epoch: 1, Version: 1, Time: now, Payload: []byte("{}"), Ledger: &l}
		if err := store.Append(t.Context(), "turn", entry); err != nil {
			t.Fatal(err)
		}
	}
	request := func(tokens int64) {
		t.Helper()
		p, err := core.PeriodAt(core.Day, load(t, "Europe/Berlin"), now)
		if err != nil {
			t.Fatal(err)
		}
		hold := core.Hold{Key: core.KeyOf("uid", p), Currency: "USD", Tokens: 7}
		change(core.Change{Reserve: []core.Reservation{{Hold: hold, CountTurn: true}}})
		if tokens > 0 {
			change(core.Change{Outcome: &core.Amount{Tokens: tokens, Cost: decimal.RequireFromString("0.25"), Currency: "USD"}})
		}
	}
	checkRound := func(tokens, reserved int64, exceeded, warning bool, event string) {
		t.Helper()
		if err := k.round(t.Context()); err != nil {
			t.Fatal(err)
		}
		got := &v1alpha1.Budget{}
		if err := c.Get(t.Context(), client.ObjectKeyFromObject(b), got); err != nil {
			t.Fatal(err)
		}
		s := got.Status
		held := int64(0)
		if s.Reserved != nil {
			held = s.Reserved.Tokens
		}
		is := func(kind string) bool { return meta.IsStatusConditionTrue(s.Conditions, kind) }
		if s.ObservedGeneration != 3 || s.Spent.Tokens != tokens || held != reserved || is(v1alpha1.ConditionExceeded) != exceeded ||
			is(v1alpha1.ConditionWarning) != warning || !is(v1alpha1.ConditionReady) {
			t.Fatalf("status: %+v; want %d tokens spent and %d reserved, exceeded %t, warning %t", s, tokens, reserved, exceeded, warning)
		}
		version := got.ResourceVersion
		if err := k.round(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := c.Get(t.Context(), client.ObjectKeyFromObject(b), got); err != nil || got.ResourceVersion != version {
			t.Fatalf("a round without changes has written the status (%v)", err)
		}
		emitted := ""
		for len(recorder.Events) > 0 {
			emitted += <-recorder.Events + "\n"
		}
		if (event == "") != (emitted == "") || !strings.Contains(emitted, event) {
			t.Fatalf("Events: %q, want an Event that contains %q, or no Event if that is empty", emitted, event)
		}
	}
	checkRound(0, 0, false, false, "")
	request(49)
	checkRound(49, 0, false, false, "")
	request(1)
	checkRound(50, 0, false, true, "Warning WarnPercentReached the warning threshold of 50 % is reached: 50 of 100 tokens are spent")
	request(0)
	checkRound(50, 7, false, true, "")
	change(core.Change{Outcome: &core.Amount{Tokens: 60}})
	checkRound(110, 0, true, true,
		`LimitReached Budget "day": 110 of 100 tokens are spent; the next period begins at 2026-11-26T00:00:00+01:00`)
	now = now.Add(2 * time.Hour)
	checkRound(0, 0, false, false, "Normal WithinLimits")
	if got, err := store.Accounts(t.Context(), now.Add(-2*time.Hour)); err != nil || len(got) != 1 {
		t.Errorf("Accounts: %v, %v; want the account of the previous period, for requests that end late", got, err)
	}
	request(5)
	k.Set.Delete(b)
	if err := k.round(context.WithoutCancel(t.Context())); err != nil {
		t.Fatal(err)
	}
	if got, err := store.Accounts(t.Context(), now); err != nil || len(got) != 0 {
		t.Errorf("Accounts: %v, %v; want none, because the Budget is deleted", got, err)
	}
}

// lockedLedger is a ledger that cannot be raised while locked is true.
type lockedLedger struct {
	core.Ledger
	locked bool
}

var errLocked = errors.New("the store cannot be written")

// RaiseAccounts returns an error if the ledger is locked.
func (l *lockedLedger) RaiseAccounts(ctx context.Context, spent ...core.Account) error {
	if l.locked {
		return errLocked
	}
	return l.Ledger.RaiseAccounts(ctx, spent...)
}

// TestBudgetsContinueAfterALossOfTheStore checks that a Budget continues with the amounts of its status if the store
// has lost them: all of them, or only those after a copy.
func TestBudgetsContinueAfterALossOfTheStore(t *testing.T) {
	scheme := runtime.NewScheme()
	if err := v1alpha1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	b := &v1alpha1.Budget{
		ObjectMeta: metav1.ObjectMeta{Namespace: "helpdesk", Name: "day", UID: "uid"},
		Spec: v1alpha1.BudgetSpec{
			Period: v1alpha1.BudgetPeriodDay, TimeZone: "UTC", Currency: "USD",
			Limits: v1alpha1.BudgetLimits{Tokens: new(int64(100))},
		},
	}
	c := fake.NewClientBuilder().WithScheme(scheme).WithObjects(b).WithStatusSubresource(b).Build()
	recorder := events.NewFakeRecorder(10)
	now := time.Date(2026, 11, 25, 0, 30, 0, 0, time.UTC)
	k := &Keeper{Set: &Set{}, Client: c, Events: recorder, Now: func() time.Time { return now }, Log: logr.Discard()}
	k.Set.Put(b)
	var store *journaltest.Store
	replaceStore := func() *lockedLedger {
		store = &journaltest.Store{}
		l := &lockedLedger{Ledger: store}
		k.Ledger = l
		return l
	}
	seq := map[string]int64{}
	change := func(turn string, l core.Change) {
		t.Helper()
		seq[turn]++
		entry := journal.Entry{Seq: seq[turn], Epoch: 1, Version: 1, Time: now, Payload: []byte("{}"), Ledger: &l}
		if err := store.Append(t.Context(), turn, entry); err != nil {
			t.Fatal(err)
		}
	}
	reserve := func(turn string) {
		t.Helper()
		p, err := core.PeriodAt(core.Day, time.UTC, now)
		if err != nil {
			t.Fatal(err)
		}
		hold := core.Hold{Key: core.KeyOf("uid", p), Currency: "USD", Tokens: 7}
		change(turn, core.Change{Reserve: []core.Reservation{{Hold: hold, CountTurn: true}}})
	}
	request := func(turn string, tokens int64, cost string) {
		t.Helper()
		reserve(turn)
		change(turn, core.Change{Outcome: &core.Amount{Tokens: tokens, Cost: decimal.RequireFromString(cost), Currency: "USD"}})
	}
	checkRound := func(step string, tokens int64, cost string, turns int64, wantErr error, event string) {
		t.Helper()
		if err := k.round(t.Context()); !errors.Is(err, wantErr) {
			t.Fatalf("%s: %v, want %v", step, err, wantErr)
		}
		got := &v1alpha1.Budget{}
		if err := c.Get(t.Context(), client.ObjectKeyFromObject(b), got); err != nil {
			t.Fatal(err)
		}
		if s := got.Status.Spent; s.Tokens != tokens || s.Cost != cost || s.Turns != turns {
			t.Fatalf("%s: status.spent is %+v, want %d tokens, %s USD and %d Turns", step, s, tokens, cost, turns)
		}
		emitted := ""
		for len(recorder.Events) > 0 {
			emitted += <-recorder.Events + "\n"
		}
		if strings.Count(emitted, v1alpha1.EventStoreLostAmounts) != min(len(event), 1) || !strings.Contains(emitted, event) {
			t.Fatalf("%s: Events: %q, want the Event %q, or none about the store if that is empty", step, emitted, event)
		}
	}
	replaceStore()
	request("a", 60, "0.5")
	reserve("b")
	checkRound("before the loss", 60, "0.5", 2, nil, "")
	change("b", core.Change{Outcome: &core.Amount{}, Uncount: true})
	checkRound("a Turn whose request was not sent", 60, "0.5", 1, nil, "")
	reserve("b")
	checkRound("the Turn again", 60, "0.5", 2, nil, "")

	ledger := replaceStore()
	ledger.locked = true
	checkRound("a new store that cannot be written", 60, "0.5", 2, errLocked, "")
	checkRound("the same store", 60, "0.5", 2, errLocked, "")
	ledger.locked = false
	checkRound("the store can be written again", 60, "0.5", 2, nil, "Warning StoreLostAmounts the store of the journals has lost amounts "+
		"of the current period, and has only 0 tokens, 0 USD and 0 Turns: the budget continues with the higher amounts of "+
		"the store and its status, 60 tokens, 0.5 USD and 2 Turns")
	checkRound("without a further loss", 60, "0.5", 2, nil, "")
	request("c", 30, "0")
	checkRound("another request", 90, "0.5", 3, nil, "")

	replaceStore()
	request("d", 60, "0.7")
	checkRound("an older copy of the store", 90, "0.7", 3, nil, "has only 60 tokens, 0.7 USD and 1 Turns: the budget continues")
	replaceStore()
	now = now.Add(24 * time.Hour)
	checkRound("a loss, and the next period", 0, "0", 0, nil, "")
	reserve("e")
	checkRound("only a reservation", 0, "0", 1, nil, "")
	replaceStore()
	checkRound("the loss of a Turn that only reserved", 0, "0", 1, nil, "has only 0 tokens, 0 USD and 0 Turns")

	got := &v1alpha1.Budget{}
	if err := c.Get(t.Context(), client.ObjectKeyFromObject(b), got); err != nil {
		t.Fatal(err)
	}
	got.Spec.Period = v1alpha1.BudgetPeriodHour // the current hour begins at the same time as the day
	if err := c.Update(t.Context(), got); err != nil {
		t.Fatal(err)
	}
	now = now.Truncate(24 * time.Hour)
	checkRound("another unit", 0, "0", 0, nil, "")
}

// TestReadySaysWhetherRequestersAreChecked checks the condition Ready of a Budget that selects requesters, and that it
// does not change while the check fails.
func TestReadySaysWhetherRequestersAreChecked(t *testing.T) {
	b := &v1alpha1.Budget{
		ObjectMeta: metav1.ObjectMeta{Namespace: "helpdesk", Name: "day", UID: "uid"},
		Spec: v1alpha1.BudgetSpec{
			Period: v1alpha1.BudgetPeriodDay, TimeZone: "UTC", Currency: "USD", Limits: v1alpha1.BudgetLimits{Turns: new(int64(1))},
			Selector: &v1alpha1.BudgetSelector{Requesters: []string{"ada"}},
		},
	}
	now := time.Date(2026, 11, 25, 21, 0, 0, 0, time.UTC)
	away := errors.New("the API server is away")
	for name, tc := range map[string]struct {
		check approvals.RequesterCheck
		want  string
		err   error
	}{
		"checked":  {approvals.TrustRequesters, v1alpha1.ReasonReady, nil},
		"no check": {nil, v1alpha1.ReasonRequestersNotChecked, nil},
		"without a policy": {
			func(context.Context, time.Time) (string, error) { return "no policy", nil }, v1alpha1.ReasonRequestersNotChecked, nil,
		},
		"the check fails": {func(context.Context, time.Time) (string, error) { return "", away }, "", away},
	} {
		k := &Keeper{Set: &Set{}, Requesters: tc.check}
		k.Set.Put(b)
		unchecked := func() (bool, error) { return k.unchecked(t.Context(), now) }
		s, _, err := k.statusOf(b, nil, unchecked, now)
		got := ""
		if s != nil {
			got = meta.FindStatusCondition(s.Conditions, v1alpha1.ConditionReady).Reason
		}
		if got != tc.want || !errors.Is(err, tc.err) {
			t.Errorf("%s: Ready has the reason %q (%v), want %q (%v)", name, got, err, tc.want, tc.err)
		}
	}
}

// TestFaultOfTheSpecStalls checks that a Budget is Stalled exactly while only a change to its spec makes it Ready.
func TestFaultOfTheSpecStalls(t *testing.T) {
	b := &v1alpha1.Budget{
		ObjectMeta: metav1.ObjectMeta{Namespace: "helpdesk", Name: "day", UID: "uid"},
		Spec: v1alpha1.BudgetSpec{
			Period: v1alpha1.BudgetPeriodDay, Currency: "USD", Limits: v1alpha1.BudgetLimits{Turns: new(int64(1))},
			Selector: &v1alpha1.BudgetSelector{Requesters: []string{"ada"}},
		},
	}
	k := &Keeper{Set: &Set{}}
	k.Set.Put(b)
	for _, step := range []struct{ zone, ready, stalled string }{
		{"Europe/Berlin", v1alpha1.ReasonRequestersNotChecked, ""},
		{"Europe/Atlantis", v1alpha1.ReasonInvalidBudget, v1alpha1.ReasonInvalidBudget},
		{"Europe/Berlin", v1alpha1.ReasonRequestersNotChecked, ""},
	} {
		b.Spec.TimeZone = step.zone
		b.Generation++
		s, _, err := k.statusOf(b, nil, func() (bool, error) { return true, nil }, time.Date(2026, 11, 25, 21, 0, 0, 0, time.UTC))
		if err != nil {
			t.Fatal(err)
		}
		b.Status = *s
		stalled := ""
		c := meta.FindStatusCondition(s.Conditions, v1alpha1.ConditionStalled)
		if c != nil {
			stalled = c.Reason
		}
		ready := meta.FindStatusCondition(s.Conditions, v1alpha1.ConditionReady)
		if ready.Reason != step.ready || stalled != step.stalled {
			t.Errorf("in %s: Ready has the reason %q and Stalled %q, want %q and %q",
				step.zone, ready.Reason, stalled, step.ready, step.stalled)
		}
		if c != nil && (c.Status != metav1.ConditionTrue || c.Message != ready.Message || c.ObservedGeneration != b.Generation) {
			t.Errorf("Stalled is %+v, want True for generation %d, with the message of Ready: %s", c, b.Generation, ready.Message)
		}
	}
}

// TestNameThatNoAgentCanHave checks that a stored Budget with such a name is not Ready, and applies to its other
// Agents.
func TestNameThatNoAgentCanHave(t *testing.T) {
	for name, want := range map[string]string{
		"support": v1alpha1.ReasonReady, "team-a/sup.port": v1alpha1.ReasonReady,
		"Support": v1alpha1.ReasonInvalidBudget, "sup port": v1alpha1.ReasonInvalidBudget, "team-a/": v1alpha1.ReasonInvalidBudget,
		"sup*": v1alpha1.ReasonInvalidBudget, "Team/support": v1alpha1.ReasonInvalidBudget, "a/b/c": v1alpha1.ReasonInvalidBudget,
	} {
		b := &v1alpha1.Budget{
			ObjectMeta: metav1.ObjectMeta{Namespace: "helpdesk", Name: "day", UID: "uid"},
			Spec: v1alpha1.BudgetSpec{
				Period: v1alpha1.BudgetPeriodDay, Currency: "USD", Limits: v1alpha1.BudgetLimits{Turns: new(int64(1))},
				Selector: &v1alpha1.BudgetSelector{Agents: &v1alpha1.BudgetAgents{Names: []string{name, "other"}}},
			},
		}
		k := &Keeper{Set: &Set{}}
		k.Set.Put(b)
		s, _, err := k.statusOf(b, nil, func() (bool, error) { return false, nil }, time.Date(2026, 11, 25, 21, 0, 0, 0, time.UTC))
		if err != nil {
			t.Fatal(err)
		}
		ready := meta.FindStatusCondition(s.Conditions, v1alpha1.ConditionReady)
		if ready.Reason != want || want != v1alpha1.ReasonReady && !strings.Contains(ready.Message, fmt.Sprintf("names[0] %q", name)) {
			t.Errorf("%q: Ready has the reason %q and the message %q, want %q", name, ready.Reason, ready.Message, want)
		}
		rule := translate.Budget(b)
		if !rule.SelectsAgent(types.NamespacedName{Namespace: "helpdesk", Name: "other"}, nil) {
			t.Errorf("%q: the Budget does not apply to the other Agent", name)
		}
	}
}

func load(t *testing.T, name string) *time.Location {
	t.Helper()
	l, err := zone.Load(name)
	if err != nil {
		t.Fatal(err)
	}
	return l
}
