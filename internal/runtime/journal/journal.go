// Package journal is the engine's record of a Turn: an append-only log. It serves as the checkpoint from which a
// run continues, as the transcript that people read, and as the audit record. Stores implement Journal and live
// outside internal/runtime; package journaltest tests their contract.
package journal

import (
	"context"
	"encoding/json"
	"errors"
	"iter"
	"time"

	"github.com/capstan-dev/capstan/internal/runtime/budget"
	"github.com/capstan-dev/capstan/internal/runtime/task"
	"github.com/capstan-dev/capstan/internal/runtime/turnrecord"
)

// Kind is the kind of an entry.
type Kind string

const (
	// RunStarted means that a run starts or continues the Turn. It is written together with the first other entries of
	// the run, so a run without other entries leaves no trace. If the previous run was cut off during a request that is
	// reserved in budgets, RunStarted charges the request, and is written first and alone.
	RunStarted Kind = "run.started"
	// RunParked means that a run has ended because its Turn waits for approvals, for the Turns of sub-agents or for a
	// Budget. Nothing was cut off, and the next run continues. If a run has nothing else to write, it writes RunParked
	// only if the previous run has not parked the Turn.
	RunParked Kind = "run.parked"
	// PreparationInput has the input for the messages. The messages for a fallback are made from it, too.
	PreparationInput Kind = "preparation.input"
	// PromptRendered means that a prompt was made. The payload names the profile, its version, hashes and
	// variables.
	PromptRendered Kind = "prompt.rendered"
	// Prepared means that the messages of the Turn were frozen.
	Prepared Kind = "prepared"
	// ModelRequested means that a request to a model is about to be sent. Without a later ModelFailed or
	// ModelReplied, the outcome of the request is unknown, and it may have been paid for.
	ModelRequested Kind = "model.requested"
	// ModelFailed means that a request to a model failed.
	ModelFailed Kind = "model.failed"
	// ModelReplied means that a model replied. No model is asked again for the same step.
	ModelReplied Kind = "model.replied"
	// ToolsExposed has the tools that are offered to the model. The tool list is frozen when the Turn starts.
	ToolsExposed Kind = "tools.exposed"
	// ToolRepaired means that the arguments of a call were repaired.
	ToolRepaired Kind = "tool.repaired"
	// ApprovalRequested means that a call requires approval.
	ApprovalRequested Kind = "approval.requested"
	// ApprovalDecided is the decision about a call.
	ApprovalDecided Kind = "approval.decided"
	// OutputChecked means that an answer was checked against the output policies of the profile. The payload has the
	// policies that it violates.
	OutputChecked Kind = "output.checked"
	// OutputRejected means that an answer does not fit the Turn's schema, or violates output policies. The model
	// receives the reason.
	OutputRejected Kind = "output.rejected"
	// Compacted means that older messages were replaced by a summary.
	Compacted Kind = "compacted"
	// Reflected means that the model has checked its draft. The payload replaces the draft as the answer.
	Reflected Kind = "reflected"
	// ContextWarned means that the conversation has come close to the model's context window. It is written once.
	ContextWarned Kind = "context.warned"
	// ToolIntended means that a tool is about to be called. Without a later ToolFinished, the outcome of the call
	// is unknown.
	ToolIntended Kind = "tool.intended"
	// ToolFinished is the outcome of a call: its result, or the reason why there is none. The call is never made again.
	ToolFinished Kind = "tool.finished"
	// TextRedacted means that redaction rules have removed texts from the entries before it. The payload has the number
	// of matches of each rule.
	TextRedacted Kind = "text.redacted"
	// UndoPlanned has the calls by which a Turn undoes calls of another Turn. Their arguments are fixed: no model is
	// asked.
	UndoPlanned Kind = "undo.planned"
	// UndoBegun is an entry in the journal of an ended Turn: another Turn is about to undo one of its calls. Without a
	// later UndoEnded, the outcome is unknown. A third Turn may then undo the call only if the compensation may be
	// repeated, and if the other Turn has ended or is gone.
	UndoBegun Kind = "undo.begun"
	// UndoEnded is the outcome after UndoBegun. If the call was not undone, another Turn may undo it.
	UndoEnded Kind = "undo.ended"
	// Finalized means that the Turn has ended. The payload is the result of the Turn. If an artifact of this entry has
	// the text of the answer, the payload does not contain that text. Only UndoBegun and UndoEnded may follow.
	Finalized Kind = "finalized"
	// SessionTurn is the addition of one Turn to a conversation. It is the only kind in the journal of a Session.
	SessionTurn Kind = "session.turn"
)

const (
	// PayloadVersion is the newest version of payloads that this build reads. A payload is written with the lowest
	// possible version, usually 1, so that an older build can read it if possible.
	PayloadVersion = 2
	// MaxPayload is the maximum size of an entry's payload, in bytes. A larger payload becomes an artifact.
	MaxPayload = 64 << 10
)

