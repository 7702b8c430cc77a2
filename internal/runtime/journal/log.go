package journal

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/cenkalti/backoff/v5"

	"github.com/capstan-dev/capstan/internal/fairgate"
	"github.com/capstan-dev/capstan/internal/runtime/budget"
	"github.com/capstan-dev/capstan/internal/runtime/task"
	"github.com/capstan-dev/capstan/internal/runtime/turnrecord"
)

// Log is the journal of one Turn or Session, opened by the run that writes it. Options.Apply receives each entry in
// order: first the existing entries, and then the entries that the run appends. So a run that continues a Turn has the
// same state as the run that wrote the entries.
type Log struct {
	o     Options
	uid   string
	epoch int64
	seq   int64
	// first are the records that are written before the first append of this run.
	first []Record
}

// Options are the options of a Log. Journal, Now and Apply must be set.
type Options struct {
	Journal Journal
	// Namespace is the namespace of the Turn or Session that owns the journal. It is empty if it is not known.
	Namespace string
	// Now returns the time for entries.
	Now func() time.Time
	// Apply receives each entry with its payload, even if an artifact has the payload. An error stops the run.
	Apply func(Entry) error
	// Admit is called with the size of each payload that Open reads, before the payload is read from an artifact
	// and before Apply. Open returns its error unchanged, and such an error does not mean that the entry is
	// damaged. If Admit is nil, all payloads are read.
	Admit func(bytes int64) error
	// Waiting is called each time an append fails; delay is the time until the next attempt. Waiting may be nil.
	Waiting func(err error, delay time.Duration)
	// First returns the records that are written before the first append of this run. Open calls it after it has read
	// the journal. If First is nil, there are none.
	First func() []Record
	// Known is the number of entries that was last recorded outside of the journal, for example in the status of
	// its Turn. It is 0 if it is not known. Open returns ErrLost for a journal with fewer entries.
	Known int64
	// After is the sequence number of the last entry that the run does not read. The journal must have this entry. 0
	// means that the run reads all entries.
	After int64
	// Patience is the maximum time for which a failing append is tried again. 0 means no limit.
	Patience time.Duration
}

// Open reads the journal of a UID for a run of an epoch. It returns:
//
//   - ErrFenced if a newer epoch has written to the journal.
//   - ErrNewer if a newer version of Capstan has written to it.
//   - ErrDamaged if an entry is missing or makes no sense. While a journal is being purged, its first entries are
//     missing, too.
//   - ErrLost if the journal has fewer entries than Options.Known.
func Open(ctx context.Context, uid string, epoch int64, o Options) (*Log, error) {
	l := &Log{o: o, uid: uid, epoch: epoch, seq: o.After}
	for e, err := range o.Journal.Read(ctx, uid, o.After) {
		switch {
		case err != nil:
			return nil, fmt.Errorf("failed to read the journal of %q: %w", uid, err)
		case e.Epoch > epoch:
			return nil, ErrFenced
		case e.Seq != l.seq+1:
			return nil, fmt.Errorf("failed to read the journal of %q: %w: it has entry %d in place of entry %d",
				uid, ErrDamaged, e.Seq, l.seq+1)
		}
		if err := LoadAdmittedPayload(ctx, o.Journal, uid, &e, o.Admit); err != nil {
			return nil, err
		}
		if err := l.apply(ctx, e); err != nil {
			return nil, err
		}
	}
	if l.seq < o.Known {
		return nil, fmt.Errorf("failed to read the journal of %q: %w: it has %d entries, but had at least %d", uid, ErrLost, l.seq, o.Known)
	}
	if o.First != nil {
		l.first = o.First()
	}
	return l, nil
}

// LoadPayload fills the payload of an entry if an artifact has it. It returns ErrNewer for a version that this build
// cannot read, and ErrDamaged if the artifact is missing or has other content.
func LoadPayload(ctx context.Context, j Journal, uid string, e *Entry) error {
	return LoadAdmittedPayload(ctx, j, uid, e, nil)
}

// LoadAdmittedPayload is like LoadPayload, but first calls admit with the size of the payload in bytes. It returns an
// error of admit unchanged, and the artifact is then not read. If admit is nil, all payloads are accepted.
func LoadAdmittedPayload(ctx context.Context, j Journal, uid string, e *Entry, admit func(bytes int64) error) error {
	if e.Version > PayloadVersion {
		return fmt.Errorf("failed to read entry %d (%q) of the journal of %q: %w", e.Seq, e.Kind, uid, ErrNewer)
	}
	if admit != nil {
		bytes, err := int64(len(e.Payload)), error(nil)
		if e.Artifact != "" {
			bytes, err = j.PayloadBytes(ctx, uid, e.Seq, e.Seq)
		}
		if err != nil {
			return artifactError(uid, e, err)
		}
		if err := admit(bytes); err != nil {
			return err
		}
	}
	if e.Artifact == "" {
		return nil
	}
	a, err := j.Artifact(ctx, uid, e.Artifact)
	if err != nil {
		return artifactError(uid, e, err)
	}
	done := fairgate.AcquireProcessor(ctx, int(min(a.Bytes, maxArtifact)))
	defer done()
	if e.Payload, err = a.Content(); err != nil {
		return artifactError(uid, e, fmt.Errorf("%w: %w", ErrDamaged, err))
	}
	return nil
}

