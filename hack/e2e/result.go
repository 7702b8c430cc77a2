package main

import (
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"

	"github.com/capstan-dev/capstan/api/v1alpha1"
)

// result is the result of a round.
type result struct {
	round round
	// Ends counts the finished Turns by their reason.
	Ends map[string]int
	// Effects counts the disks that were wiped, and Repeated the disks that were wiped more than once.
	Effects, Repeated int
	// Unknown counts the unknown outcomes in the statuses, and JournalsLost the Turns that report a lost journal.
	Unknown, JournalsLost int
	// InFlight counts the Turns that were bound when the manager was disturbed. HandedBack counts the Turns that
	// were bound to no executor when no manager was left.
	InFlight, HandedBack int
	// Victim is the executor to disturb, if the round disturbs one of several executors. InFlight does not count the
	// Turns of the other executors.
	Victim string
	// Disturbed is the time of the disturbance. The durations begin at this time. Gone ends when the old Pods no longer
	// exist, First when the first Turn has moved to another executor, and Started when the container of that executor
	// runs. All ends when each unfinished Turn is bound, and none to its old executor.
	Disturbed                 time.Time
	Gone, Started, First, All time.Duration
	Failures                  []string
}

func (r *result) fail(format string, args ...any) {
	r.Failures = append(r.Failures, fmt.Sprintf(format, args...))
}

// checkTakeOver compares the time until the first Turn was bound again with the guarantee: at most takeOver, which
// includes promptStart for the start of the new container. If the container starts later, the delay is added. A manager
// that shuts down hands its Turns back early, but leads until it exits, and no Turn is bound before. In that case, the
// time counts from the end of the old Pod, without promptStart.
func (r *result) checkTakeOver() {
	if r.Gone == 0 {
		r.Gone = r.All // the old Pod still existed then: its container exits a moment earlier
	}
	begun := r.Started - promptStart
	if r.round.abrupt {
		begun = max(begun, 0)
	} else {
		begun = max(begun, r.Gone-promptStart)
	}
	if most := begun + takeOver; r.First > most {
		r.fail("the first Turn moved %.1f s after the manager was disturbed and %.1f s after the new container "+
			"was started, want at most %.1f s and %.1f s",
			r.First.Seconds(), (r.First - r.Started).Seconds(), most.Seconds(), (most - r.Started).Seconds())
	}
}

// check compares the Turns of a round with the counts of the tool server.
func (r *result) check(turns []v1alpha1.Turn, wiped map[string]int) {
	if len(turns) != turnsPerRound {
		r.fail("there are %d Turns, want %d", len(turns), turnsPerRound)
	}
	for i := range turns {
		turn := &turns[i]
		r.Ends[turn.StateReason()]++
		unknown := 0
		if turn.Status.Steps != nil {
			unknown = int(turn.Status.Steps.UnknownOutcomes)
		}
		r.Unknown += unknown
		effects := wiped[turn.Name]
		r.Effects += effects
		lost := meta.IsStatusConditionTrue(turn.Status.Conditions, v1alpha1.ConditionJournalLost)
		if lost {
			r.JournalsLost++
		}
		switch {
		case effects > 1:
			r.Repeated++
			r.fail("Turn %s wiped its disk %d times", turn.Name, effects)
		case effects == 0 && unknown == 0 && !lost:
			r.fail("Turn %s never wiped its disk and ended as %s: %s", turn.Name, turn.StateReason(), message(turn))
		case lost && !r.round.lost:
			r.fail("Turn %s reports a lost journal: %s", turn.Name, message(turn))
		case lost && effects > 0 && unknown == 0:
			r.fail("Turn %s wiped its disk and lost its journal, and reports no unknown outcome", turn.Name)
		}
	}
	if r.round.lost && r.JournalsLost == 0 {
		r.fail("no Turn reports a lost journal")
	}
	if !r.round.lost && r.Unknown == 0 {
		r.fail("no call was in flight when the manager was gone: this proves nothing")
	}
}

// message returns the message of the Turn's condition Succeeded.
func message(turn *v1alpha1.Turn) string {
	for _, c := range turn.Status.Conditions {
		if c.Type == v1alpha1.ConditionSucceeded {
			return c.Message
		}
	}
	return ""
}

// printTable prints the results of all rounds. It ignores a failure to print.
func (t *test) printTable() {
	_, _ = fmt.Fprintf(t.out, "\n%-10s %6s %10s %8s %9s %8s %8s %9s %10s %12s %14s %10s   %s\n", "round", "Turns",
		"in flight", "effects", "repeated", "unknown", "lost",
		"old gone", "new start", "first bound", "start to bound", "all bound", "ends")
	for _, r := range t.results {
		total := 0
		for _, n := range r.Ends {
			total += n
		}
		_, _ = fmt.Fprintf(t.out, "%-10s %6d %10d %8d %9d %8d %8d %7.1f s %8.1f s %10.1f s %12.1f s %8.1f s   %v\n",
			r.round.name, total, r.InFlight, r.Effects, r.Repeated, r.Unknown, r.JournalsLost,
			r.Gone.Seconds(), r.Started.Seconds(), r.First.Seconds(), (r.First - r.Started).Seconds(), r.All.Seconds(), r.Ends)
	}
	_, _ = fmt.Fprintln(t.out, "\nTimes since the disturbance: old gone: the old Pod no longer exists; new start: the container of the "+
		"next manager has started;\nfirst bound: the first Turn is bound to the next manager; all bound: each unfinished Turn is bound, "+
		"and none to its old executor.\nstart to bound: the time from new start to first bound")
	_, _ = fmt.Fprintln(t.out)
}
