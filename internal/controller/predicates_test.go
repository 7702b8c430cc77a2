package controller

import (
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/event"

	"github.com/capstan-dev/capstan/api/v1alpha1"
)

func TestTurnNews(t *testing.T) {
	newer := func(t *v1alpha1.Turn) { t.Generation++ }
	deleted := func(t *v1alpha1.Turn) { t.DeletionTimestamp = &metav1.Time{Time: now} }
	labelled := func(t *v1alpha1.Turn) { t.Labels = map[string]string{"a": "b"} }
	another := func(t *v1alpha1.Turn) { t.UID = "another" }
	queued := waitsAs(v1alpha1.TurnReasonQueued, 0)
	for name, tc := range map[string]struct {
		before, after *v1alpha1.Turn
		want          bool
	}{
		"a change of the spec":          {turnWith(), turnWith(newer), true},
		"a deletion":                    {turnWith(), turnWith(deleted), true},
		"a Turn that was made anew":     {turnWith(), turnWith(another), true},
		"the end":                       {turnWith(boundTo("e")), turnWith(boundTo("e"), func(t *v1alpha1.Turn) { t.Status.Conditions = nil }, finished(0)), true},
		"a Turn that is handed back":    {turnWith(boundTo("e")), turnWith(boundTo("")), true},
		"a binding":                     {turnWith(), turnWith(boundTo("e")), false},
		"a binding to another executor": {turnWith(boundTo("e")), turnWith(boundTo("f")), false},
		"what the Turn waits for":       {turnWith(), turnWith(queued), false},
		"a label":                       {turnWith(), turnWith(labelled), false},
	} {
		t.Run(name, func(t *testing.T) {
			if got := turnNews().Update(event.UpdateEvent{ObjectOld: tc.before, ObjectNew: tc.after}); got != tc.want {
				t.Errorf("let through: %t, want %t", got, tc.want)
			}
		})
	}
	if !turnNews().Create(event.CreateEvent{Object: turnWith()}) || !turnNews().Delete(event.DeleteEvent{Object: turnWith()}) {
		t.Error("a Turn that appears or goes must be looked at")
	}
	if turnNews().Update(event.UpdateEvent{ObjectOld: &v1alpha1.Agent{}, ObjectNew: turnWith()}) {
		t.Error("what is no Turn must not be let through")
	}
}

func TestToolServerNews(t *testing.T) {
	ready := func() *v1alpha1.ToolServer { return newServer("tickets", toolOf("a", v1alpha1.ToolEffectReadOnly)) }
	for name, tc := range map[string]struct {
		reason string
		change func(*v1alpha1.ToolServer)
		want   bool
	}{
		"it goes away":          {"Agents say so", away(v1alpha1.ReasonEndpointUnreachable), true},
		"nobody has looked yet": {"Agents say so", func(s *v1alpha1.ToolServer) { s.Status.Conditions = nil }, true},
		"another message": {"only the ToolServer has it", func(s *v1alpha1.ToolServer) {
			s.Status.Conditions[0].Message = "it answers"
		}, false},
		"another tool": {"Agents list it", func(s *v1alpha1.ToolServer) { s.Status.Tools[0].Name = "b" }, true},
		"another effect": {"Agents list it", func(s *v1alpha1.ToolServer) {
			s.Status.Tools[0].Effect = v1alpha1.ToolEffectDestructive
		}, true},
		"more tools than are listed": {"patterns may match those", func(s *v1alpha1.ToolServer) { s.Status.ToolCount = 300 }, true},
		"another spec":               {"what it comes to is found out first", func(s *v1alpha1.ToolServer) { s.Generation++ }, false},
		"a look that found the same": {"there is nothing to say", func(s *v1alpha1.ToolServer) {
			s.Status.ServerVersion, s.Status.LastDiscoveryTime = "2", nil
		}, false},
		"made anew": {"it is another one", func(s *v1alpha1.ToolServer) { s.UID = "another" }, true},
	} {
		t.Run(name, func(t *testing.T) {
			if got := toolServerNews().Update(event.UpdateEvent{ObjectOld: ready(), ObjectNew: altered(ready(), tc.change)}); got != tc.want {
				t.Errorf("let through: %t, want %t: %s", got, tc.want, tc.reason)
			}
		})
	}
	never := func() *v1alpha1.ToolServer {
		return altered(newServer("tickets"), unreached(v1alpha1.ReasonEndpointUnreachable))
	}
	corrected := altered(never(), func(s *v1alpha1.ToolServer) { s.Generation++ })
	tried := altered(never(), func(s *v1alpha1.ToolServer) { s.Generation, s.Status.Conditions[0].ObservedGeneration = 2, 2 })
	if !toolServerNews().Update(event.UpdateEvent{ObjectOld: never(), ObjectNew: corrected}) {
		t.Error("a new spec of a server that was never reached must be let through: Turns wait until it was tried")
	}
	if !toolServerNews().Update(event.UpdateEvent{ObjectOld: corrected, ObjectNew: tried}) {
		t.Error("that it was tried must be let through, also where it is as far away as before: Turns wait for it")
	}
	if !toolServerNews().Create(event.CreateEvent{Object: ready()}) || !toolServerNews().Delete(event.DeleteEvent{Object: ready()}) {
		t.Error("a ToolServer that appears or goes must be looked at")
	}
	if toolServerNews().Update(event.UpdateEvent{ObjectOld: &v1alpha1.Agent{}, ObjectNew: ready()}) {
		t.Error("what is no ToolServer must not be let through")
	}
}
