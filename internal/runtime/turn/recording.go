package turn

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"time"

	"github.com/capstan-dev/capstan/internal/runtime/attachment"
	"github.com/capstan-dev/capstan/internal/runtime/finalize"
	"github.com/capstan-dev/capstan/internal/runtime/journal"
	"github.com/capstan-dev/capstan/internal/runtime/judge"
	"github.com/capstan-dev/capstan/internal/runtime/loop"
	"github.com/capstan-dev/capstan/internal/runtime/model"
	"github.com/capstan-dev/capstan/internal/runtime/prepare"
	"github.com/capstan-dev/capstan/internal/runtime/tool"
)

// MaxRecordingBytes is the maximum size of the payloads of a journal that ReadRecording reads.
const MaxRecordingBytes = 64 << 20

// Settings are the parts of a request that affect the answer and are not in the prompt.
type Settings struct {
	// Output is the JSON Schema of the answer. It is empty if the answer is plain text.
	Output json.RawMessage `json:"output,omitempty"`
	// HideCitations leaves the sources of facts out of the result, and AppendCitations adds them to the text.
	HideCitations   bool `json:"hideCitations,omitempty"`
	AppendCitations bool `json:"appendCitations,omitempty"`
	// Web is true if tools with the role WebSearch may be called.
	Web bool `json:"web,omitempty"`
}

// ReadArtifactFunc returns the content of an artifact of a recorded Turn by its SHA-256. It returns an error if the
// content has more than maxBytes bytes.
type ReadArtifactFunc = func(ctx context.Context, sha256 string, maxBytes int64) ([]byte, error)

// Recording is a Turn that was read from its journal, with everything that a replay needs.
type Recording struct {
	// Namespace and Name are the namespace and the name of the Turn.
	Namespace, Name string
	// Agent is the name of the Agent, or NAMESPACE/NAME if the Turn's reference to the Agent has a namespace.
	Agent string
	// Began is the time of the first entry.
	Began time.Time
	// Input is the input of the messages, with the history of the Session. Its facts include the results of context
	// packs.
	Input prepare.Input
	// Number is the number of the Turn in its Session, from 1.
	Number int64
	// Settings are nil if an older version has recorded the Turn.
	Settings *Settings
	// Prepared is the newest prompt.
	Prepared *prepare.Prepared
	// Tools are the tools that the model was offered, without their callers.
	Tools []tool.Tool
	// Calls are the calls of the model whose results a replay can use, in the order of their results.
	Calls []RecordedCall
	// Result is the result of the Turn. It is nil if the Turn has not ended.
	Result *Result
	// Usage and Cost are the totals of the Turn without its requests for vectors, which a replay does not send. Cost is
	// nil if it is not known.
	Usage model.Usage
	Cost  *finalize.Cost
	// Subject has the texts for judges: the answer, and the texts that the model had received.
	Subject *judge.Subject

	// nonce marks the fences of the outputs of tools.
	nonce string
	// artifact reads an artifact of the journal.
	artifact ReadArtifactFunc
}

// RecordedCall is a call of a recorded Turn.
type RecordedCall struct {
	// Name is the name by which the model called the tool. Arguments are the arguments of the call.
	Name      string
	Arguments json.RawMessage
	// Denied is true if the call was not made because its approval was denied or expired.
	Denied bool
	// finished is the recorded end of the call.
	finished loop.CallResult
}

// NotReplayableError means that a Turn cannot be replayed with any prompt.
type NotReplayableError struct {
	// Message describes the reason, and the remedy if there is one.
	Message string
}

// Error returns the message.
func (e *NotReplayableError) Error() string { return e.Message }

func notReplayable(format string, args ...any) error {
	return &NotReplayableError{fmt.Sprintf(format, args...)}
}

// ReadRecording reads a Turn from the entries of its journal, which must have their payloads. artifact reads artifacts
// of the same journal; the Recording also calls it later, to answer the calls of a replay. ReadRecording returns a
// *NotReplayableError if the journal lacks data that a replay needs, or if a newer version has written it, and any
// other error if the journal cannot be read.
func ReadRecording(ctx context.Context, entries iter.Seq2[journal.Entry, error], artifact ReadArtifactFunc) (*Recording, error) {
	subject := &judge.Subject{}
	b := &recordingBuilder{Recording: &Recording{Subject: subject, artifact: artifact}, results: resultReader{subject: subject}}
	for e, err := range entries {
		if err == nil {
			err = b.add(ctx, e)
		}
		if errors.Is(err, journal.ErrNewer) {
			return nil, notReplayable("%s", journal.ErrNewer)
		}
		if err != nil {
			return nil, err
		}
	}
	return b.finish()
}

