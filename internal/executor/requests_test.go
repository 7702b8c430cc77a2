package executor

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	"github.com/shopspring/decimal"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/runtime/ask"
	"github.com/capstan-dev/capstan/internal/runtime/budget"
	"github.com/capstan-dev/capstan/internal/runtime/journal"
	"github.com/capstan-dev/capstan/internal/runtime/journal/journaltest"
	"github.com/capstan-dev/capstan/internal/runtime/loop"
	"github.com/capstan-dev/capstan/internal/runtime/model"
	"github.com/capstan-dev/capstan/internal/runtime/task"
	"github.com/capstan-dev/capstan/internal/runtime/turnrecord"
	"github.com/capstan-dev/capstan/internal/store"
)

// scriptedModel is a model that gives its answers one after another, and repeats the last answer. An answer is a usage
// or an error; any other answer is a panic.
type scriptedModel struct {
	answers []any
	asked   int
	limits  []int
}

func (q *scriptedModel) Generate(_ context.Context, r *model.Request) (*model.Reply, error) {
	q.asked++
	q.limits = append(q.limits, r.MaxOutput())
	switch a := q.answers[min(q.asked, len(q.answers))-1].(type) {
	case model.Usage:
		return &model.Reply{Text: "well", Usage: a, FinishReason: model.FinishStop}, nil
	case error:
		return nil, a
	}
	panic("a bug in the adapter")
}

// refusingStore refuses calls of ChargeTask. The zero value refuses none.
type refusingStore struct {
	*journaltest.Store
	refuse func(c task.Charge) error
}

func (s *refusingStore) ChargeTask(ctx context.Context, h task.Held, c task.Charge) error {
	if s.refuse != nil {
		if err := s.refuse(c); err != nil {
			return err
		}
	}
	return s.Store.ChargeTask(ctx, h, c)
}

// evaluationHarness is an evaluation that has begun, with a store in memory.
type evaluationHarness struct {
	store *refusingStore
	work  *followUp
	rule  budget.Rule
}

// newEvaluationHarness begins the evaluation of a Turn to which a daily Budget with these limits applies.
func newEvaluationHarness(t *testing.T, limits budget.Limits) *evaluationHarness {
	t.Helper()
	j := &evaluationHarness{store: &refusingStore{Store: &journaltest.Store{}}}
	j.rule = budget.Rule{UID: "b", Name: "team", Unit: budget.Day, Zone: time.UTC, Limits: limits, Currency: "USD"}
	one := turnWith()
	k := task.Task{
		UID: string(one.UID), Kind: task.Evaluate, Namespace: one.Namespace, Turn: one.Name, Agent: "support",
		Created: now.Truncate(time.Microsecond),
	}
	err := j.store.Append(t.Context(), k.UID, journal.Entry{
		Seq: 1, Epoch: 1, Time: now, Kind: journal.Finalized, Payload: []byte(`{}`), Tasks: []task.Task{k},
		TurnRecord: &turnrecord.Record{UID: k.UID, Namespace: k.Namespace, Turn: k.Turn, Completed: k.Created},
	})
	if err != nil {
		t.Fatal(err)
	}
	claimed, err := j.store.ClaimTask(t.Context(), task.Search{Now: now, Until: now.Add(time.Hour)})
	if err != nil || claimed == nil {
		t.Fatalf("ClaimTask: %v, %v", claimed, err)
	}
	e := &Executor{Now: func() time.Time { return now }}
	e.Budgets = func(context.Context, *v1alpha1.Turn, map[string]string, func() (string, error)) ([]budget.Rule, error) {
		return []budget.Rule{j.rule}, nil
	}
	j.work = &followUp{
		Tasks: NewTasks(j.store, j.store.Store, 1, e.Now, logr.Discard()), executor: e, task: claimed, turn: *one, agent: &v1alpha1.Agent{},
	}
	return j
}

// ask asks one question whose replies are never usable. It returns the account, the end of the attempt, and the error.
func (j *evaluationHarness) ask(t *testing.T, chain ...loop.Candidate) (*requests, *done, error) {
	t.Helper()
	if end := j.work.begin(t.Context(), []modelQuestion{{chain, question}}, 0, 60, nil); end != nil {
		t.Fatalf("begin: %+v", end)
	}
	account := j.work.requests
	outcome, err := ask.Ask(t.Context(), chain, &ask.Question{
		Request: question, MaxOutputTokens: 2000, Account: account,
		Read: func(*model.Reply) error { return errors.New("no usable verdict") },
	})
	return account, account.close(t.Context(), err != nil, outcome.MayRetry), err
}

func question(bool) model.Request {
	return model.Request{Messages: []model.Message{{Role: model.RoleUser, Content: strings.Repeat("Is it good? ", 25)}}}
}

