package main

import (
	"time"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/runtime/journal"
)

// evidence is all that a phase has left behind, each part from who saw it: the API server, the store, the model's server, the
// tools' server, and the test itself.
type evidence struct {
	Turns []turnEvidence
	// Sessions are those of the Turns.
	Sessions []sessionEvidence
	// Asked are the requests that the model's server has got.
	Asked []asked
	// Called are the calls that the tools' server has got, by their key.
	Called map[string]called
	// Decided are the decisions about calls that the API server has, by the calls' keys.
	Decided map[string]v1alpha1.ApprovalDecision
	// Kills are the moments in which a process was ended, or stopped for longer than its Lease.
	Kills []kill
}

// turnEvidence is a Turn as the API server has it, with its journal.
type turnEvidence struct {
	Turn    *v1alpha1.Turn
	Entries []journal.Entry
}

// asked is a request as the model's server has got it.
type asked struct {
	// ID that the client gave it.
	ID string
	// Billed says whether it was billed, Input and Output for how many tokens.
	Billed        bool
	Input, Output int64
	// Unknown are the IDs of the calls of which it says that their outcome is unknown.
	Unknown []string
}

// called is a call as the tools' server has got it.
type called struct {
	// Tool that was called, and how often.
	Tool  string
	Times int
}

// kill is when a process was ended: at some instant between two.
type kill struct{ From, To time.Time }

// guarantee is one of the things that the test is about.
type guarantee string

// The guarantees, in the order of the report.
const (
	everyTurnFinished guarantee = "every Turn finished"
	paidOnce          guarantee = "no recorded reply was requested again"
	calledOnce        guarantee = "each side-effecting call was made at most once"
	knownOutcomes     guarantee = "unknown outcomes are those in flight at a kill, and reported"
	approvedOnly      guarantee = "calls that need approval were made if approved, and only then"
	oneChild          guarantee = "each call of a sub-agent made one child Turn"
	exactUsage        guarantee = "usage equals what the model server billed"
	wholeSessions     guarantee = "a Session has each Turn once, and totals that add up"
	lostJournals      guarantee = "a Turn that lost its journal says so and repeats nothing"
	wholeJournals     guarantee = "journals have no gap and no entry of an older epoch"
	livingProcess     guarantee = "no manager at work ended but by a kill"
	movedInTime       guarantee = "Turns of a lost executor move within the Lease's time"
	fencedZombie      guarantee = "an executor that wakes up late writes nothing"
)

// guarantees are all of them that every phase checks.
var guarantees = []guarantee{everyTurnFinished, paidOnce, calledOnce, knownOutcomes, approvedOnly, oneChild, exactUsage, wholeSessions, wholeJournals}

// violation is a guarantee that did not hold.
type violation struct {
	Guarantee guarantee `json:"guarantee"`
	// Turn is its name, empty where it is not about one.
	Turn string `json:"turn,omitempty"`
	What string `json:"what"`
}