// recordingBuilder builds a Recording from the entries of a journal.
type recordingBuilder struct {
	*Recording
	results       resultReader
	bytes         int64
	loop          loop.State
	frozen        *frozen
	prepared      *preparedRecord
	isPrepareOnly bool // the Turn only prepared its prompt
}

// add adds the next entry.
func (b *recordingBuilder) add(ctx context.Context, e journal.Entry) error {
	if e.Version > journal.PayloadVersion {
		return fmt.Errorf("failed to read entry %d (%q): %w", e.Seq, e.Kind, journal.ErrNewer)
	}
	if b.bytes += int64(len(e.Payload)); b.bytes > MaxRecordingBytes {
		return notReplayable("its journal has more than %d MiB", MaxRecordingBytes>>20)
	}
	if b.Began.IsZero() {
		b.Began = e.Time
	}
	if err := b.apply(ctx, e); err != nil {
		return fmt.Errorf("failed to read entry %d (%q): %w", e.Seq, e.Kind, err)
	}
	return nil
}

// apply folds an entry into the recording.
func (b *recordingBuilder) apply(ctx context.Context, e journal.Entry) error {
	switch e.Kind {
	case journal.RunStarted:
		var s started
		if err := json.Unmarshal(e.Payload, &s); err != nil {
			return err
		}
		if b.Name == "" {
			b.Namespace, b.Name, b.Agent = s.Namespace, s.Name, s.Agent
		}
	case journal.PreparationInput:
		return readPayload(e, &b.frozen)
	case journal.ToolsExposed:
		var x *tool.Exposure
		if err := readPayload(e, &x); err != nil {
			return err
		}
		x.Distrust()
		b.Tools, b.nonce = x.Tools, x.Nonce
	case journal.Prepared:
		var err error
		b.prepared, err = readPrepared(e)
		return err
	case journal.ToolFinished:
		if err := b.loop.Apply(e); err != nil {
			return err
		}
		b.addCall()
		return b.results.add(e.Payload)
	case journal.OutputRejected:
		if err := b.loop.Apply(e); err != nil {
			return err
		}
		return b.results.reject(e.Payload)
	case journal.Finalized:
		return b.end(ctx, e)
	default:
		return b.loop.Apply(e)
	}
	return nil
}

// addCall adds the newest finished call, if a replay can use its result.
func (b *recordingBuilder) addCall() {
	end := newest(b.loop.CallResults)
	if end.Step == 0 { // the result of a context pack is among the facts
		return
	}
	c := RecordedCall{Name: end.Name, finished: end}
	switch end.Outcome {
	case loop.Succeeded, loop.Failed:
		for i := range b.loop.Intents {
			if in := &b.loop.Intents[i]; in.Step == end.Step && in.CallID == end.CallID {
				c.Arguments = in.Arguments
			}
		}
	case loop.Refused:
		if d, decided := b.loop.Decision(end.Step, end.CallID); !decided || d.Approved {
			return // the gates of the replay refuse such a call themselves
		}
		for i := range b.loop.Approvals {
			if a := &b.loop.Approvals[i]; a.Step == end.Step && a.CallID == end.CallID {
				c.Arguments, c.Denied = a.Arguments, true
			}
		}
	case loop.Reused, loop.Unknown: // a reused result belongs to another call, and an unknown outcome has no result
	}
	if c.Arguments != nil {
		b.Calls = append(b.Calls, c)
	}
}

// end reads the result. A long answer is read from its artifact.
func (b *recordingBuilder) end(ctx context.Context, e journal.Entry) error {
	if err := readPayload(e, &b.Result); err != nil {
		return err
	}
	if r := b.Result; r.Text == "" && r.hasTextApart() {
		text, err := b.artifact(ctx, r.Answer.SHA256, MaxRecordingBytes)
		if err != nil {
			return fmt.Errorf("failed to read the answer: %w", err)
		}
		r.Text = string(text)
	}
	b.Subject.Answer = b.Result.WithoutSources()
	b.Usage, b.Cost = b.spent()
	b.isPrepareOnly = b.Result.Stop == StopPrepared
	return nil
}