// account returns the account of the Budget. It fails the test if the expenses in the record differ from the account.
func (j *evaluationHarness) account(t *testing.T) budget.Account {
	t.Helper()
	all, err := j.store.Accounts(t.Context(), now)
	records, _, errRecords := j.store.Records(t.Context(), store.RecordQuery{})
	if err := errors.Join(err, errRecords); err != nil || len(records) != 1 || len(all) > 1 {
		t.Fatalf("%d accounts, %d records, %v", len(all), len(records), err)
	}
	var a budget.Account
	if len(all) == 1 {
		a = all[0]
	}
	var tokens int64
	var cost decimal.Decimal
	for _, e := range records[0].Expenses {
		tokens += e.Usage.InputTokens + e.Usage.OutputTokens
		if e.Cost != nil && e.Cost.Currency == "USD" {
			cost = cost.Add(decimal.RequireFromString(e.Cost.Amount))
		}
	}
	if tokens != a.Tokens || !cost.Equal(a.Cost) {
		t.Errorf("the record has %d tokens for %s, and the Budget %d for %s; want the same", tokens, cost, a.Tokens, a.Cost)
	}
	return a
}

// priced returns a model whose tokens cost a millionth of a dollar each, and whose replies have at most 3000 tokens.
func priced(name string, answers ...any) (loop.Candidate, *scriptedModel) {
	q := &scriptedModel{answers: answers}
	price := decimal.NewFromInt(1)
	return loop.Candidate{
		ProviderName: "main", Model: name, Provider: q, MaxOutputTokens: 3000,
		Retry:   loop.Retry{MaxAttempts: 3, InitialBackoff: time.Millisecond, MaxBackoff: time.Millisecond},
		Pricing: &model.Pricing{Currency: "USD", Input: price, Output: price, CacheRead: price},
	}, q
}

func unpriced(name string, answers ...any) (loop.Candidate, *scriptedModel) {
	c, q := priced(name, answers...)
	c.Pricing = nil
	return c, q
}

// TestRequestsOfTasksKeepToBudgets checks that each request is reserved before it is sent, so that no Budget is
// exceeded, and that the record has the same usage as the Budget.
func TestRequestsOfTasksKeepToBudgets(t *testing.T) {
	longest := model.Usage{InputTokens: 100, OutputTokens: 2000} // the prompt has about 100 tokens
	billed := &model.Error{Kind: model.Timeout, Message: "too slow", MayBeBilled: true}
	overloaded := &model.Error{Kind: model.Overloaded, Message: "overloaded", Usage: longest}
	auth := &model.Error{Kind: model.Auth, Message: "the key is refused"}
	tokens := func(n int64) budget.Limits { return budget.Limits{Tokens: &n} }
	cost := func(text string) budget.Limits { return budget.Limits{Cost: new(decimal.RequireFromString(text))} }
	for name, c := range map[string]struct {
		limits        budget.Limits
		first, second []any
		unpriced      bool // the second model has no price
		asked         [2]int
		tokens        int64
		end           task.Skip
		message       string
	}{
		"an unusable reply is requested once more": {tokens(5000), []any{longest}, nil, false, [2]int{2, 0}, 4200, "", "no usable verdict"},
		"an unusable reply at the end of the Budget": {
			tokens(4000), []any{longest}, nil, false, [2]int{1, 0}, 2100, "", `Budget "team" allows 4000 tokens`,
		},
		"nothing fits": {tokens(2000), []any{longest}, nil, false, [2]int{}, 0, task.BudgetExceeded, `Budget "team"`},
		"a limit of 0": {tokens(0), []any{longest}, nil, false, [2]int{}, 0, task.BudgetExceeded, `Budget "team"`},
		"failures that are billed are repeated": {
			tokens(5000), []any{overloaded}, nil, false, [2]int{2, 0}, 4200, "", `Budget "team"`,
		},
		"the next model of the chain counts": {
			tokens(4000), []any{overloaded}, []any{longest}, false, [2]int{1, 0}, 2100, "", `Budget "team"`,
		},
		"a model without a price": {cost("1"), []any{auth}, []any{longest}, true, [2]int{1, 0}, 0, "", "has no price"},
		"the cost":                {cost("0.004"), []any{longest}, nil, false, [2]int{1, 0}, 2100, "", "0.004 USD"},
		"a failure that may be billed": {
			tokens(5000), []any{billed}, nil, false, [2]int{1, 0}, 101, "", "too slow",
		},
	} {
		t.Run(name, func(t *testing.T) {
			j := newEvaluationHarness(t, c.limits)
			first, one := priced("first", c.first...)
			chain := []loop.Candidate{first}
			two := &scriptedModel{}
			if len(c.second) > 0 {
				var second loop.Candidate
				second, two = priced("second", c.second...)
				if c.unpriced {
					second, two = unpriced("second", c.second...)
				}
				chain = append(chain, second)
			}
			account, end, err := j.ask(t, chain...)
			if err == nil || !strings.Contains(err.Error(), c.message) {
				t.Errorf("the error is %v, want one that contains %q", err, c.message)
			}
			if got := [2]int{one.asked, two.asked}; got != c.asked {
				t.Errorf("the models were asked %v times, want %v", got, c.asked)
			}
			if c.end == "" && end != nil || c.end != "" && (end == nil || end.result == nil || end.result.Skipped != c.end) {
				t.Errorf("the attempt ends with %+v, want %q", end, c.end)
			}
			for _, limit := range append(one.limits, two.limits...) {
				if limit != 2000 {
					t.Errorf("a request has the output limit %d, want 2000", limit)
				}
			}
			a := j.account(t)
			if a.Tokens != c.tokens || account.used != c.tokens || a.ReservedTokens != 0 {
				t.Errorf("%d tokens are spent, %d reserved and %d used; want %d", a.Tokens, a.ReservedTokens, account.used, c.tokens)
			}
			if most := c.limits.Tokens; most != nil && a.Tokens > *most {
				t.Errorf("%d tokens are spent, the limit is %d", a.Tokens, *most)
			}
		})
	}
}

