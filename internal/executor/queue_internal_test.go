package executor

import (
	"testing"
	"time"

	"github.com/go-logr/logr"

	"github.com/capstan-dev/capstan/internal/runtime/task"
)

// TestAFullQueueTakesNoMoreTurnsOfItsNamespace checks the limit of each namespace, and that it follows the store.
func TestAFullQueueTakesNoMoreTurnsOfItsNamespace(t *testing.T) {
	p := NewTasks(nil, nil, 1, logr.Discard())
	for i := range maxWaiting {
		if !p.admit("busy", task.Evaluate) {
			t.Fatalf("Turn %d is refused, want %d admitted", i, maxWaiting)
		}
	}
	if p.admit("busy", task.Evaluate) {
		t.Error("another Turn of the namespace is admitted")
	}
	if !p.admit("quiet", task.Learn) {
		t.Error("a Turn of another namespace is refused")
	}
	p.storeMeasurement([]task.Use{{Namespace: "busy", Waiting: maxWaiting - 1}}, time.Time{})
	if !p.admit("busy", task.Evaluate) || p.admit("busy", task.Evaluate) {
		t.Error("want room for one Turn after one was evaluated")
	}
}
