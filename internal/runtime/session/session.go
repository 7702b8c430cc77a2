// Package session is the memory of a conversation: what each of its Turns has added, in order. It is kept in the journal's
// store under the UID of the Session, apart from the journals of the Turns, which may be deleted before it.
//
// The Turns of a Session run one after another, so one writer at a time adds to it. A run that was cut off between the end
// of its Turn and this record adds it when it goes on: a Turn is added once, whoever does it.
//
// Each entry says how far the conversation has got with it, so that neither a new Turn nor the end of one has to read what
// came before: a Turn reads the newest entry, and from there the entries that its prompt shows.
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

// ErrLost is returned when entries that the journal of a Session had are no longer there, or are other entries by now.
var ErrLost = errors.New("the journal of the session has lost entries")

// Turn is what one Turn has added to a conversation, as the journal keeps it.
type Turn struct {
	// UID and Name of the Turn.
	UID  string `json:"turnUID"`
	Name string `json:"turnName"`
	// Namespace of the Turn and of its Session; empty in entries of older versions.
	Namespace string `json:"namespace,omitempty"`
	// Messages as they were said: the user's, the model's with the tools it asked for, the results of these, the answer. None
	// where the Turn ended without an answer.
	Messages []model.Message `json:"messages,omitempty"`
	// Usage and Cost of the Turn; Cost is nil where it is not known.
	Usage model.Usage    `json:"usage"`
	Cost  *finalize.Cost `json:"cost,omitempty"`
	// KnownCost is what is known of a cost that is not known as a whole, whatever the currencies; 0 where Cost is there.
	KnownCost decimal.Decimal `json:"knownCost,omitzero"`
	// ContextTokens of the last request and its reply.
	ContextTokens int64 `json:"contextTokens,omitempty"`
	// Compaction is set where the Turn has replaced older messages by a summary, and later Turns begin with that.
	Compaction *Compaction `json:"compaction,omitempty"`
	// Head is how far the conversation has got with this Turn. Add sets it. It is nil in entries of older versions.
	Head *Head `json:"head,omitempty"`
}

// Compaction is what later Turns are told in place of the oldest entries. It is of the same entry as the Turn that paid for it, so
// that it is neither lost nor bought again, whatever becomes of that Turn.
type Compaction struct {
	// Summary stands for what was said before First. A model wrote it.
	Summary string `json:"summary"`
	// First is the position of the first entry that is kept whole.
	First int64 `json:"first"`
}

// Head is how far a conversation has got with one of its entries.
type Head struct {
	Totals
	// First is the position of the first entry that later Turns read, from 1.
	First int64 `json:"first"`
}

// Totals of a conversation.
type Totals struct {
	// Turns that were added. Those whose history was lost count.
	Turns int64 `json:"turns"`
	// Usage of all.
	Usage model.Usage `json:"usage"`
	// Cost of all; nil where that of one is not known, or they are in several currencies.
	Cost *finalize.Cost `json:"cost,omitempty"`
	// KnownCost is the sum of what is known, in whatever currencies: as much as Cost, or less than all where that is nil.
	KnownCost decimal.Decimal `json:"knownCost,omitzero"`
	// ContextTokens of the last request and its reply of the last Turn that was answered: about what the next one begins with.
	ContextTokens int64 `json:"contextTokens,omitempty"`
	// Missing is how many of Turns have lost their history: the journal does not have what they said.
	Missing int64 `json:"missingTurns,omitempty"`
}

// Place is where a conversation ends.
type Place struct {
	// Position of the newest entry; 0 for a conversation without one.
	Position int64
	// Last is the name of the Turn that added it.
	Last string
	// Totals of all.
	Totals Totals
	// Number of the Turn that was added, from 1; 0 where none was.
	Number int64
}

// Conversation is the part of a conversation that a Turn is shown.
type Conversation struct {
	// First and Through are the positions of its first and its last entry. Through is 0 where there is none.
	First, Through int64
	// Turns are the entries, oldest first.
	Turns []Turn
	// SHA256 of the payloads of the entries, in hexadecimal. It is empty where there is none.
	SHA256 string
	// Totals of the whole conversation, through its last entry.
	Totals Totals
}

// Summary stands for what was said before this part; empty where nothing was, or where it is whole.
func (c *Conversation) Summary() string {
	for _, t := range slices.Backward(c.Turns) {
		if t.Compaction != nil {
			return t.Compaction.Summary
		}
	}
	return ""
}

