// Package session keeps the history of a Session: the additions of its Turns, in order. The history is in the
// journal's store under the UID of the Session. It is separate from the journals of the Turns, which may be deleted
// before it.
//
// The Turns of a Session run one after another, so there is one writer at a time. A run may be cut off between the end
// of its Turn and the addition to the history. The run that continues the Turn then makes the addition. Each Turn is
// added only once.
//
// Each entry contains a Checkpoint of the conversation: its totals, and the first entry that later Turns read. So a new
// Turn reads only the newest entry and the entries for its prompt. The run that adds the Turn reads only the entry that
// was the newest when the Turn began, and later entries.
package session

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/cenkalti/backoff/v5"
	"github.com/shopspring/decimal"

	"github.com/capstan-dev/capstan/internal/runtime/finalize"
	"github.com/capstan-dev/capstan/internal/runtime/journal"
	"github.com/capstan-dev/capstan/internal/runtime/model"
)

// ErrLost is returned if requested entries of a Session's journal are missing or were replaced by other entries.
var ErrLost = errors.New("the journal of the session has lost entries")

// Turn is the addition of one Turn to the history, as the journal keeps it.
type Turn struct {
	// UID and Name are the UID and the name of the Turn.
	UID  string `json:"turnUID"`
	Name string `json:"turnName"`
	// Namespace is the namespace of the Turn and of its Session. It is empty in entries of older versions.
	Namespace string `json:"namespace,omitempty"`
	// Messages are the messages of the Turn in order: the user's message, the model's replies with their tool
	// calls, the results of these calls, and the answer. They are empty if the Turn ended without an answer, or if its
	// answer is withheld.
	Messages []model.Message `json:"messages,omitempty"`
	// Usage and Cost are the totals of the Turn. Cost is nil if it is not known.
	Usage model.Usage    `json:"usage"`
	Cost  *finalize.Cost `json:"cost,omitempty"`
	// KnownCost is the known part of the cost if Cost is nil, summed over all currencies. If Cost is set, KnownCost is
	// 0, unlike Totals.KnownCost.
	KnownCost decimal.Decimal `json:"knownCost,omitzero"`
	// ContextTokens is the number of tokens of the last request and its reply.
	ContextTokens int64 `json:"contextTokens,omitempty"`
	// Compaction is set if the Turn has replaced older messages by a summary. Later Turns then begin with the
	// summary.
	Compaction *Compaction `json:"compaction,omitempty"`
	// Checkpoint is the state of the conversation after this Turn. Add sets it. It is nil in entries of older versions.
	// Journals name it head.
	Checkpoint *Checkpoint `json:"head,omitempty"`
}

// Compaction replaces the oldest entries by a summary, for later Turns. It is in the entry of the Turn that paid for
// the summary, even if that Turn failed. So the summary is neither lost nor paid for again.
type Compaction struct {
	// Summary replaces the messages before First. A model wrote it.
	Summary string `json:"summary"`
	// First is the sequence number of the first entry that is kept whole.
	First int64 `json:"first"`
}

// Checkpoint is the state of a conversation after one of its entries, so that readers need not read earlier entries.
type Checkpoint struct {
	Totals
	// First is the sequence number of the first entry that later Turns read, from 1.
	First int64 `json:"first"`
}

// Totals are the totals of a conversation.
type Totals struct {
	// Turns is the number of Turns that were added, including the Turns whose history was lost.
	Turns int64 `json:"turns"`
	// Usage is the usage of all Turns.
	Usage model.Usage `json:"usage"`
	// Cost is the cost of all Turns. It is nil if the cost of a Turn is not known, or if there are several
	// currencies.
	Cost *finalize.Cost `json:"cost,omitempty"`
	// KnownCost is the sum of all known costs, in any currency. Unlike Turn.KnownCost, it is always set: if Cost is
	// set, it equals Cost; otherwise it is the sum without the unknown costs.
	KnownCost decimal.Decimal `json:"knownCost,omitzero"`
	// ContextTokens is the number of tokens of the last request and its reply, from the last answered Turn. The prompt
	// of the next Turn has about this size.
	ContextTokens int64 `json:"contextTokens,omitempty"`
	// Missing is the number of Turns whose history was lost: the journal does not have their messages.
	Missing int64 `json:"missingTurns,omitempty"`
}

// End describes the end of a conversation.
type End struct {
	// Position is the sequence number of the newest entry, or 0 if there is no entry.
	Position int64
	// Last is the name of the Turn that added the newest entry.
	Last string
	// Totals are the totals of the whole conversation.
	Totals Totals
	// Number is the number of the Turn that Add was called for, from 1, and Added is the time of its entry. Latest sets
	// neither.
	Number int64
	Added  time.Time
}

