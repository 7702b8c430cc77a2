package executor

import (
	"testing"
	"time"

	"github.com/go-logr/logr"

	"github.com/capstan-dev/capstan/internal/runtime/task"
)

// TestFullQueueAdmitsNoMoreTurnsOfItsNamespace checks the limit on the waiting tasks of each namespace, and that a
// measurement of the store replaces the number of waiting tasks.
func TestFullQueueAdmitsNoMoreTurnsOfItsNamespace(t *testing.T) {
	p := NewTasks(nil, nil, 1, nil, logr.Discard())
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
		t.Error("want exactly one Turn admitted after one was evaluated")
	}
}