// artifactError returns the error of an entry whose artifact cannot be read.
func artifactError(uid string, e *Entry, err error) error {
	if errors.Is(err, ErrNoArtifact) {
		err = fmt.Errorf("%w: %w", ErrDamaged, err)
	}
	return fmt.Errorf("failed to read the artifact of entry %d (%q) of the journal of %q: %w", e.Seq, e.Kind, uid, err)
}

func (l *Log) apply(ctx context.Context, e Entry) error {
	defer fairgate.AcquireProcessor(ctx, len(e.Payload))()
	l.seq = e.Seq
	if err := l.o.Apply(e); err != nil {
		return fmt.Errorf("failed to read entry %d (%q) of the journal of %q: %w: %w", e.Seq, e.Kind, l.uid, ErrDamaged, err)
	}
	return nil
}

// Record is an entry to append: a kind, and a payload that marshals to JSON.
type Record struct {
	Kind    Kind
	Payload any
	// Version is the version of the form of the payload. 0 means 1.
	Version int
	// Artifacts are kept with the entry.
	Artifacts []Artifact
	// Ledger is a change of the ledger of budgets, or nil.
	Ledger *budget.Change
	// TurnRecord is stored with the entry; it is nil for most entries. Append sets its UID and, if it is zero, its
	// Completed.
	TurnRecord *turnrecord.Record
	// TurnNumber sets the number in the record of a Turn; it is nil for most entries.
	TurnNumber *TurnNumber
	// Tasks are stored with the entry; most entries have none. Append sets their UID and Created.
	Tasks []task.Task
}

// Len returns the number of entries that the journal is known to have.
func (l *Log) Len() int64 { return l.seq }

// Next returns the sequence number of the next entry.
func (l *Log) Next() int64 { return l.seq + int64(len(l.first)) + 1 }

// Append writes records at the end of the journal, all or none. The first successful call also writes the records of
// Options.First. When Append returns nil, the records are durable.
//
// While the store fails, Append tries again until ctx ends or Options.Patience is over, because an event that has
// happened must be recorded. It tries once even if ctx has already ended. ctx must therefore be the lifetime of the
// run, not the deadline of the Turn. Append returns ErrFenced or ErrSequence if another run writes this journal. It
// returns ErrLost if the store no longer has the last entry that this run has read or appended; a purged journal has
// the same effect. It returns a *budget.Refusal if budgets do not allow the records, and has then appended none.
func (l *Log) Append(ctx context.Context, records ...Record) error {
	added, err := l.toEntries(ctx, append(slices.Clip(l.first), records...))
	if err != nil {
		return err
	}
	wait := backoff.NewExponentialBackOff()
	wait.InitialInterval, wait.MaxInterval = 50*time.Millisecond, 5*time.Second
	var last error
	w := write{log: l, entries: added}
	_, err = backoff.Retry(ctx, func() (struct{}, error) {
		last = w.try(context.WithoutCancel(ctx))
		return struct{}{}, last
	}, backoff.WithBackOff(wait), backoff.WithMaxElapsedTime(l.o.Patience), backoff.WithNotify(func(err error, delay time.Duration) {
		if l.o.Waiting != nil {
			l.o.Waiting(err, delay)
		}
	}))
	if err != nil && !errors.Is(last, err) {
		err = fmt.Errorf("%w, while the store fails: %w", err, last) // report both causes: the end of ctx and the failure of the store
	}
	if err != nil {
		return fmt.Errorf("failed to append to the journal of %q: %w", l.uid, err)
	}
	return l.applyAll(ctx, added)
}

// ApplyUnrecorded passes records to Options.Apply that the journal does not have, because Append has failed. After
// that, the caller must not call Append.
func (l *Log) ApplyUnrecorded(ctx context.Context, records ...Record) error {
	entries, err := l.toEntries(ctx, append(slices.Clip(l.first), records...))
	if err != nil {
		return err
	}
	return l.applyAll(ctx, entries)
}

func (l *Log) applyAll(ctx context.Context, entries []Entry) error {
	l.first = nil
	for _, e := range entries {
		if err := l.apply(ctx, e); err != nil {
			return err
		}
	}
	return nil
}

