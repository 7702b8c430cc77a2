//go:build unix

package turn_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/shopspring/decimal"

	"github.com/capstan-dev/capstan/internal/runtime/budget"
	"github.com/capstan-dev/capstan/internal/runtime/journal"
	"github.com/capstan-dev/capstan/internal/runtime/journal/journaltest"
	"github.com/capstan-dev/capstan/internal/runtime/loop"
	"github.com/capstan-dev/capstan/internal/runtime/model"
	"github.com/capstan-dev/capstan/internal/runtime/turn"
)

// limitedTo returns the input of a Turn whose Budget has a limit on tokens, and lets Turns wait.
func limitedTo(uid string, epoch, tokens int64, provider model.Provider) *turn.Input {
	c, _ := candidate("p0", 1)
	c.Provider, c.MaxOutputTokens = provider, 2000
	in := input(c)
	in.UID, in.Epoch, in.Namespace, in.About.Agent = uid, epoch, "helpdesk", "support"
	in.Budgets = func() ([]budget.Rule, error) {
		return []budget.Rule{{
			UID: "day", Name: "day", Unit: budget.Day, Zone: time.UTC, Currency: "USD", Limits: budget.Limits{Tokens: &tokens}, Queue: true,
		}}, nil
	}
	return &in
}

// killInRequest runs a Turn in a process that is killed during its first request.
func killInRequest(t *testing.T, j journal.Journal, uid string, tokens int64) {
	t.Helper()
	life, kill := context.WithCancelCause(t.Context())
	defer kill(nil)
	process := &mortal{Journal: j, kill: kill, left: -1}
	die := modelFunc(func(context.Context, *model.Request) (*model.Reply, error) {
		process.dead = true
		kill(errKilled)
		return nil, &model.Error{Kind: model.Cancelled, Message: "killed"}
	})
	if _, err := engine(process).Run(life, limitedTo(uid, 1, tokens, die)); !errors.Is(err, errKilled) {
		t.Fatalf("Run of a process that is killed: %v", err)
	}
}

// accountOf returns the account of the Budget.
func accountOf(t *testing.T, j *journaltest.Store) budget.Account {
	t.Helper()
	all, err := j.Accounts(t.Context(), at)
	if err != nil || len(all) != 1 {
		t.Fatalf("Accounts: %+v, %v; want one", all, err)
	}
	return all[0]
}

// tokensOf returns the tokens that Turns have used.
func tokensOf(results ...*turn.Result) (sum int64) {
	for _, r := range results {
		for _, s := range r.Spent {
			sum += s.Usage.InputTokens + s.Usage.OutputTokens
		}
	}
	return sum
}

// TestRefusalAfterAKill checks that a Turn whose request was cut off does not hold its reservation while it waits for
// the reset of a Budget, and that such a wait does not make the journal longer each time.
func TestRefusalAfterAKill(t *testing.T) {
	const limit = 5000
	j := &journaltest.Store{}
	killInRequest(t, j, "uid", limit)
	before := accountOf(t, j)
	// Another Turn uses 4500 tokens, so the rest of the limit is too small for the next request.
	for i, c := range []budget.Change{
		{Reserve: []budget.Reservation{{Hold: budget.Hold{Key: before.Key, Currency: "USD"}}}}, {Outcome: &budget.Amount{Tokens: 4500}},
	} {
		if err := j.Append(t.Context(), "other", journal.Entry{Seq: int64(i) + 1, Epoch: 1, Version: 1, Ledger: &c}); err != nil {
			t.Fatal(err)
		}
	}
	said := &script{answers: []answer{says("Done.")}}
	var length int
	for epoch := int64(2); epoch <= 3; epoch++ {
		_, err := engine(j).Run(t.Context(), limitedTo("uid", epoch, limit, said))
		if waits, parked := asParked(err); !parked || waits.Budget == nil || waits.Budget.Contended {
			t.Fatalf("Run of epoch %d: %v; want a wait for the reset", epoch, err)
		}
		estimate := payloads[loop.Request](t, j, journal.ModelRequested)[0].EstimatedTokens
		if a := accountOf(t, j); a.ReservedTokens != 0 || a.Tokens != 4500+estimate {
			t.Errorf("after epoch %d: %+v; want the estimate of %d tokens and nothing reserved", epoch, a, estimate)
		}
		if n := len(kinds(t, j)); length > 0 && n != length {
			t.Errorf("the journal has %d entries after epoch %d, and had %d before; want no entry for a repeated refusal", n, epoch, length)
		}
		length = len(kinds(t, j))
	}
	result, err := engine(j).Run(t.Context(), limitedTo("uid", 4, 2*limit, said))
	if err != nil || result.Stop != turn.StopCompleted {
		t.Fatalf("Run with a higher limit: %+v, %v", result, err)
	}
	if a := accountOf(t, j); a.Tokens != 4500+tokensOf(result) || a.ReservedTokens != 0 || a.Turns != 1 {
		t.Errorf("account: %+v, want the usage of %d tokens, and one Turn", a, tokensOf(result))
	}
}

