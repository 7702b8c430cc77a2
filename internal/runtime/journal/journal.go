// Package journal is the engine's record of a Turn: an append-only log that is at once the checkpoint a resumed run
// replays, the transcript a person reads and the audit record. Stores implement Journal and live outside
// internal/runtime; journaltest is the contract they must pass.
package journal

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/cenkalti/backoff/v5"
)

// Kind says what happened.
type Kind string

const (
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
	// Finalized means that the Turn has ended; the payload is its whole result.
	Finalized Kind = "finalized"
)

var (
	// ErrFenced is returned for an append of an epoch older than one that has appended already: somebody else runs the
	// Turn now, and the caller must stop.
	ErrFenced = errors.New("a newer executor has taken this turn over")
	// ErrSequence is returned for an append that does not follow the last entry: another writer of the same epoch.
	ErrSequence = errors.New("the journal has grown behind this run")
)

// Entry is one thing that happened.
type Entry struct {
	// Seq is the place in the Turn's journal, from 1, without gaps.
	Seq int64
	// Epoch of the binding that wrote the entry; it never decreases along a journal.
	Epoch int64
	// Kind of what happened.
	Kind Kind
	// Time it happened, in UTC.
	Time time.Time
	// Payload is JSON; its form depends on the kind.
	Payload json.RawMessage
}

// Journal keeps the entries of many Turns, each under the UID of its Turn. It is safe for concurrent use.
type Journal interface {
	// Load returns the entries of a Turn in order; none for a Turn it does not know.
	Load(ctx context.Context, turnUID string) ([]Entry, error)

	// Append adds entries at the end, all or none, and returns when they would survive a crash. It returns ErrFenced or
	// ErrSequence, and then has added none.
	Append(ctx context.Context, turnUID string, entries ...Entry) error
}

// Log is the journal of one Turn, held by the one run that writes it.
type Log struct {
	journal Journal
	turnUID string
	epoch   int64
	now     func() time.Time
	entries []Entry
}

// Open loads the journal of a Turn for a run of an epoch. It returns ErrFenced if a newer epoch has written to it.
func Open(ctx context.Context, j Journal, turnUID string, epoch int64, now func() time.Time) (*Log, error) {
	// A run that was cancelled before it began still has to say what there is.
	entries, err := j.Load(context.WithoutCancel(ctx), turnUID)
	if err != nil {
		return nil, fmt.Errorf("failed to load the journal of turn %q: %w", turnUID, err)
	}
	if n := len(entries); n > 0 && entries[n-1].Epoch > epoch {
		return nil, ErrFenced
	}
	return &Log{journal: j, turnUID: turnUID, epoch: epoch, now: now, entries: entries}, nil
}

// Record is something to append: a kind and a payload that marshals to JSON.
type Record struct {
	Kind    Kind
	Payload any
}

// Append writes records at the end of the journal, all or none. It returns when they would survive a crash. What has
// happened must be written down even if ctx has ended meanwhile, so only the store's own time-outs stop an append.
func (l *Log) Append(ctx context.Context, records ...Record) error {
	added, err := l.next(records)
	if err != nil {
		return err
	}
	return l.add(ctx, added)
}

// keepFor bounds how long Keep tries.
const keepFor = 30 * time.Second

// Keep is Append for what must not be lost, such as a reply that was paid for: while the journal fails it tries again, for
// about 30 s.
func (l *Log) Keep(ctx context.Context, records ...Record) error {
	added, err := l.next(records)
	if err != nil {
		return err
	}
	wait := backoff.NewExponentialBackOff()
	wait.InitialInterval, wait.MaxInterval = 50*time.Millisecond, 5*time.Second
	_, err = backoff.Retry(context.WithoutCancel(ctx), func() (struct{}, error) {
		err := l.add(ctx, added)
		switch {
		case errors.Is(err, ErrSequence) && l.holds(ctx, added):
			err = nil // an earlier attempt was done although it seemed to fail
		case errors.Is(err, ErrFenced), errors.Is(err, ErrSequence):
			err = backoff.Permanent(err)
		}
		return struct{}{}, err
	}, backoff.WithBackOff(wait), backoff.WithMaxElapsedTime(keepFor))
	return err
}

// holds reports whether the journal ends with these entries, and then takes them over.
func (l *Log) holds(ctx context.Context, added []Entry) bool {
	entries, err := l.journal.Load(context.WithoutCancel(ctx), l.turnUID)
	if err != nil || len(entries) != len(l.entries)+len(added) {
		return false
	}
	for i, e := range entries[len(l.entries):] {
		if a := added[i]; e.Seq != a.Seq || e.Epoch != a.Epoch || e.Kind != a.Kind || !bytes.Equal(e.Payload, a.Payload) {
			return false
		}
	}
	l.entries = entries
	return true
}

// next makes the entries that records become.
func (l *Log) next(records []Record) ([]Entry, error) {
	added := make([]Entry, 0, len(records))
	for i, r := range records {
		payload, err := json.Marshal(r.Payload)
		if err != nil {
			return nil, fmt.Errorf("failed to marshal a %q entry: %w", r.Kind, err)
		}
		added = append(added, Entry{
			Seq: int64(len(l.entries) + i + 1), Epoch: l.epoch, Kind: r.Kind, Time: l.now().UTC(), Payload: payload,
		})
	}
	return added, nil
}

func (l *Log) add(ctx context.Context, added []Entry) error {
	if err := l.journal.Append(context.WithoutCancel(ctx), l.turnUID, added...); err != nil {
		return fmt.Errorf("failed to append to the journal of turn %q: %w", l.turnUID, err)
	}
	l.entries = append(l.entries, added...)
	return nil
}

// All returns the entries of a kind, oldest first, decoded into T.
// It fails on a payload that is not a T.
func All[T any](l *Log, kind Kind) ([]T, error) {
	var all []T
	for _, e := range l.entries {
		if e.Kind != kind {
			continue
		}
		var v T
		if err := json.Unmarshal(e.Payload, &v); err != nil {
			return nil, fmt.Errorf("failed to read entry %d (%q) of the journal of turn %q: %w", e.Seq, kind, l.turnUID, err)
		}
		all = append(all, v)
	}
	return all, nil
}

// Last returns the newest entry of a kind decoded into T; ok is false if there is none.
func Last[T any](l *Log, kind Kind) (last T, ok bool, err error) {
	all, err := All[T](l, kind)
	if err != nil || len(all) == 0 {
		return last, false, err
	}
	return all[len(all)-1], true, nil
}
