package turnstatus

import (
	"fmt"
	"strings"

	"github.com/capstan-dev/capstan/api/v1alpha1"
)

// Loss is the loss of a Turn's journal.
type Loss struct {
	// Reason is the reason of the condition JournalLost.
	Reason string
	// Facts names the store that had the journal and the store that is in use now.
	Facts string
	// Entries is how many entries of the journal are left.
	Entries int64
	// SideEffects is true if the Turn may have called a tool that is not ReadOnly.
	SideEffects bool
}

// Message returns the message for a Turn that does not continue, with the next step for the user.
func (l *Loss) Message(t *v1alpha1.Turn) string {
	message := "the journal of the turn was lost: " + l.Facts + ". "
	if !l.SideEffects {
		return message + "The status has all that is known of the turn"
	}
	message += "The turn may have called tools after what its status shows, so it does not start over. Check what these tools did; " +
		"then create a new Turn, with spec.onJournalLoss set to Rerun if repeated calls do no harm"
	if len(t.Status.PendingApprovals) > 0 {
		message += ". The calls that were waiting for approval can no longer be approved; one that was approved before may have been made"
	}
	if names := t.Status.AwaitedTurns; len(names) > 0 {
		message += ". The Turns of its sub-agents were cancelled as far as they had not ended; the status of each says what it did: " +
			strings.Join(names, ", ")
	}
	return message
}

// StartOver returns the message for a Turn that starts over, or that continues after the entries that are left.
func (l *Loss) StartOver() string {
	message := "the journal of the turn was lost: " + l.Facts
	if l.Entries > 0 {
		message += fmt.Sprintf(". The turn continues after entry %d, the last one left, and its status does not "+
			"count its usage after that entry", l.Entries)
	} else {
		message += ". The turn starts over, and its status does not count its earlier usage"
	}
	if l.SideEffects {
		message += ". Earlier calls may be made again, because spec.onJournalLoss is Rerun"
	}
	return message
}