// TestFollowUpWaitsForABudgetThatOthersReserved checks that work is postponed, and not skipped, while requests of
// Turns have reserved the rest of a Budget.
func TestFollowUpWaitsForABudgetThatOthersReserved(t *testing.T) {
	j := newEvaluationHarness(t, budget.Limits{Tokens: new(int64(3000))})
	period, err := budget.PeriodAt(budget.Day, time.UTC, now)
	if err != nil {
		t.Fatal(err)
	}
	held := budget.Reservation{Hold: budget.Hold{Key: budget.KeyOf("b", period), Currency: "USD", Tokens: 1500}}
	err = j.store.Append(t.Context(), "another", journal.Entry{
		Seq: 1, Epoch: 1, Time: now, Kind: journal.ModelRequested, Payload: []byte(`{}`),
		Ledger: &budget.Change{Reserve: []budget.Reservation{held}},
	})
	if err != nil {
		t.Fatal(err)
	}
	c, q := priced("first", model.Usage{InputTokens: 1})
	_, end, _ := j.ask(t, c)
	if end == nil || end.result != nil || end.again != afterRefusal || q.asked != 0 {
		t.Errorf("the attempt ends with %+v after %d requests, want that it is tried again", end, q.asked)
	}
}

// closedGate is a model whose endpoint has announced a long pause, so that its gate sends no request.
type closedGate struct{ *scriptedModel }

func (closedGate) Enter(context.Context, model.Wait) (model.Ticket, error) {
	return nil, &model.Error{Kind: model.RateLimited, Message: "the endpoint is paused", Unsent: true}
}

// TestFollowUpWaitsForAnEndpointBeforeABudget checks that work is postponed, and not skipped, if Budgets refuse only
// one of the models, and the other one may accept the question later. Once the work is an hour old, it is skipped.
func TestFollowUpWaitsForAnEndpointBeforeABudget(t *testing.T) {
	for name, tc := range map[string]struct {
		age  time.Duration
		want task.Skip
	}{
		"new": {0, ""},
		"old": {retryAge, task.BudgetExceeded},
	} {
		t.Run(name, func(t *testing.T) {
			j := newEvaluationHarness(t, budget.Limits{Cost: new(decimal.RequireFromString("1"))})
			j.work.executor.Now = func() time.Time { return now.Add(tc.age) }
			first, one := priced("first")
			first.Provider = closedGate{one}
			first.Retry.MaxAttempts = 1
			second, two := unpriced("second")
			_, end, _ := j.ask(t, first, second)
			if one.asked+two.asked > 0 {
				t.Errorf("%d requests were sent, want none", one.asked+two.asked)
			}
			if end == nil || (end.result == nil) != (tc.want == "") || tc.want == "" && end.again != afterRefusal ||
				tc.want != "" && end.result.Skipped != tc.want {
				t.Errorf("the attempt ends with %+v, want %q", end, tc.want)
			}
		})
	}
}