var (
	// ErrFenced is returned for an append with an older epoch than an existing entry. Another executor runs the Turn
	// now, and the caller must stop.
	ErrFenced = errors.New("a newer executor has taken over this turn")
	// ErrSequence is returned for an append that does not follow the last entry, because another writer has appended
	// entries.
	ErrSequence = errors.New("another run has written to the journal")
	// ErrLost is returned if a store no longer has entries that it had confirmed. The store was restored from a backup,
	// or has failed over to a replica without these entries. The caller must stop. It must not start over, because it
	// does not know which side effects the missing entries recorded. A retry does not help.
	ErrLost = errors.New("the journal has lost entries: its store was restored from a backup, or has failed over to a replica without them")
	// ErrNoArtifact is returned for an artifact that a journal does not have.
	ErrNoArtifact = errors.New("the journal has no such artifact")
	// ErrDamaged is returned for an entry whose content is invalid. Reading it again does not help.
	ErrDamaged = errors.New("the journal is damaged")
	// ErrNewer is returned for an entry that a newer version of Capstan has written in a form that this version cannot
	// read.
	ErrNewer = errors.New("the journal was written by a newer version of Capstan: run that version, or a later one")
)

// Entry is one event of a Turn or Session.
type Entry struct {
	// Seq is the sequence number in the journal, from 1, without gaps.
	Seq int64
	// Epoch is the epoch of the binding that wrote the entry. It never decreases along a journal.
	Epoch int64
	// Kind is the kind of the event.
	Kind Kind
	// Version is the version of the form of the payload, from 1.
	Version int
	// Time is the time of the event, in UTC.
	Time time.Time
	// Payload is JSON of at most MaxPayload bytes. Its form depends on the kind and the version. It is nil if
	// Artifact is set.
	Payload json.RawMessage
	// Artifact is the SHA-256 of the artifact that is the payload, in hexadecimal. It is empty if Payload is set.
	Artifact string
	// Namespace is the namespace of the Turn or Session. A store uses it to add up the size of each namespace's
	// journals. It is empty if it is not known. In an entry that was read, it is always empty.
	Namespace string
	// Artifacts are stored with the entry, in the same append. An entry that was read has none; use Journal.Artifact to
	// read them.
	Artifacts []Artifact
	// Ledger is a change of the ledger of budgets that is made in the same append, or nil. An entry that was read has
	// none.
	Ledger *budget.Change
	// TurnRecord is the record of the Turn that ends with this entry, or nil. It is stored in the same append, unless
	// the Turn already has a record. An entry that was read has none.
	TurnRecord *turnrecord.Record
	// TurnNumber sets the number in the record of a Turn, in the same append, or is nil. It has no effect if the Turn
	// has no record. An entry that was read has none.
	TurnNumber *TurnNumber
	// Tasks are the work that follows the end of the Turn, at most one of each kind. Each is stored in the same append,
	// unless the Turn already has a task of its kind. An entry that was read has none.
	Tasks []task.Task
}

// TurnNumber is the number of a Turn in its Session, from 1.
type TurnNumber struct {
	TurnUID string
	Number  int64
}

// Journal stores the entries of many Turns and Sessions, each under its UID. It must be safe for concurrent use.
type Journal interface {
	// Read returns the entries of a UID whose sequence numbers are greater than the argument after, in order. If after
	// is 0, Read returns all entries. An unknown UID has no entries. Read loads entries during the iteration, so it may
	// return entries that are appended during the iteration. It stops after an error.
	Read(ctx context.Context, uid string, after int64) iter.Seq2[Entry, error]

	// Last returns the sequence number of the newest entry of a UID, or 0 for an unknown UID. It reads no entry.
	Last(ctx context.Context, uid string) (int64, error)

	// Append adds entries at the end together with their artifacts, all or none. When Append returns nil, the entries
	// are durable. If it returns ErrFenced, ErrSequence or a *budget.Refusal, it has added nothing. An artifact that
	// the UID already has is not stored again. The sequence is checked before the ledger, so an append that is
	// repeated because its outcome was unknown changes the ledger only once.
	Append(ctx context.Context, uid string, entries ...Entry) error

	// PayloadBytes returns the total size of the payloads of the entries from first to last inclusive, in bytes. A
	// payload that is stored as an artifact counts, too. PayloadBytes reads no payload. An entry or an artifact that
	// does not exist counts as 0.
	PayloadBytes(ctx context.Context, uid string, first, last int64) (int64, error)

	// Artifact returns an artifact of a UID by its SHA-256, or ErrNoArtifact.
	Artifact(ctx context.Context, uid, sha256 string) (Artifact, error)
}
