package turnstatus

import (
	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/translate"
)

// Bind returns the binding of a Turn to an executor with a store. It keeps the record of earlier bindings, so that
// the next run can compare its journal with it. If the record says that no run has begun anything, the Turn may
// begin in any store. A run that did not hand the Turn back may have written more to the journal than the record
// says.
func Bind(t *v1alpha1.Turn, a *v1alpha1.Agent, executor, storeID, storeIncarnation string) *v1alpha1.ExecutorBinding {
	b := v1alpha1.ExecutorBinding{Name: executor, Epoch: t.Epoch() + 1}
	before := t.Status.Executor
	if before == nil || before.Epoch == 0 {
		b.StoreID, b.StoreIncarnation, b.SideEffects = storeID, storeIncarnation, translate.MayAffect(t, a)
		return &b
	}
	past := *before.DeepCopy()
	if past.Name != "" {
		Abandon(&past)
	}
	if NothingBegun(&past) {
		b.StoreID, b.StoreIncarnation, b.SideEffects = storeID, storeIncarnation, translate.MayAffect(t, a)
	} else {
		b.StoreID, b.StoreIncarnation, b.SideEffects = past.StoreID, past.StoreIncarnation, past.SideEffects
	}
	b.JournalEntries, b.JournalComplete, b.Overdue = past.JournalEntries, past.JournalComplete, past.Overdue
	return &b
}

// NothingBegun reports whether a binding says that no earlier run has begun anything.
func NothingBegun(b *v1alpha1.ExecutorBinding) bool {
	return b.JournalComplete && b.JournalEntries != nil && *b.JournalEntries == 0
}

// Abandon marks the record of the journal in a binding as incomplete: its run did not hand the Turn back, and may
// have written more entries.
func Abandon(b *v1alpha1.ExecutorBinding) { b.JournalComplete = false }