// TestCutOffRequestsDoNotBlockEachOther kills the processes of all Turns of a Budget during their first requests. The
// reservations of these requests use up the limit of the Budget, so a Turn must release its own reservation first.
func TestCutOffRequestsDoNotBlockEachOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const turns = 3
		j := &journaltest.Store{}
		killInRequest(t, j, "turn-0", 1<<40)
		limit := turns * accountOf(t, j).ReservedTokens
		for i := 1; i < turns; i++ {
			killInRequest(t, j, fmt.Sprintf("turn-%d", i), limit)
		}
		if a := accountOf(t, j); a.ReservedTokens != limit {
			t.Fatalf("account: %+v, want that all %d tokens are reserved", a, limit)
		}
		results := make([]*turn.Result, turns)
		var wg sync.WaitGroup
		for i := range turns {
			wg.Go(func() {
				said := &script{answers: []answer{says("Done.")}}
				var err error
				if results[i], err = engine(j).Run(t.Context(), limitedTo(fmt.Sprintf("turn-%d", i), 2, limit, said)); err != nil {
					t.Errorf("turn %d: %v", i, err)
				}
			})
		}
		wg.Wait()
		if t.Failed() {
			return
		}
		if a := accountOf(t, j); a.Tokens != tokensOf(results...) || a.ReservedTokens != 0 || a.Turns != turns {
			t.Errorf("account: %+v, want the usage of %d tokens of %d Turns", a, tokensOf(results...), turns)
		}
	})
}

// requestParts keeps the failures of the requests that it observes, by their keys. A request that another run may have
// observed does not count.
type requestParts map[string]string

func (p requestParts) Observe(s *turn.Span) {
	if s.Kind == turn.SpanRequest && !s.Again {
		p[s.Key] = s.Failure
	}
}

func (requestParts) Within(ctx context.Context, _ string) context.Context { return ctx }

// TestKilledRequestBeforeAnUnsentOne checks that a request that was cut off does not get the failure of a request that
// a budget did not allow.
func TestKilledRequestBeforeAnUnsentOne(t *testing.T) {
	j := &journaltest.Store{}
	killInRequest(t, j, "uid", 1<<40)
	in := limitedTo("uid", 2, 1<<40, &script{answers: []answer{says("Never.")}})
	second, _ := candidate("p1", 1, says("Done."))
	in.Chain = append(in.Chain, second)
	in.Chain[0].Pricing = nil // a limit on the cost allows no model without a price
	rules := in.Budgets
	in.Budgets = func() ([]budget.Rule, error) {
		all, err := rules()
		all[0].Limits.Cost = new(decimal.NewFromInt(1000))
		return all, err
	}
	parts := requestParts{}
	in.Observer = parts
	result, err := engine(j).Run(t.Context(), in)
	if err != nil || result.Stop != turn.StopCompleted {
		t.Fatalf("Run: %+v, %v", result, err)
	}
	requests := payloads[loop.Request](t, j, journal.ModelRequested)
	killed, answered := turn.RequestKey(requests[0].ID), turn.RequestKey(requests[1].ID)
	if len(parts) != 3 || parts[killed] != turn.FailureInterrupted || parts[answered] != "" {
		t.Errorf("requests %v, want %s as interrupted, %s, and one that was over budget", parts, killed, answered)
	}
	for key, failure := range parts {
		if key != killed && key != answered && failure != string(model.OverBudget) {
			t.Errorf("request %s has the failure %q, want OverBudget", key, failure)
		}
	}
}

// TestCutOffRequestOfADeletedTurnIsObserved checks that the end of a Turn whose object is gone reports the request that
// was cut off, once.
func TestCutOffRequestOfADeletedTurnIsObserved(t *testing.T) {
	j := &journaltest.Store{}
	killInRequest(t, j, "uid", 1<<40)
	e, parts := engine(j), requestParts{}
	e.ObserveGone = func(namespace, agent string) turn.Observer {
		if namespace != "helpdesk" || agent != "support" {
			t.Errorf("the observer is for Agent %q of namespace %q, want that of the Turn", agent, namespace)
		}
		return parts
	}
	if _, err := e.EndDeletedTurn(t.Context(), "uid", noChildren); err != nil {
		t.Fatal(err)
	}
	requests := payloads[loop.Request](t, j, journal.ModelRequested)
	if key := turn.RequestKey(requests[0].ID); len(parts) != 1 || parts[key] != turn.FailureInterrupted {
		t.Errorf("requests %v, want %s as interrupted", parts, key)
	}
	clear(parts)
	if _, err := e.EndDeletedTurn(t.Context(), "uid", noChildren); err != nil || len(parts) > 0 {
		t.Errorf("requests %v after the end, %v; want none", parts, err)
	}
}
