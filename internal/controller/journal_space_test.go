package controller

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/executor"
	"github.com/capstan-dev/capstan/internal/quota"
)

// Reports of an executor on journal quotas. tight and spent are about the namespace helpdesk, idle and allTight are
// about all namespaces together.
var (
	tight    = &quota.Report{Namespaces: map[string]quota.Budget{"helpdesk": {Used: 85, Limit: 100}}}
	spent    = &quota.Report{Namespaces: map[string]quota.Budget{"helpdesk": {Used: 100, Limit: 100}}}
	idle     = &quota.Report{Total: quota.Budget{Used: 1, Limit: 100}}
	allTight = &quota.Report{Total: quota.Budget{Used: 90, Limit: 100}}
)

func TestWhenJournalsFull(t *testing.T) {
	ready := agentWith(metav1.ConditionTrue, "")
	began := func(t *v1alpha1.Turn) {
		boundTo("gone")(t)
		handedBack(v1alpha1.TurnReasonPending)(t)
	}
	waited := func(t *v1alpha1.Turn) {
		boundTo("gone")(t)
		handedBack(v1alpha1.TurnReasonWaitingForJournalSpace)(t)
	}
	for name, tc := range map[string]struct {
		reason string
		turn   *v1alpha1.Turn
		report *quota.Report
		want   action
	}{
		"new, space":                {"", turnWith(), idle, schedule},
		"new, no report":            {"", turnWith(), nil, schedule},
		"new, tight":                {"the remaining space is for running Turns", turnWith(), tight, wait},
		"new, all namespaces tight": {"", turnWith(), allTight, wait},
		"has run, tight":            {"it finishes", turnWith(began), tight, schedule},
		"has run, spent":            {"it continues from its journal later", turnWith(began), spent, wait},
		"waited before, tight":      {"it would soon have to wait again", turnWith(waited), tight, wait},
		"waited before, space":      {"", turnWith(waited), idle, schedule},
		"bound, spent":              {"its executor stops it", turnWith(boundTo("other")), spent, follow},
		"cancelled, spent":          {"it ends", turnWith(desired(v1alpha1.DesiredStateCancelled)), spent, end},
		"past its deadline, spent":  {"it ends with its journal", turnWith(began, started(24*time.Hour)), spent, endFromJournal},
		"expired, spent":            {"its removal frees space", turnWith(finished(time.Hour), withTTL(1)), spent, remove},
	} {
		v := snapshot{turn: tc.turn, agent: ready, executorAlive: true, journals: tc.report.VerdictFor("helpdesk"), now: now}
		got := decide(v)
		if got.action != tc.want {
			t.Errorf("%s: %s, want %s: %s", name, got.action, tc.want, tc.reason)
		}
		if got.action == wait && (got.reason != v1alpha1.TurnReasonWaitingForJournalSpace || got.message == "" || got.after <= 0) {
			t.Errorf("%s: %+v, want a reason, a message and a requeue for its deadline", name, got)
		}
	}
}

// TestLeasesReportJournalSpace checks that waiting Turns are woken when an executor reports free space again, or
// when no executor reports a lack of space any more.
func TestLeasesReportJournalSpace(t *testing.T) {
	waits := turnWith(waitsAs(v1alpha1.TurnReasonWaitingForJournalSpace, time.Second))
	queued := turnWith(waitsAs(v1alpha1.TurnReasonQueued, time.Second), func(t *v1alpha1.Turn) { t.Name, t.UID = "queued", "u2" })
	elsewhere := turnWith(waitsAs(v1alpha1.TurnReasonWaitingForJournalSpace, time.Second),
		func(t *v1alpha1.Turn) { t.Namespace, t.UID = "sales", "u3" })
	lease := leaseOf("other", 3, now)
	b := newTestEnv(t, interceptor.Funcs{}, waits, queued, elsewhere, lease)
	clock := now
	b.executors.Now = func() time.Time { return clock }
	check := func(why string, report *quota.Report, after time.Duration, running, fresh bool, woken ...string) {
		t.Helper()
		clock = clock.Add(after)
		if after < executor.LeaseDuration {
			lease.Annotations[executor.JournalUseAnnotation] = report.Encode()
			lease.Spec.RenewTime = new(metav1.NewMicroTime(clock))
			if err := b.client.Update(t.Context(), lease); err != nil {
				t.Fatal(err)
			}
		}
		b.woken = nil
		if _, err := b.executors.Reconcile(t.Context(), reconcile.Request{NamespacedName: client.ObjectKeyFromObject(lease)}); err != nil {
			t.Fatal(err)
		}
		if v := b.executors.space.verdictFor("helpdesk"); v.Running != running || v.New != fresh {
			t.Errorf("%s: %+v, want new Turns to wait: %t, and running Turns: %t", why, v, fresh, running)
		}
		if diff := cmp.Diff(woken, b.woken); diff != "" {
			t.Errorf("%s: woken (-want +got):\n%s", why, diff)
		}
	}
	check("the namespace is below its quota", idle, 0, false, false)
	check("the namespace is near its quota", tight, 5*time.Second, false, true)
	check("the namespace has used up its quota", spent, 5*time.Second, true, true)
	check("the namespace is still near its quota", tight, 5*time.Second, false, true)
	check("the namespace has space again", idle, 5*time.Second, false, false, "one")
	check("the total quota is nearly used up", allTight, 5*time.Second, false, true)
	check("all namespaces have space again", idle, 5*time.Second, false, false, "one", "one")
	check("the namespace has used up its quota again", spent, 5*time.Second, true, true)
	reserving := &quota.Report{Namespaces: map[string]quota.Budget{"helpdesk": {Used: 10, Expected: 40, Limit: 100}}}
	check("the Turns of one executor reserve less than the rest", reserving, time.Second, false, false, "one")
	b.executors.space.observe(&coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{
		Name: "another", Annotations: map[string]string{executor.JournalUseAnnotation: reserving.Encode()},
	}})
	check("the Turns of two executors reserve the rest", reserving, time.Second, false, true)
	b.executors.space.forget("another")
	check("the namespace has used up its quota once more", spent, time.Second, true, true)
	check("the report of a lost executor does not count", nil, time.Minute, false, false, "one")
}
