package main

import (
	"time"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/runtime/budget"
	"github.com/capstan-dev/capstan/internal/runtime/journal"
	"github.com/capstan-dev/capstan/internal/runtime/turnrecord"
)

// evidence is the data that a phase leaves behind. Each part comes from a separate source: the API server, the store,
// the model server, the tool server, or the test itself.
type evidence struct {
	Turns []turnEvidence
	// Sessions are the Sessions of the Turns.
	Sessions []sessionEvidence
	// Asked are the requests that the model server has received.
	Asked []asked
	// Called are the calls that the tool server has received, by their keys.
	Called map[string]called
	// Decided are the decisions that the API server holds, by the keys of their calls.
	Decided map[string]v1alpha1.ApprovalDecision
	// Budget is what the ledger has counted for the Budget of all Turns.
	Budget *budget.Account
	// Records are the records of the Turns, or nil if they were not read.
	Records []turnrecord.Record
	// Kills are the times at which a process was killed, or paused for longer than its Lease.
	Kills []kill
}

// turnEvidence is a Turn as the API server returns it, with its journal.
type turnEvidence struct {
	Turn    *v1alpha1.Turn
	Entries []journal.Entry
}

// asked is a request as the model server has received it.
type asked struct {
	// ID is the request ID that the client chose.
	ID string
	// Billed reports whether the server billed the request. Input and Output are the billed tokens.
	Billed        bool
	Input, Output int64
	// FollowUp reports whether the request is from a judge or for memories. About is the message of the Turn that the
	// request is about; several Turns may have this message.
	FollowUp bool
	About    string
	// Unknown holds the IDs of the calls whose outcome is unknown according to the request.
	Unknown []string
}

// called is a call as the tool server has received it.
type called struct {
	// Tool is the name of the called tool, and Times the number of calls.
	Tool  string
	Times int
}

// kill is the death of a process, at some instant between From and To. An outageMaker uses it for an outage from From
// to To.
type kill struct{ From, To time.Time }

// guarantee is a property that the test checks.
type guarantee string

// The guarantees, in the order of the report.
const (
	everyTurnFinished guarantee = "every Turn finished"
	paidOnce          guarantee = "no recorded reply was requested again"
	calledOnce        guarantee = "each side-effecting call was made at most once"
	knownOutcomes     guarantee = "unknown outcomes: only calls in flight at a kill, all reported"
	approvedOnly      guarantee = "calls that require approval were made if approved, and only then"
	oneChild          guarantee = "each call of a sub-agent made one child Turn"
	exactUsage        guarantee = "usage equals what the model server billed"
	exactBudget       guarantee = "a Budget equals the sum of the usage of its Turns"
	exactRecords      guarantee = "records, usage, statuses and the Budget agree"
	wholeSessions     guarantee = "a Session has each Turn once, and correct totals"
	lostJournals      guarantee = "a Turn that lost its journal reports it and repeats nothing"
	wholeJournals     guarantee = "journals have no gap and no entry of an older epoch"
	livingProcess     guarantee = "a running manager exited only if it was killed"
	movedInTime       guarantee = "Turns of a lost executor move within the Lease's time"
	fencedZombie      guarantee = "an executor that wakes up late writes nothing"
)

// guarantees lists the guarantees that every phase checks.
var guarantees = []guarantee{
	everyTurnFinished, paidOnce, calledOnce, knownOutcomes, approvedOnly, oneChild, exactUsage, exactBudget,
	exactRecords, wholeSessions, wholeJournals,
}

// violation is a guarantee that did not hold.
type violation struct {
	Guarantee guarantee `json:"guarantee"`
	// Turn is the name of the Turn, or its UID if the phase does not know its name. It is empty if the violation
	// concerns no single Turn.
	Turn string `json:"turn,omitempty"`
	What string `json:"what"`
}