// Kept is the position of the first of the entries that have the last so many messages of this part. It is the position behind
// this part for none.
func (c *Conversation) Kept(messages int) int64 {
	i := len(c.Turns)
	for ; messages > 0 && i > 0; i-- {
		messages -= len(c.Turns[i-1].Messages)
	}
	return c.First + int64(i)
}

// Messages are all that was said in this part, in order.
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

// Recall reads the part of a conversation that a new Turn is shown. An unknown UID has an empty one. It returns
// journal.ErrDamaged where entries are missing, as while the journal is being purged.
func Recall(ctx context.Context, j journal.Journal, uid string) (*Conversation, error) {
	f, err := newest(ctx, j, uid)
	if err != nil {
		return nil, err
	}
	if f.at == 0 {
		return &Conversation{First: 1}, nil
	}
	c, err := Read(ctx, j, uid, f.head.First, f.at)
	if errors.Is(err, ErrLost) {
		err = fmt.Errorf("%w: %w", journal.ErrDamaged, err)
	}
	return c, err
}

// Read reads the entries from one position through another. The same positions give the same conversation for ever. It returns
// ErrLost where the journal does not have them all.
func Read(ctx context.Context, j journal.Journal, uid string, first, through int64) (*Conversation, error) {
	c := &Conversation{First: first, Through: through}
	if through == 0 {
		return c, nil
	}
	sum := sha256.New()
	f, err := follow(ctx, j, uid, first, through, func(e journal.Entry, t Turn) {
		_, _ = sum.Write(e.Payload) // a hash never fails
		c.Turns = append(c.Turns, t)
	})
	if err != nil {
		return nil, err
	}
	c.Totals, c.SHA256 = f.head.Totals, hex.EncodeToString(sum.Sum(nil))
	return c, nil
}

// Latest returns where a conversation ends, without reading it.
func Latest(ctx context.Context, j journal.Journal, uid string) (Place, error) {
	f, err := newest(ctx, j, uid)
	if err != nil {
		return Place{}, err
	}
	return f.place(0), nil
}

// newest reads the newest entry; of a journal that an older version has written, all of them.
func newest(ctx context.Context, j journal.Journal, uid string) (*fold, error) {
	last, err := j.Last(ctx, uid)
	if err != nil || last == 0 {
		return &fold{head: Head{First: 1}}, err
	}
	f, err := follow(ctx, j, uid, last, last, nil)
	if err == nil && f.unknown {
		f, err = follow(ctx, j, uid, 1, last, nil)
	}
	if errors.Is(err, ErrLost) {
		err = fmt.Errorf("%w: %w", journal.ErrDamaged, err)
	}
	return f, err
}

// follow folds the entries from one position through another, and hands each to a function, which may be nil. It returns
// ErrLost if one of them is missing.
func follow(ctx context.Context, j journal.Journal, uid string, first, through int64, tell func(journal.Entry, Turn)) (*fold, error) {
	f := &fold{at: first - 1, head: Head{First: 1}}
	f.unknown = first > 1
	for e, err := range j.Read(ctx, uid, first-1) {
		if err != nil {
			return nil, fmt.Errorf("failed to read the journal of %q: %w", uid, err)
		}
		if e.Seq != f.at+1 || e.Seq > through {
			break
		}
		if err := journal.Fill(ctx, j, uid, &e); err != nil {
			return nil, err
		}
		t, err := f.apply(e)
		if err != nil {
			return nil, fmt.Errorf("failed to read entry %d (%q) of the journal of %q: %w: %w", e.Seq, e.Kind, uid, journal.ErrDamaged, err)
		}
		if tell != nil {
			tell(e, t)
		}
		if e.Seq == through {
			break
		}
	}
	if f.at < through {
		return nil, fmt.Errorf("%w: entry %d of %d is not there", ErrLost, f.at+1, through)
	}
	return f, nil
}

// fold is how far a conversation has got with the entries that were read.
type fold struct {
	// at is the position of the last of them, and last the name of its Turn.
	at   int64
	last string
	head Head
	// unknown is true while the entries before are needed to know head: those that were read are an older version's.
	unknown bool
	// uid is that of a Turn that is looked for, and number its place, from 1; 0 if it was not found.
	uid    string
	number int64
}

func (f *fold) apply(e journal.Entry) (Turn, error) {
	var t Turn
	if err := json.Unmarshal(e.Payload, &t); err != nil {
		return t, err
	}
	if t.Head != nil {
		f.head, f.unknown = *t.Head, false
	} else {
		f.head = f.head.with(t)
	}
	f.at, f.last = e.Seq, t.Name
	if f.uid != "" && t.UID == f.uid && f.number == 0 {
		f.number = f.head.Turns
	}
	return t, nil
}