// spent returns the usage and the cost without the requests for vectors. If there are none, it returns the totals of
// the result, because older versions did not record the cost of each request.
func (b *recordingBuilder) spent() (model.Usage, *finalize.Cost) {
	if !b.loop.EmbeddedBefore() {
		return b.Result.Record.Usage, b.Result.Record.Cost
	}
	var usage model.Usage
	var all []finalize.Spending
	for request := range b.loop.Spendings {
		if request.Purpose != loop.ForEmbedding {
			usage = usage.Add(request.Usage)
			all = append(all, finalize.Spending{Usage: request.Usage, Cost: request.Cost})
		}
	}
	return usage, finalize.Total(all)
}

// finish returns the recording, or the reason why there is none: mostly a *NotReplayableError.
func (b *recordingBuilder) finish() (*Recording, error) {
	switch {
	case b.frozen == nil && b.isPrepareOnly:
		return nil, notReplayable("the Turn only prepared its prompt (execution: PrepareOnly), and asked no model: " +
			"use capstan render --diff")
	case b.frozen == nil && b.Result != nil:
		return nil, notReplayable("the Turn ended before it made a prompt (%s: %s)", b.Result.Stop, b.Result.Message)
	case b.frozen == nil && b.Began.IsZero():
		return nil, notReplayable("its journal is empty: the Turn has not run, or its journal is in another store")
	case b.frozen == nil, b.prepared == nil:
		return nil, notReplayable("the journal ends before the Turn made a prompt")
	case b.prepared.History != nil && b.prepared.History.Messages > 0:
		return nil, notReplayable("the history of its Session is gone, so the messages before this Turn are not known")
	}
	in, err := b.frozen.thaw()
	if err != nil {
		return nil, err
	}
	if b.frozen.History != nil {
		in.Turn.Summary, in.Turn.History = b.prepared.Summary, historyIn(&b.prepared.Prompt)
	}
	b.Input, b.Number, b.Settings, b.Prepared = *in, b.frozen.Number, b.frozen.Settings, b.prepared.Prepared
	addPrompt(&b.Prepared.Prompt, b.Subject)
	if b.Name == "" { // an older version has recorded the Turn
		b.Namespace, b.Name = in.Turn.Namespace, in.Turn.Name
	}
	if b.Agent == "" {
		b.Agent = in.Agent.Name
	}
	return b.Recording, nil
}

// historyIn returns the messages of the Session's history that a prompt contains.
func historyIn(p *prepare.Prompt) []prepare.HistoryMessage {
	var all []prepare.HistoryMessage
	for i := range p.Messages {
		if m := &p.Messages[i]; m.Name == prepare.MessageHistory {
			all = append(all, prepare.HistoryMessage{
				Role: m.Role, Content: m.Content, ToolCalls: m.ToolCalls, ToolCallID: m.ToolCallID, ProviderData: m.ProviderData,
			})
		}
	}
	return all
}

// Answered reports whether the Turn ended with an answer.
func (r *Recording) Answered() bool { return r.Result != nil && r.Result.Answered() }

// Answered reports whether the Turn ended with an answer.
func (r *Result) Answered() bool { return r.Stop.answered() && r.Text != "" }

// Attach returns the function that reads the attachments of the Turn from its journal, and their total size in bytes.
// The function is nil if the Turn has no attachments.
func (r *Recording) Attach() (attach func(context.Context) ([]attachment.Content, error), total int64) {
	for _, a := range r.Input.Turn.Attachments {
		total += a.Bytes
	}
	if len(r.Input.Turn.Attachments) == 0 {
		return nil, 0
	}
	return func(ctx context.Context) ([]attachment.Content, error) {
		var all []attachment.Content
		for _, a := range r.Input.Turn.Attachments {
			data, err := r.artifact(ctx, a.SHA256, attachment.MaxTotalBytes)
			if err != nil {
				return nil, fmt.Errorf("failed to read attachment %q from the journal: %w", a.Name, err)
			}
			if sum := journal.NewArtifact(data); sum.SHA256 != a.SHA256 {
				return nil, fmt.Errorf("failed to read attachment %q: %w", a.Name, journal.ErrDamaged)
			}
			all = append(all, attachment.Content{Attachment: a, Data: data})
		}
		return all, nil
	}, total
}
