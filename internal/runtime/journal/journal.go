// Package journal is the engine's record of a Turn: an append-only log that is at once the checkpoint a resumed run
// replays, the transcript a person reads and the audit record. Stores implement Journal and live outside
// internal/runtime; journaltest is the contract they must pass.
package journal

import (
	"context"
	"encoding/json"
	"errors"
	"iter"
	"time"
)

// Kind says what happened.
type Kind string

const (
	// RunStarted means that a run has begun or goes on. It is written with the first thing that the run does, so that a run
	// that did nothing leaves no trace.
	RunStarted Kind = "run.started"
	// RunParked means that a run has ended because its Turn waits for people or for the Turns of sub-agents. The next one goes on,
	// and nothing was cut off. A run that did nothing leaves no trace.
	RunParked Kind = "run.parked"
	// PreparationInput is what the messages are made of: a fallback makes them anew from it.
	PreparationInput Kind = "preparation.input"
	// PromptRendered means that a prompt was made; the payload names the profile, its version, hashes and variables.
	PromptRendered Kind = "prompt.rendered"
	// Prepared means that the messages of the Turn were frozen.
	Prepared Kind = "prepared"
	// ModelRequested means that a request to a model is about to be sent. Without a ModelFailed or ModelReplied after it,
	// nobody knows what became of it, and it may have been paid for.
	ModelRequested Kind = "model.requested"
	// ModelFailed means that a request to a model failed.
	ModelFailed Kind = "model.failed"
	// ModelReplied means that a model replied. It is never asked again for the same step.
	ModelReplied Kind = "model.replied"
	// ToolsExposed is which tools the model is offered: what a Turn has is the same for its whole life.
	ToolsExposed Kind = "tools.exposed"
	// ToolRepaired means that the arguments of a call were repaired.
	ToolRepaired Kind = "tool.repaired"
	// ApprovalRequested means that a call waits for somebody's decision.
	ApprovalRequested Kind = "approval.requested"
	// ApprovalDecided is what was decided about a call.
	ApprovalDecided Kind = "approval.decided"
	// OutputRejected means that an answer does not fit the Turn's schema; the model is told why.
	OutputRejected Kind = "output.rejected"
	// Compacted means that older messages were replaced by a summary.
	Compacted Kind = "compacted"
	// Reflected means that the model has checked its draft; the payload is the answer from then on.
	Reflected Kind = "reflected"
	// ContextWarned means that the conversation has come near the model's context window. It is written once.
	ContextWarned Kind = "context.warned"
	// ToolIntended means that a tool is about to be called. Without a ToolFinished after it, nobody knows whether it was.
	ToolIntended Kind = "tool.intended"
	// ToolFinished is what became of a call that a model asked for: its result, or why there is none. The call is never made
	// again.
	ToolFinished Kind = "tool.finished"
	// Finalized means that the Turn has ended; the payload is its result, without a text that an artifact of the entry has.
	Finalized Kind = "finalized"
	// SessionTurn is what one Turn has added to a conversation. It is the only kind in the journal of a Session.
	SessionTurn Kind = "session.turn"
)

const (
	// PayloadVersion is the newest version of payloads that this build reads. It writes the oldest one that a payload fits, 1 for most, so
	// that an older build can go on where it may.
	PayloadVersion = 2
	// MaxPayload bounds the payload of an entry, in bytes. A larger one becomes an artifact.
	MaxPayload = 64 << 10
)

var (
	// ErrFenced is returned for an append of an epoch older than one that has appended already: somebody else runs the
	// Turn now, and the caller must stop.
	ErrFenced = errors.New("a newer executor has taken this turn over")
	// ErrSequence is returned for an append that does not follow the last entry: another writer of the same epoch.
	ErrSequence = errors.New("the journal has grown behind this run")
	// ErrLost is returned where a store no longer has entries that it had acknowledged: it was restored from a backup, or
	// failed over to a replica that did not have them yet. The caller must stop, and must not start over: it does not know which
	// side effects the missing entries recorded. Trying again does not help.
	ErrLost = errors.New("the journal has lost entries that were there: its store was restored from a backup, or has failed over to a replica without them")
	// ErrNoArtifact is returned for an artifact that a journal does not have.
	ErrNoArtifact = errors.New("the journal has no such artifact")
	// ErrDamaged is returned for an entry that can be read and makes no sense. Reading it again does not help.
	ErrDamaged = errors.New("the journal is damaged")
	// ErrNewer is returned for an entry that a newer version of Capstan has written in a form that this one does not know.
	ErrNewer = errors.New("the journal was written by a newer version of Capstan: run that version, or a later one")
)

// Entry is one thing that happened.
type Entry struct {
	// Seq is the place in the journal, from 1, without gaps.
	Seq int64
	// Epoch of the binding that wrote the entry; it never decreases along a journal.
	Epoch int64
	// Kind of what happened.
	Kind Kind
	// Version of the payload's form, from 1.
	Version int
	// Time it happened, in UTC.
	Time time.Time
	// Payload is JSON of at most MaxPayload bytes; its form depends on the kind and the version. It is nil where Artifact
	// has it.
	Payload json.RawMessage
	// Artifact is the SHA-256 of the artifact that is the payload, in hexadecimal; empty where Payload has it.
	Artifact string
	// Namespace of the Turn or Session, by which a store adds up whose journals take how much; empty if it is not known. An entry
	// that was read has none.
	Namespace string
	// Artifacts are kept with the entry, in the same append. An entry that was read has none: they are read one by one.
	Artifacts []Artifact
}

// Journal keeps the entries of many Turns and Sessions, each under its UID. It is safe for concurrent use.
type Journal interface {
	// Read returns the entries of a UID in order, those after a place, which is 0 for all; none for a UID it does not know.
	// It reads as it goes: entries that are appended meanwhile may be among them. It stops after an error.
	Read(ctx context.Context, uid string, after int64) iter.Seq2[Entry, error]

	// Last returns the place of the newest entry of a UID, and 0 for a UID it does not know. It reads no entry.
	Last(ctx context.Context, uid string) (int64, error)

	// Append adds entries at the end with their artifacts, all or none, and returns when they would survive a crash. It
	// returns ErrFenced or ErrSequence, and then has added none. An artifact that the UID has already is kept once.
	Append(ctx context.Context, uid string, entries ...Entry) error

	// Artifact returns an artifact of a UID by its SHA-256, or ErrNoArtifact.
	Artifact(ctx context.Context, uid, sha256 string) (Artifact, error)
}