func (f *fold) place(number int64) Place {
	return Place{Position: f.at, Last: f.last, Totals: f.head.Totals, Number: number}
}

// with is the head after one more Turn.
func (h Head) with(t Turn) Head {
	costs := []*finalize.Cost{}
	if h.Usage != (model.Usage{}) {
		costs = append(costs, h.Cost)
	}
	if t.Usage != (model.Usage{}) {
		costs = append(costs, t.Cost)
	}
	h.Cost = sum(costs)
	h.Turns++
	h.Usage = h.Usage.Add(t.Usage)
	h.KnownCost = h.KnownCost.Add(t.known())
	if len(t.Messages) > 0 {
		h.ContextTokens = t.ContextTokens
	}
	if t.Compaction != nil {
		h.First = t.Compaction.First
	}
	return h
}

// Since is what a Turn knows of its conversation beside the journal.
type Since struct {
	// After is the position behind which the entry of the Turn may be: the end of the conversation when the Turn began. It is 0
	// where that is not known.
	After int64
	// Known are the totals that were recorded outside of the journal, as in the status of the Session. A journal with fewer
	// Turns has lost some: their totals still count.
	Known Totals
	// Number of the Turn in the conversation, from 1; 0 where that is not known. Known totals with as many Turns have this one.
	Number int64
}

// MissingOf is how many Turns of a conversation have lost their history: those that the journal knows of, and those that it does
// not have although they are known.
func (t Totals) MissingOf(known Totals) int64 { return t.Missing + max(0, known.Turns-t.Turns) }

// Whole are these totals, or the known ones where the journal has fewer Turns.
func (t Totals) Whole(known Totals) Totals {
	if known.Turns <= t.Turns {
		return t
	}
	known.Missing = t.MissingOf(known)
	return known
}

// maxTries is how often Add finds that the history is not what it has read. It happens once or twice where others add at
// the same time, and each time while the history is being purged.
const maxTries = 10

// Add adds a Turn at the end, unless it is there, and returns where the conversation ends then. While the store fails Add tries again, as the options say; their Apply, First, Known and After are its own. It returns ErrSequence where the history stays
// other than it can be read, as that of a Session that was deleted.
func Add(ctx context.Context, uid string, t Turn, since Since, o journal.Options) (Place, error) {
	wait := backoff.NewExponentialBackOff()
	wait.InitialInterval, wait.MaxInterval = 50*time.Millisecond, time.Second
	return backoff.Retry(ctx, func() (Place, error) {
		p, err := add(ctx, uid, t, since, o)
		if err != nil && !errors.Is(err, journal.ErrSequence) {
			return Place{}, backoff.Permanent(err)
		}
		return p, err // of ErrSequence: another Turn was added meanwhile, or this one, so look again
	}, backoff.WithBackOff(wait), backoff.WithMaxElapsedTime(0), backoff.WithMaxTries(maxTries))
}

func add(ctx context.Context, uid string, t Turn, since Since, o journal.Options) (Place, error) {
	after := since.After
	f, log, err := open(ctx, uid, t.UID, max(after, 1), o)
	if err == nil && (f.unknown || f.at < after) && after > 1 { // an older version's entries, or fewer than there were
		f, log, err = open(ctx, uid, t.UID, 1, o)
	}
	if err != nil || f.number > 0 {
		return f.place(f.number), err
	}
	t.Head = f.head.next(t, since)
	if err := log.Append(ctx, journal.Record{Kind: journal.SessionTurn, Payload: t}); err != nil {
		return Place{}, err
	}
	return f.place(f.number), nil
}

// next is the head with the entry of a Turn. Where the journal has lost Turns, it goes on from the totals that are known.
func (h Head) next(t Turn, since Since) *Head {
	lost := since.Known.Turns > h.Turns
	h.Totals = h.Whole(since.Known)
	if lost && since.Number > 0 && since.Known.Turns >= since.Number { // they have this Turn
		h.Missing--
		return &h
	}
	h = h.with(t)
	return &h
}

// epoch of all entries: it is the Turns' epochs that fence.
const epoch = 1

// open reads the entries of a journal from a position on, and looks for that of a Turn among them.
func open(ctx context.Context, uid, turnUID string, first int64, o journal.Options) (*fold, *journal.Log, error) {
	f := &fold{head: Head{First: 1}, unknown: first > 1, uid: turnUID}
	o.First, o.Known, o.After = nil, 0, first-1
	o.Apply = func(e journal.Entry) error {
		_, err := f.apply(e)
		return err
	}
	log, err := journal.Open(ctx, uid, epoch, o)
	return f, log, err
}

// known is what is known of the cost of a Turn.
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
