// Package session is the memory of a conversation: what each of its Turns has added, in order. It is kept in the journal's
// store under the UID of the Session, apart from the journals of the Turns, which may be deleted before it.
//
// The Turns of a Session run one after another, so one writer at a time adds to it. A run that was cut off between the end
// of its Turn and this record adds it when it goes on: a Turn is added once, whoever does it.
package session

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"time"

	"github.com/cenkalti/backoff/v5"
	"github.com/shopspring/decimal"

	"github.com/capstan-dev/capstan/internal/runtime/finalize"
	"github.com/capstan-dev/capstan/internal/runtime/journal"
	"github.com/capstan-dev/capstan/internal/runtime/model"
)

// Turn is what one Turn has added to a conversation.
type Turn struct {
	// UID and Name of the Turn.
	UID  string `json:"turnUID"`
	Name string `json:"turnName"`
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
}

// History is a conversation, oldest Turn first.
type History []Turn

// Totals of a conversation.
type Totals struct {
	// Turns that were added.
	Turns int64
	// Usage of all.
	Usage model.Usage
	// Cost of all; nil where that of one is not known, or they are in several currencies.
	Cost *finalize.Cost
	// KnownCost is the sum of what is known, in whatever currencies: as much as Cost, or less than all where that is nil.
	KnownCost decimal.Decimal
	// ContextTokens of the last request and its reply of the last Turn that was answered: about what the next one begins with.
	ContextTokens int64
}

// Load reads a conversation; an unknown UID has an empty one.
func Load(ctx context.Context, j journal.Journal, uid string) (History, error) {
	h, _, err := open(ctx, uid, journal.Options{Journal: j})
	return h, err
}

// maxTries is how often Add finds that the history is not what it has read. It happens once or twice where others add at
// the same time, and each time while the history is being purged.
const maxTries = 10

// Add adds a Turn at the end, unless it is there, and returns the conversation. While the store fails it tries again, as the
// options say; their Apply and First are its own. It returns ErrSequence where the history stays other than it can be read,
// as that of a Session that was deleted.
func Add(ctx context.Context, uid string, t Turn, o journal.Options) (History, error) {
	wait := backoff.NewExponentialBackOff()
	wait.InitialInterval, wait.MaxInterval = 50*time.Millisecond, time.Second
	return backoff.Retry(ctx, func() (History, error) {
		h, err := add(ctx, uid, t, o)
		if err != nil && !errors.Is(err, journal.ErrSequence) {
			return nil, backoff.Permanent(err)
		}
		return h, err // of ErrSequence: somebody else has added a Turn meanwhile, or this one, so look again
	}, backoff.WithBackOff(wait), backoff.WithMaxElapsedTime(0), backoff.WithMaxTries(maxTries))
}

func add(ctx context.Context, uid string, t Turn, o journal.Options) (History, error) {
	h, log, err := open(ctx, uid, o)
	if err != nil || h.Number(t.UID) > 0 {
		return h, err
	}
	if err := log.Append(ctx, journal.Record{Kind: journal.SessionTurn, Payload: t}); err != nil {
		return nil, err
	}
	return append(h, t), nil
}

// epoch of all entries: it is the Turns' epochs that fence.
const epoch = 1

func open(ctx context.Context, uid string, o journal.Options) (h History, log *journal.Log, err error) {
	o.First = nil
	o.Apply = func(e journal.Entry) error {
		var t Turn
		if err := json.Unmarshal(e.Payload, &t); err != nil {
			return err
		}
		h = append(h, t)
		return nil
	}
	log, err = journal.Open(ctx, uid, epoch, o)
	return slices.Clip(h), log, err
}

// Number is the place of a Turn, from 1; 0 if it is not there.
func (h History) Number(turnUID string) int64 {
	return int64(slices.IndexFunc(h, func(t Turn) bool { return t.UID == turnUID })) + 1
}

// Messages are all that was said, in order.
func (h History) Messages() []model.Message {
	var all []model.Message
	for _, t := range h {
		all = append(all, t.Messages...)
	}
	return all
}

// Totals adds it all up.
func (h History) Totals() Totals {
	out := Totals{Turns: int64(len(h))}
	costs := make([]*finalize.Cost, 0, len(h))
	for _, t := range h {
		out.Usage = out.Usage.Add(t.Usage)
		if len(t.Messages) > 0 {
			out.ContextTokens = t.ContextTokens
		}
		out.KnownCost = out.KnownCost.Add(t.known())
		if t.Usage != (model.Usage{}) {
			costs = append(costs, t.Cost)
		}
	}
	out.Cost = sum(costs)
	return out
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