// Conversation is the part of a conversation that was read, for example for a Turn.
type Conversation struct {
	// First and Through are the sequence numbers of the first and the last entry. Through is 0 if there is no entry.
	First, Through int64
	// Turns are the entries, oldest first.
	Turns []Turn
	// SHA256 is the digest of the payloads of the entries, in hexadecimal. It is empty if there is no entry.
	SHA256 string
	// Totals are the totals of the whole conversation up to and including Through.
	Totals Totals
	// Counts has the number of messages of each entry, oldest first.
	Counts []int
}

// Admit is called before entries are read, with the number of bytes that the reader will hold. If it returns an error,
// the reader stops and returns this error. If Admit is nil, all entries are read.
type Admit func(bytes int64) error

// Summary returns the summary that replaces the messages before this part. It is empty if no messages were
// replaced.
func (c *Conversation) Summary() string {
	for _, t := range slices.Backward(c.Turns) {
		if t.Compaction != nil {
			return t.Compaction.Summary
		}
	}
	return ""
}

// Kept returns the sequence number of the first entry to keep, so that at least the given number of the newest messages
// of this part is kept. If messages is 0, Kept returns the sequence number after this part.
func (c *Conversation) Kept(messages int) int64 {
	i := len(c.Counts)
	for ; messages > 0 && i > 0; i-- {
		messages -= c.Counts[i-1]
	}
	return c.First + int64(i)
}

// Messages returns all messages of this part, in order.
func (c *Conversation) Messages() []model.Message {
	n := 0
	for _, t := range c.Turns {
		n += len(t.Messages)
	}
	all := make([]model.Message, 0, n)
	for _, t := range c.Turns {
		all = append(all, t.Messages...)
	}
	return all
}

// Recall reads the part of a conversation that a new Turn receives. This part is empty for an unknown UID. Recall
// returns journal.ErrDamaged if entries are missing, for example while the journal is being purged.
func Recall(ctx context.Context, j journal.Journal, uid string, admit Admit) (*Conversation, error) {
	f, err := newest(ctx, j, uid, admit)
	if err != nil {
		return nil, err
	}
	if f.at == 0 {
		return &Conversation{First: 1}, nil
	}
	c, err := Read(ctx, j, uid, f.checkpoint.First, f.at, admit)
	if errors.Is(err, ErrLost) {
		err = fmt.Errorf("%w: %w", journal.ErrDamaged, err)
	}
	return c, err
}

// Read reads the entries from first to through inclusive. The same arguments always return the same conversation.
// Read returns ErrLost if the journal does not have all these entries.
func Read(ctx context.Context, j journal.Journal, uid string, first, through int64, admit Admit) (*Conversation, error) {
	if admit != nil && through > 0 {
		bytes, err := j.PayloadBytes(ctx, uid, first, through)
		if err == nil {
			err = admit(bytes)
		}
		if err != nil {
			return nil, err
		}
	}
	var turns []Turn
	c, err := outline(ctx, j, uid, first, through, nil, func(t Turn) { turns = append(turns, t) })
	if err != nil {
		return nil, err
	}
	c.Turns = turns
	return c, nil
}

// Outline is like Read, but leaves Conversation.Turns empty, so that only one entry at a time is in memory.
func Outline(ctx context.Context, j journal.Journal, uid string, first, through int64, admit Admit) (*Conversation, error) {
	return outline(ctx, j, uid, first, through, admit, func(Turn) {})
}

// outline reads the entries from first to through inclusive, and calls visit for each of them.
func outline(
	ctx context.Context, j journal.Journal, uid string, first, through int64, admit Admit, visit func(Turn),
) (*Conversation, error) {
	c := &Conversation{First: first, Through: through}
	if through == 0 {
		return c, nil
	}
	sum := sha256.New()
	f, err := readFold(ctx, j, uid, first, through, admit, func(e journal.Entry, t Turn) {
		_, _ = sum.Write(e.Payload) // a hash never fails
		c.Counts = append(c.Counts, len(t.Messages))
		visit(t)
	})
	if err != nil {
		return nil, err
	}
	c.Totals, c.SHA256 = f.checkpoint.Totals, hex.EncodeToString(sum.Sum(nil))
	return c, nil
}

// Latest returns the end of a conversation. It reads only the newest entry, unless an older version wrote the
// journal.
func Latest(ctx context.Context, j journal.Journal, uid string, admit Admit) (End, error) {
	f, err := newest(ctx, j, uid, admit)
	if err != nil {
		return End{}, err
	}
	return f.end(0), nil
}

