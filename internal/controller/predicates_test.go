package controller

import (
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/event"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/turnstatus"
)

func TestTurnChanged(t *testing.T) {
	newer := func(t *v1alpha1.Turn) { t.Generation++ }
	deleted := func(t *v1alpha1.Turn) { t.DeletionTimestamp = &metav1.Time{Time: now} }
	labelled := func(t *v1alpha1.Turn) { t.Labels = map[string]string{"a": "b"} }
	another := func(t *v1alpha1.Turn) { t.UID = "another" }
	runWaits := func(t *v1alpha1.Turn) {
		turnstatus.ReportProgress(t, turnstatus.Run{}, &turnstatus.RunWait{Memory: true}, now)
	}
	queued := waitsAs(v1alpha1.TurnReasonQueued, 0)
	for name, tc := range map[string]struct {
		before, after *v1alpha1.Turn
		want          bool
	}{
		"a change of the spec":      {turnWith(), turnWith(newer), true},
		"a deletion":                {turnWith(), turnWith(deleted), true},
		"a Turn that was recreated": {turnWith(), turnWith(another), true},
		"the end": {
			turnWith(boundTo("e")),
			turnWith(boundTo("e"), func(t *v1alpha1.Turn) { t.Status.Conditions = nil }, finished(0)), true,
		},
		"a Turn that is handed back":    {turnWith(boundTo("e")), turnWith(boundTo("")), true},
		"a binding":                     {turnWith(), turnWith(boundTo("e")), false},
		"a binding to another executor": {turnWith(boundTo("e")), turnWith(boundTo("f")), false},
		"the queue for a slot":          {turnWith(), turnWith(queued), false},
		"the wait for an Agent":         {turnWith(), turnWith(waitsAs(v1alpha1.TurnReasonWaitingForAgent, 0)), true},
		"the wait for a ConfigMap":      {turnWith(), turnWith(waitsAs(v1alpha1.TurnReasonPending, 0)), true},
		"another reason to wait": {
			turnWith(queued), turnWith(waitsAs(v1alpha1.TurnReasonWaitingForJournalSpace, 0)), true,
		},
		"the same reason to wait": {
			turnWith(waitsAs(v1alpha1.TurnReasonWaitingForBudget, 0)), turnWith(waitsAs(v1alpha1.TurnReasonWaitingForBudget, 1)), false,
		},
		"a bound Turn that waits": {
			turnWith(boundTo("e")), turnWith(boundTo("e"), waitsAs(v1alpha1.TurnReasonWaitingForBudget, 0)), false,
		},
		"a run that begins to wait": {turnWith(boundTo("e")), turnWith(boundTo("e"), runWaits), true},
		"a run that still waits":    {turnWith(boundTo("e"), runWaits), turnWith(boundTo("e"), runWaits), false},
		"a run that waits no more":  {turnWith(boundTo("e"), runWaits), turnWith(boundTo("e")), true},
		"a label":                   {turnWith(), turnWith(labelled), false},
	} {
		t.Run(name, func(t *testing.T) {
			if got := turnChanged().Update(event.UpdateEvent{ObjectOld: tc.before, ObjectNew: tc.after}); got != tc.want {
				t.Errorf("passes: %t, want %t", got, tc.want)
			}
		})
	}
	if !turnChanged().Create(event.CreateEvent{Object: turnWith()}) || !turnChanged().Delete(event.DeleteEvent{Object: turnWith()}) {
		t.Error("creation and deletion of a Turn must pass")
	}
	if turnChanged().Update(event.UpdateEvent{ObjectOld: &v1alpha1.Agent{}, ObjectNew: turnWith()}) {
		t.Error("other kinds must not pass")
	}
}

func TestToolServerChanged(t *testing.T) {
	ready := func() *v1alpha1.ToolServer { return newServer("tickets", toolOf("a", v1alpha1.ToolEffectReadOnly)) }
	for name, tc := range map[string]struct {
		reason string
		change func(*v1alpha1.ToolServer)
		want   bool
	}{
		"it becomes unreachable": {"Agents report it", notReady(v1alpha1.ReasonEndpointUnreachable), true},
		"it is not checked yet":  {"Agents report it", func(s *v1alpha1.ToolServer) { s.Status.Conditions = nil }, true},
		"another message": {"only the ToolServer shows it", func(s *v1alpha1.ToolServer) {
			s.Status.Conditions[0].Message = "it answers"
		}, false},
		"another tool": {"Agents list it", func(s *v1alpha1.ToolServer) { s.Status.Tools[0].Name = "b" }, true},
		"another effect": {"Agents list it", func(s *v1alpha1.ToolServer) {
			s.Status.Tools[0].Effect = v1alpha1.ToolEffectDestructive
		}, true},
		"more tools than are listed": {"patterns may match the others", func(s *v1alpha1.ToolServer) { s.Status.ToolCount = 300 }, true},
		"another spec":               {"the check of the new spec passes later", func(s *v1alpha1.ToolServer) { s.Generation++ }, false},
		"other namespaces": {"Agents of other namespaces depend on it", func(s *v1alpha1.ToolServer) {
			s.Spec.AllowedNamespaces = &v1alpha1.AllowedNamespaces{From: v1alpha1.NamespacesFromAll}
		}, true},
		"an unchanged result": {"there is nothing to report", func(s *v1alpha1.ToolServer) {
			s.Status.ServerVersion, s.Status.LastDiscoveryTime = "2", nil
		}, false},
		"recreated": {"it is another object", func(s *v1alpha1.ToolServer) { s.UID = "another" }, true},
	} {
		t.Run(name, func(t *testing.T) {
			if got := toolServerChanged().Update(
				event.UpdateEvent{ObjectOld: ready(), ObjectNew: altered(ready(), tc.change)}); got != tc.want {
				t.Errorf("passes: %t, want %t: %s", got, tc.want, tc.reason)
			}
		})
	}
	never := func() *v1alpha1.ToolServer {
		return altered(newServer("tickets"), neverReached(v1alpha1.ReasonEndpointUnreachable))
	}
	corrected := altered(never(), func(s *v1alpha1.ToolServer) { s.Generation++ })
	tried := altered(never(), func(s *v1alpha1.ToolServer) { s.Generation, s.Status.Conditions[0].ObservedGeneration = 2, 2 })
	if !toolServerChanged().Update(event.UpdateEvent{ObjectOld: never(), ObjectNew: corrected}) {
		t.Error("a new spec of a server that was never reached must pass: Turns wait for the next attempt")
	}
	if !toolServerChanged().Update(event.UpdateEvent{ObjectOld: corrected, ObjectNew: tried}) {
		t.Error("the attempt must pass even if the server is still unreachable: Turns wait for it")
	}
	if !toolServerChanged().Create(event.CreateEvent{Object: ready()}) || !toolServerChanged().Delete(event.DeleteEvent{Object: ready()}) {
		t.Error("creation and deletion of a ToolServer must pass")
	}
	if toolServerChanged().Update(event.UpdateEvent{ObjectOld: &v1alpha1.Agent{}, ObjectNew: ready()}) {
		t.Error("other kinds must not pass")
	}
}