// write is an append that is repeated until its outcome is known.
type write struct {
	log     *Log
	entries []Entry
	// unknown is true if an attempt has failed although it may have succeeded in the store.
	unknown bool
}

// try appends the entries once. If the store already has them, there are two cases. If the outcome of an earlier
// attempt is unknown, that attempt has succeeded. Otherwise another run has written equal entries at the same time.
func (w *write) try(ctx context.Context) error {
	l := w.log
	err := l.o.Journal.Append(ctx, l.uid, stored(w.entries)...)
	_, overBudget := errors.AsType[*budget.Refusal](err)
	switch {
	case overBudget, errors.Is(err, ErrFenced):
		return backoff.Permanent(err)
	case !errors.Is(err, ErrSequence):
		w.unknown = w.unknown || err != nil
		return err
	}
	present, err := w.endsWithEntries(ctx)
	switch {
	case errors.Is(err, ErrLost):
		return backoff.Permanent(err)
	case err != nil:
		return err
	case present && w.unknown:
		return nil
	}
	return backoff.Permanent(ErrSequence)
}

// endsWithEntries reports whether the journal ends with w.entries. It returns ErrLost if the journal lacks the entry
// before w.entries.
func (w *write) endsWithEntries(ctx context.Context) (bool, error) {
	l, n := w.log, -1 // n is the number of entries after entry l.seq, or -1 until that entry was read
	if l.seq == 0 {
		n = 0
	}
	for e, err := range l.o.Journal.Read(ctx, l.uid, max(l.seq-1, 0)) {
		switch {
		case err != nil:
			return false, err
		case n == len(w.entries), n >= 0 && !isSame(e, w.entries[n]):
			return false, nil
		}
		n++
	}
	if n < 0 {
		return false, fmt.Errorf("%w: entry %d is missing", ErrLost, l.seq)
	}
	return n == len(w.entries), nil
}

// isSame reports whether an entry of a store is the entry that Append tried to append. The time tells it from the equal
// entry of another run of the same epoch. There is such a run if a restored cluster binds a Turn again while the
// earlier executor still runs: both have read the same journal, so their next entries differ in their times only.
func isSame(e, appended Entry) bool {
	a := stored([]Entry{appended})[0]
	return e.Seq == a.Seq && e.Epoch == a.Epoch && e.Kind == a.Kind && e.Time.Equal(a.Time) &&
		e.Artifact == a.Artifact && bytes.Equal(e.Payload, a.Payload)
}

// toEntries converts records to the next entries.
func (l *Log) toEntries(ctx context.Context, records []Record) ([]Entry, error) {
	added := make([]Entry, 0, len(records))
	for i, r := range records {
		payload, err := json.Marshal(r.Payload)
		if err != nil {
			return nil, fmt.Errorf("failed to marshal a %q entry: %w", r.Kind, err)
		}
		e := Entry{
			Seq: l.seq + int64(i) + 1, Epoch: l.epoch, Kind: r.Kind, Version: max(r.Version, 1), Time: l.o.Now().UTC(),
			Payload: payload, Artifacts: r.Artifacts, Namespace: l.o.Namespace, Ledger: r.Ledger,
			TurnNumber: r.TurnNumber,
		}
		largest := int64(len(payload))
		for _, a := range r.Artifacts {
			largest = max(largest, a.Bytes)
		}
		if largest > maxArtifact {
			return nil, fmt.Errorf("failed to make a %q entry: a part of it has %d bytes, and the maximum is %d",
				r.Kind, largest, maxArtifact)
		}
		if len(payload) > MaxPayload {
			done := fairgate.AcquireProcessor(ctx, len(payload))
			a := NewArtifact(payload)
			done()
			e.Artifact, e.Artifacts = a.SHA256, append(slices.Clip(e.Artifacts), a)
		}
		if r.TurnRecord != nil {
			record := *r.TurnRecord
			record.UID = l.uid
			if record.Completed.IsZero() {
				record.Completed = e.Time
			}
			record.Completed = record.Completed.UTC().Truncate(time.Microsecond)
			e.TurnRecord = &record
		}
		for _, t := range r.Tasks {
			t.UID, t.Created = l.uid, e.Time.Truncate(time.Microsecond)
			e.Tasks = append(e.Tasks, t)
		}
		added = append(added, e)
	}
	return added, nil
}

// stored returns entries as a store receives them: without the payloads that artifacts have.
func stored(entries []Entry) []Entry {
	out := make([]Entry, len(entries))
	for i, e := range entries {
		if e.Artifact != "" {
			e.Payload = nil
		}
		out[i] = e
	}
	return out
}