// newest reads the newest entry. It reads all entries of a journal that an older version has written.
func newest(ctx context.Context, j journal.Journal, uid string, admit Admit) (*fold, error) {
	last, err := j.Last(ctx, uid)
	if err != nil || last == 0 {
		return &fold{checkpoint: Checkpoint{First: 1}}, err
	}
	f, err := readFold(ctx, j, uid, last, last, admit, nil)
	if err == nil && f.unknown {
		f, err = readFold(ctx, j, uid, 1, last, admit, nil)
	}
	if errors.Is(err, ErrLost) {
		err = fmt.Errorf("%w: %w", journal.ErrDamaged, err)
	}
	return f, err
}

// readFold folds the entries from first to through inclusive. For each entry, it calls admit with the size of the entry
// before it reads the payload, and visit afterwards. admit and visit may be nil. readFold returns ErrLost if an entry
// is missing.
func readFold(
	ctx context.Context, j journal.Journal, uid string, first, through int64, admit Admit, visit func(journal.Entry, Turn),
) (*fold, error) {
	f := &fold{at: first - 1, checkpoint: Checkpoint{First: 1}}
	f.unknown = first > 1
	for e, err := range j.Read(ctx, uid, first-1) {
		if err != nil {
			return nil, fmt.Errorf("failed to read the journal of %q: %w", uid, err)
		}
		if e.Seq != f.at+1 || e.Seq > through {
			break
		}
		if err := journal.LoadAdmittedPayload(ctx, j, uid, &e, admit); err != nil {
			return nil, err
		}
		t, err := f.apply(e)
		if err != nil {
			return nil, fmt.Errorf("failed to read entry %d (%q) of the journal of %q: %w: %w", e.Seq, e.Kind, uid, journal.ErrDamaged, err)
		}
		if visit != nil {
			visit(e, t)
		}
		if e.Seq == through {
			break
		}
	}
	if f.at < through {
		return nil, fmt.Errorf("%w: entry %d of %d is missing", ErrLost, f.at+1, through)
	}
	return f, nil
}

// fold is the state of a conversation after the entries that were read.
type fold struct {
	// at is the sequence number of the last entry that was read, and last is the name of its Turn.
	at         int64
	last       string
	checkpoint Checkpoint
	// unknown is true if checkpoint is not known, because an older version wrote all entries that were read. All
	// earlier entries must then be read, too.
	unknown bool
	// uid is the UID of the Turn to look for; it may be empty. number is the number of that Turn in the conversation,
	// from 1, or 0 if it was not found. added is the time of its entry.
	uid    string
	number int64
	added  time.Time
}

// apply folds the next entry into the state, and returns its Turn.
func (f *fold) apply(e journal.Entry) (Turn, error) {
	var t Turn
	if err := json.Unmarshal(e.Payload, &t); err != nil {
		return t, err
	}
	if t.Checkpoint != nil {
		f.checkpoint, f.unknown = *t.Checkpoint, false
	} else {
		f.checkpoint = f.checkpoint.with(t)
	}
	f.at, f.last = e.Seq, t.Name
	if f.uid != "" && t.UID == f.uid && f.number == 0 {
		f.number, f.added = f.checkpoint.Turns, e.Time
	}
	return t, nil
}

// end returns the end of the conversation. number is the number of the added Turn, or 0 if no Turn was added.
func (f *fold) end(number int64) End {
	e := End{Position: f.at, Last: f.last, Totals: f.checkpoint.Totals, Number: number}
	if number > 0 {
		e.Added = f.added
	}
	return e
}

// with returns the checkpoint after the addition of a Turn.
func (c Checkpoint) with(t Turn) Checkpoint {
	costs := []*finalize.Cost{}
	if c.Usage != (model.Usage{}) {
		costs = append(costs, c.Cost)
	}
	if t.Usage != (model.Usage{}) {
		costs = append(costs, t.Cost)
	}
	c.Cost = sum(costs)
	c.Turns++
	c.Usage = c.Usage.Add(t.Usage)
	c.KnownCost = c.KnownCost.Add(t.known())
	if len(t.Messages) > 0 {
		c.ContextTokens = t.ContextTokens
	}
	if t.Compaction != nil {
		c.First = t.Compaction.First
	}
	return c
}

// ExternalState is information about a conversation from outside the Session's journal.
type ExternalState struct {
	// After is the sequence number of the last entry when the Turn began, or 0 if it is not known. The entry of the
	// Turn itself has a higher number.
	After int64
	// Known are the totals that were recorded outside of the journal, for example in the status of the Session. If the
	// journal has fewer Turns, it has lost Turns, whose usage and cost still count.
	Known Totals
	// Number is the number of the Turn in the conversation, from 1, or 0 if it is not known. If Known.Turns is at least
	// Number, Known includes this Turn.
	Number int64
}

