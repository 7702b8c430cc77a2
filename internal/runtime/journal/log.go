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
)

// Log is the journal of one Turn, held by the one run that writes it. What the run knows of the past is what Apply was
// told: each entry in order, first those that are there, then those that the run appends.
type Log struct {
	o     Options
	uid   string
	epoch int64
	seq   int64
	// first goes before what is appended first.
	first []Record
}

// Options of a Log. Journal, Now and Apply are needed.
type Options struct {
	Journal Journal
	// Namespace of the Turn or Session whose journal it is; empty if it is not known.
	Namespace string
	// Now is the time that entries bear.
	Now func() time.Time
	// Apply is told of each entry, whose payload is there even where an artifact has it. An error of it stops the run.
	Apply func(Entry) error
	// Admit is called with the bytes of each payload that Open reads, before it is made of an artifact that has it, and before Apply. Its
	// error ends Open, and is returned as it is; the entry may be good all the same. If Admit is nil, all are read.
	Admit func(bytes int64) error
	// Waiting is told, each time, that an append failed and when it is tried again; nil tells nobody.
	Waiting func(err error, in time.Duration)
	// First are records that go before what this run appends first.
	First []Record
	// Known is how many entries the journal had when its number was last recorded outside of it, as in the status of its Turn; 0 if
	// that is not known. Open returns ErrLost for a journal that has fewer.
	Known int64
	// After is the place of the last entry that the run does not need to read, and 0 to read all. The journal must have it.
	After int64
	// Patience is how long an append is tried for while the store fails; 0 is for ever.
	Patience time.Duration
}

// Open reads the journal of a UID for a run of an epoch. It returns ErrFenced if a newer epoch has written to it,
// ErrNewer if a newer version of Capstan has, ErrDamaged if an entry is missing or makes no sense, and ErrLost if its last entries are
// missing as far as Options.Known tells. The first entries of a journal that is being purged are missing, too.
func Open(ctx context.Context, uid string, epoch int64, o Options) (*Log, error) {
	l := &Log{o: o, uid: uid, epoch: epoch, seq: o.After, first: o.First}
	for e, err := range o.Journal.Read(ctx, uid, o.After) {
		switch {
		case err != nil:
			return nil, fmt.Errorf("failed to read the journal of %q: %w", uid, err)
		case e.Epoch > epoch:
			return nil, ErrFenced
		case e.Seq != l.seq+1:
			return nil, fmt.Errorf("failed to read the journal of %q: %w: entry %d comes where entry %d should", uid, ErrDamaged, e.Seq, l.seq+1)
		}
		if err := fill(ctx, o.Journal, uid, &e, o.Admit); err != nil {
			return nil, err
		}
		if err := l.applied(ctx, e); err != nil {
			return nil, err
		}
	}
	if l.seq < o.Known {
		return nil, fmt.Errorf("failed to read the journal of %q: %w: it has %d entries and had at least %d", uid, ErrLost, l.seq, o.Known)
	}
	return l, nil
}

// Fill gives an entry its payload where an artifact has it. It returns ErrNewer for a version that this build does not know,
// and ErrDamaged where the artifact is not there or holds something else.
func Fill(ctx context.Context, j Journal, uid string, e *Entry) error {
	return fill(ctx, j, uid, e, nil)
}

// fill is Fill for a payload that admit lets in; nil lets all in.
func fill(ctx context.Context, j Journal, uid string, e *Entry, admit func(bytes int64) error) error {
	if admit == nil {
		admit = func(int64) error { return nil }
	}
	if e.Version > PayloadVersion {
		return fmt.Errorf("failed to read entry %d (%q) of the journal of %q: %w", e.Seq, e.Kind, uid, ErrNewer)
	}
	if e.Artifact == "" {
		return admit(int64(len(e.Payload)))
	}
	a, err := j.Artifact(ctx, uid, e.Artifact)
	if errors.Is(err, ErrNoArtifact) {
		err = fmt.Errorf("%w: %w", ErrDamaged, err)
	}
	if err == nil {
		if err := admit(a.Bytes); err != nil {
			return err
		}
		done := fairgate.Large(ctx, int(min(a.Bytes, maxArtifact)))
		if e.Payload, err = a.Content(); err != nil {
			err = fmt.Errorf("%w: %w", ErrDamaged, err)
		}
		done()
	}
	if err != nil {
		return fmt.Errorf("failed to read the artifact of entry %d (%q) of the journal of %q: %w", e.Seq, e.Kind, uid, err)
	}
	return nil
}

func (l *Log) applied(ctx context.Context, e Entry) error {
	defer fairgate.Large(ctx, len(e.Payload))()
	l.seq = e.Seq
	if err := l.o.Apply(e); err != nil {
		return fmt.Errorf("failed to read entry %d (%q) of the journal of %q: %w: %w", e.Seq, e.Kind, l.uid, ErrDamaged, err)
	}
	return nil
}