// TestQuestionOutOfTimeDoesNotEndTheAttempt checks that only a question for which no time is left fails, and that the
// answers to earlier questions are kept. Otherwise the earlier questions would be asked, and paid for, again.
func TestQuestionOutOfTimeDoesNotEndTheAttempt(t *testing.T) {
	j := newEvaluationHarness(t, budget.Limits{})
	c, q := priced("first", model.Usage{InputTokens: 7, OutputTokens: 1})
	chain := []loop.Candidate{c}
	if end := j.work.begin(t.Context(), []modelQuestion{{chain, question}}, 0, 60, nil); end != nil {
		t.Fatalf("begin: %+v", end)
	}
	account := j.work.requests
	ctx, cancel := context.WithCancel(t.Context())
	askOnce := func() error {
		_, err := ask.Ask(ctx, chain, &ask.Question{
			Request: question, Account: account, Read: func(*model.Reply) error { return nil },
		})
		return err
	}
	if err := askOnce(); err != nil {
		t.Fatal(err)
	}
	cancel()
	if err := askOnce(); err == nil || account.err != nil || q.asked != 1 {
		t.Errorf("after %d requests, the error of the question is %v, and the error of the account is %v; want 1 request, "+
			"an error of the question, and none of the account",
			q.asked, err, account.err)
	}
	if end := account.close(t.Context(), true, false); end != nil || account.used != 8 {
		t.Errorf("the attempt ends with %+v after %d tokens, want that its answers are kept", end, account.used)
	}
}

// TestNoRequestIsSentWithoutAReservation checks that nothing is sent without a reservation, and that an answer that
// cannot be charged for a moment is charged later.
func TestNoRequestIsSentWithoutAReservation(t *testing.T) {
	away := errors.New("the store is away")
	usage := model.Usage{InputTokens: 7, OutputTokens: 5}
	failing := func(times int, err error, ended bool) func(c task.Charge) error {
		return func(c task.Charge) error {
			if times > 0 && (c.Ended != nil) == ended {
				times--
				return err
			}
			return nil
		}
	}
	for name, c := range map[string]struct {
		refuse func(c task.Charge) error
		asked  int
		tokens int64
		end    error
	}{
		"before the request":                   {failing(1, away, false), 0, 0, away},
		"after the request, for a moment":      {failing(2, away, true), 2, 24, nil},
		"the claim is lost before the request": {failing(1, task.ErrLost, false), 0, 0, task.ErrLost},
		"the claim is lost after the request":  {failing(9, task.ErrLost, true), 1, 0, task.ErrLost},
	} {
		t.Run(name, func(t *testing.T) {
			j := newEvaluationHarness(t, budget.Limits{})
			j.store.refuse = c.refuse
			first, q := priced("first", usage)
			_, end, err := j.ask(t, first)
			if q.asked != c.asked || err == nil {
				t.Errorf("the model was asked %d times, and the error is %v; want %d requests and an error", q.asked, err, c.asked)
			}
			if c.end == nil && end != nil || c.end != nil && (end == nil || !errors.Is(end.err, c.end)) {
				t.Errorf("the attempt ends with %+v, want the error %v", end, c.end)
			}
			if a := j.account(t); a.Tokens != c.tokens {
				t.Errorf("%d tokens are spent, want %d", a.Tokens, c.tokens)
			}
		})
	}
}

// TestSilentStoreLosesNoAnswer checks that an answer is charged although the first attempt of the store, which got no
// reply, took as long as such an attempt may take.
func TestSilentStoreLosesNoAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		j := newEvaluationHarness(t, budget.Limits{})
		silent := true
		j.store.refuse = func(c task.Charge) error {
			if c.Ended == nil || !silent {
				return nil
			}
			silent = false
			time.Sleep(10 * time.Second) // within the bubble, this is the fake clock
			return errors.New("PostgreSQL did not reply within 10s")
		}
		first, q := priced("first", model.Usage{InputTokens: 7, OutputTokens: 5})
		_, end, err := j.ask(t, first)
		if a := j.account(t); silent || q.asked != 2 || a.Tokens != 24 || end != nil {
			t.Errorf("%d requests, %d tokens, end %+v, error %v; want two requests, whose 24 tokens are charged",
				q.asked, a.Tokens, end, err)
		}
	})
}

// TestForPaidWork checks how long writes about paid work may take, and that a process that stops does not wait longer.
func TestForPaidWork(t *testing.T) {
	for name, c := range map[string]struct{ stopped, want time.Duration }{
		"the process continues":       {time.Hour, taskWriteTimeout},
		"the process is stopping":     {0, lastWriteTimeout},
		"the process stops meanwhile": {5 * time.Second, 5*time.Second + lastWriteTimeout},
		"the process stops late":      {20 * time.Second, taskWriteTimeout},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithTimeout(t.Context(), c.stopped)
				defer cancel()
				begun := time.Now()
				write, stop := forPaidWork(ctx)
				defer stop()
				<-write.Done()
				if got := time.Since(begun); got != c.want {
					t.Errorf("writes may take %s, want %s", got, c.want)
				}
			})
		})
	}
}