// MissingOf returns the number of Turns whose history was lost: the missing Turns that the journal itself counts, and
// the Turns that only the known totals include.
func (t Totals) MissingOf(known Totals) int64 { return t.Missing + max(0, known.Turns-t.Turns) }

// CombinedWith returns these totals, or the known totals if the journal has fewer Turns.
func (t Totals) CombinedWith(known Totals) Totals {
	if known.Turns <= t.Turns {
		return t
	}
	known.Missing = t.MissingOf(known)
	return known
}

// maxTries is the maximum number of attempts of Add. An attempt fails if the history has changed since Add read it:
// because other Turns are added at the same time, or because the history is being purged.
const maxTries = 10

// Add adds a Turn at the end of a conversation, unless the conversation already has it, and returns the new end. If the
// place of the Turn differs from the number in since, the same append corrects the number in the record of the Turn. So
// the numbers in records are unique, even if several Turns began with the same number.
//
// While a write to the store fails, Add tries again until Patience of the options is over. It ignores Apply, First,
// Known and After of the options. Add returns journal.ErrSequence if the history keeps changing, for example because
// its Session was deleted.
func Add(ctx context.Context, uid string, t Turn, since ExternalState, o journal.Options) (End, error) {
	wait := backoff.NewExponentialBackOff()
	wait.InitialInterval, wait.MaxInterval = 50*time.Millisecond, time.Second
	return backoff.Retry(ctx, func() (End, error) {
		p, err := add(ctx, uid, t, since, o)
		if err != nil && !errors.Is(err, journal.ErrSequence) {
			return End{}, backoff.Permanent(err)
		}
		return p, err // after ErrSequence, read the end again: this or another Turn was added
	}, backoff.WithBackOff(wait), backoff.WithMaxElapsedTime(0), backoff.WithMaxTries(maxTries))
}

func add(ctx context.Context, uid string, t Turn, since ExternalState, o journal.Options) (End, error) {
	after := since.After
	f, log, err := open(ctx, uid, t.UID, max(after, 1), o)
	if err == nil && (f.unknown || f.at < after) && after > 1 { // an older version wrote the entries, or some are lost
		f, log, err = open(ctx, uid, t.UID, 1, o)
	}
	if err != nil || f.number > 0 {
		return f.end(f.number), err
	}
	t.Checkpoint = f.checkpoint.next(t, since)
	record := journal.Record{Kind: journal.SessionTurn, Payload: t}
	if n := t.Checkpoint.Turns; n != since.Number {
		record.TurnNumber = &journal.TurnNumber{TurnUID: t.UID, Number: n}
	}
	if err := log.Append(ctx, record); err != nil {
		return End{}, err
	}
	return f.end(f.number), nil
}

// next returns the checkpoint for the new entry of a Turn. If the journal has lost Turns, next starts from the known
// totals.
func (c Checkpoint) next(t Turn, since ExternalState) *Checkpoint {
	known := c.CombinedWith(since.Known)
	isCounted := since.Known.Turns > c.Turns && since.Number > 0 && since.Known.Turns >= since.Number
	c.Totals = known
	c = c.with(t)
	if isCounted { // the known totals include this Turn
		c.Totals = known
		c.Missing--
	}
	return &c
}

// epoch is the epoch of all entries in histories. Only the journals of Turns use epochs to stop outdated runs.
const epoch = 1

// open opens a journal, reads its entries from the sequence number first on, and looks for the entry of a Turn.
func open(ctx context.Context, uid, turnUID string, first int64, o journal.Options) (*fold, *journal.Log, error) {
	f := &fold{checkpoint: Checkpoint{First: 1}, unknown: first > 1, uid: turnUID}
	o.First, o.Known, o.After = nil, 0, first-1
	o.Apply = func(e journal.Entry) error {
		_, err := f.apply(e)
		return err
	}
	log, err := journal.Open(ctx, uid, epoch, o)
	return f, log, err
}

// known returns the known part of the cost of the Turn. If Cost is set, this is the whole cost.
func (t Turn) known() decimal.Decimal {
	if t.Cost == nil {
		return t.KnownCost
	}
	amount, err := decimal.NewFromString(t.Cost.Amount)
	if err != nil {
		return decimal.Zero
	}
	return amount
}

// sum returns the sum of costs, or nil if there are none, if one of them is not known, or if their currencies differ.
func sum(costs []*finalize.Cost) *finalize.Cost {
	var total decimal.Decimal
	currency := ""
	for _, c := range costs {
		if c == nil || currency != "" && c.Currency != currency {
			return nil
		}
		amount, err := decimal.NewFromString(c.Amount)
		if err != nil {
			return nil
		}
		total, currency = total.Add(amount), c.Currency
	}
	if currency == "" {
		return nil
	}
	return &finalize.Cost{Amount: total.String(), Currency: currency}
}