// Record is something to append: a kind and a payload that marshals to JSON.
type Record struct {
	Kind    Kind
	Payload any
	// Version is the oldest version of payloads that this one fits, 0 for 1.
	Version int
	// Artifacts to keep with it.
	Artifacts []Artifact
}

// Len returns the number of entries that the journal is known to have.
func (l *Log) Len() int64 { return l.seq }

// Next is the place that the next entry will have.
func (l *Log) Next() int64 { return l.seq + int64(len(l.first)) + 1 }

// Append writes records at the end of the journal, all or none, and returns when they would survive a crash.
//
// What has happened must be written down: while the store fails it tries again, for as long as ctx lives, and once even
// where that has ended already. ctx is therefore the life of the run, and not the time of the Turn. It returns ErrFenced
// or ErrSequence if another run writes this journal, and ErrLost if the store no longer has the last entry that this run has
// read or appended. That is also what becomes of a journal that was purged.
func (l *Log) Append(ctx context.Context, records ...Record) error {
	added, err := l.next(ctx, append(slices.Clip(l.first), records...))
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
	}, backoff.WithBackOff(wait), backoff.WithMaxElapsedTime(l.o.Patience), backoff.WithNotify(func(err error, in time.Duration) {
		if l.o.Waiting != nil {
			l.o.Waiting(err, in)
		}
	}))
	if err != nil && !errors.Is(last, err) {
		err = fmt.Errorf("%w, while the store fails: %w", err, last) // that ctx has ended is only half of it
	}
	if err != nil {
		return fmt.Errorf("failed to append to the journal of %q: %w", l.uid, err)
	}
	l.first = nil
	for _, e := range added {
		if err := l.applied(ctx, e); err != nil {
			return err
		}
	}
	return nil
}

// write is an append that is tried until its outcome is known.
type write struct {
	log     *Log
	entries []Entry
	// unknown says that an attempt has failed although it may have been done.
	unknown bool
}

// try appends the entries once. Where the outcome of an attempt before is unknown, that may have been done although it seemed to
// fail: then the entries are there. Otherwise equal ones are another run's, which does the same at the same time.
func (w *write) try(ctx context.Context) error {
	l := w.log
	err := l.o.Journal.Append(ctx, l.uid, stored(w.entries)...)
	switch {
	case errors.Is(err, ErrFenced):
		return backoff.Permanent(err)
	case !errors.Is(err, ErrSequence):
		w.unknown = w.unknown || err != nil
		return err
	}
	held, err := w.held(ctx)
	switch {
	case errors.Is(err, ErrLost):
		return backoff.Permanent(err)
	case err != nil:
		return err
	case held && w.unknown:
		return nil
	}
	return backoff.Permanent(ErrSequence)
}

// held reports whether the journal ends with the entries. It returns ErrLost if it ends before them: without the entry that they
// follow.
func (w *write) held(ctx context.Context) (bool, error) {
	l, n := w.log, -1 // of the entries that were seen, after the one before them
	if l.seq == 0 {
		n = 0
	}
	for e, err := range l.o.Journal.Read(ctx, l.uid, max(l.seq-1, 0)) {
		switch {
		case err != nil:
			return false, err
		case n == len(w.entries), n >= 0 && !same(e, w.entries[n]):
			return false, nil
		}
		n++
	}
	if n < 0 {
		return false, fmt.Errorf("%w: entry %d is not there", ErrLost, l.seq)
	}
	return n == len(w.entries), nil
}

// same reports whether an entry of a store is one that was to be appended.
func same(e, appended Entry) bool {
	a := stored([]Entry{appended})[0]
	return e.Seq == a.Seq && e.Epoch == a.Epoch && e.Kind == a.Kind && e.Artifact == a.Artifact && bytes.Equal(e.Payload, a.Payload)
}

// next makes the entries that records become.
func (l *Log) next(ctx context.Context, records []Record) ([]Entry, error) {
	added := make([]Entry, 0, len(records))
	for i, r := range records {
		payload, err := json.Marshal(r.Payload)
		if err != nil {
			return nil, fmt.Errorf("failed to marshal a %q entry: %w", r.Kind, err)
		}
		e := Entry{
			Seq: l.seq + int64(i) + 1, Epoch: l.epoch, Kind: r.Kind, Version: max(r.Version, 1), Time: l.o.Now().UTC(),
			Payload: payload, Artifacts: r.Artifacts, Namespace: l.o.Namespace,
		}
		most := int64(len(payload))
		for _, a := range r.Artifacts {
			most = max(most, a.Bytes)
		}
		if most > maxArtifact {
			return nil, fmt.Errorf("failed to make a %q entry: a piece of it has %d bytes, and %d is the most that can be read back",
				r.Kind, most, maxArtifact)
		}
		if len(payload) > MaxPayload {
			done := fairgate.Large(ctx, len(payload))
			a := NewArtifact(payload)
			done()
			e.Artifact, e.Artifacts = a.SHA256, append(slices.Clip(e.Artifacts), a)
		}
		added = append(added, e)
	}
	return added, nil
}

// stored are entries as a store has them: without the payloads that artifacts have.
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
