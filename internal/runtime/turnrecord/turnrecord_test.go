package turnrecord

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/capstan-dev/capstan/internal/runtime/model"
)

func TestDetailsAreBounded(t *testing.T) {
	small := Details{
		Key: "support.chat.turn", Strategy: "DirectAnswer", Tools: []string{"a"}, Labels: map[string]string{"team": "red"},
		Prompt: &Prompt{Profile: "p", ID: "p", Version: "1", Tags: []string{"x"}},
		Models: []Model{{Provider: "p", Model: "m", Usage: model.Usage{InputTokens: 1}, Cost: &Cost{"0", "EUR"}}},
	}
	with := func(change func(*Details)) Details {
		d := small
		change(&d)
		return d
	}
	long := strings.Repeat("<", 1000) // six bytes each in JSON
	for name, tc := range map[string]struct {
		reason   string
		in, want Details
	}{
		"small": {"a small record is complete", small, small},
		"labels": {
			"labels are dropped first", with(func(d *Details) { d.Labels = map[string]string{"a": long, "b": long} }),
			with(func(d *Details) { d.Labels, d.Incomplete = nil, true }),
		},
		"too many labels": {
			"all labels are dropped if there are too many, because a random choice would mislead",
			with(func(d *Details) {
				d.Labels = map[string]string{}
				for i := range MaxLabels + 1 {
					d.Labels[fmt.Sprint(i)] = ""
				}
			}),
			with(func(d *Details) { d.Labels, d.Incomplete = nil, true }),
		},
		"tools": {
			"tools are dropped before models",
			with(func(d *Details) { d.Tools = []string{long, long} }),
			with(func(d *Details) {
				d.Tools, d.Labels, d.Prompt, d.Incomplete = nil, nil, &Prompt{Profile: "p", ID: "p", Version: "1"}, true
			}),
		},
		"one giant text": {
			"a record is written even if it has a giant text",
			Details{Key: long + long, Strategy: "DirectAnswer", TurnNumber: 3},
			Details{Strategy: "DirectAnswer", TurnNumber: 3, Incomplete: true},
		},
	} {
		t.Run(name, func(t *testing.T) {
			data, err := (&Record{UID: "u", Details: tc.in}).MarshalDetails()
			if err != nil || len(data) > MaxDetails {
				t.Fatalf("MarshalDetails: %d bytes, %v: %s", len(data), err, tc.reason)
			}
			var got Details
			if err := json.Unmarshal(data, &got); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("%s: -want +got:\n%s", tc.reason, diff)
			}
		})
	}
}

func TestOnePersonHasOneFeedback(t *testing.T) {
	all, err := WithFeedback([]Feedback{{User: "a", Score: "0"}, {User: "b", Score: "1"}}, Feedback{User: "a", Score: "0.5"})
	if diff := cmp.Diff([]Feedback{{User: "b", Score: "1"}, {User: "a", Score: "0.5"}}, all); diff != "" || err != nil {
		t.Errorf("%v; -want +got:\n%s", err, diff)
	}
	all = nil
	for i := range MaxFeedback {
		if all, err = WithFeedback(all, Feedback{User: fmt.Sprint(i)}); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := WithFeedback(all, Feedback{User: "one more"}); err == nil {
		t.Error("WithFeedback of one more person returned no error, want ErrFull")
	}
	if _, err := WithFeedback(all, Feedback{User: "3", Score: "1"}); err != nil {
		t.Errorf("WithFeedback that replaces feedback in a full record: %v", err)
	}
}

// TestExpensesAddUp checks which expenses are added to each other, and that a record limits their number.
func TestExpensesAddUp(t *testing.T) {
	of := func(name string, requests, tokens int64, cost *Cost) Expense {
		return Expense{
			For: "memory", Provider: "p", Model: name, Requests: requests, Usage: model.Usage{InputTokens: tokens}, Cost: cost,
		}
	}
	eur := func(amount string) *Cost { return &Cost{Amount: amount, Currency: "EUR"} }
	usd := &Cost{Amount: "2", Currency: "USD"}
	add := func(all []Expense, more ...Expense) []Expense {
		t.Helper()
		for _, e := range more {
			var err error
			if all, err = WithExpense(all, e); err != nil {
				t.Fatal(err)
			}
		}
		return all
	}
	judged := of("a", 1, 9, eur("1"))
	judged.For = "evaluation"
	first := []Expense{of("a", 1, 10, eur("0.1"))}
	got := add(first,
		of("a", 1, 5, eur("0.25")), of("a", 1, 7, nil), of("a", 1, 3, usd), of("b", 1, 1, eur("0")), judged, of("a", 1, 2, nil))
	want := []Expense{
		of("a", 2, 15, eur("0.35")), of("a", 2, 9, nil), of("a", 1, 3, usd), of("b", 1, 1, eur("0")), judged,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	if first[0].Requests != 1 {
		t.Error("the given expenses were changed")
	}

	var many []Expense
	for i := range 2 * MaxExpenses {
		e := of(fmt.Sprint("m", i), 1, 1, eur("1"))
		if i%2 == 1 {
			e.For = "evaluation"
		}
		many = add(many, e)
	}
	var tokens int64
	for _, e := range many {
		tokens += e.Usage.InputTokens
	}
	if len(many) > MaxExpenses || tokens != 2*MaxExpenses {
		t.Errorf("%d expenses with %d tokens, want at most %d with %d", len(many), tokens, MaxExpenses, 2*MaxExpenses)
	}
	if rest := many[len(many)-1]; rest.Model != "" || rest.Cost != nil {
		t.Errorf("the rest is %+v, want no model, and a cost that is not known", rest)
	}
	if _, err := WithExpense(first, of("a", 1, 1, eur("much"))); err == nil {
		t.Error("WithExpense with an invalid cost returned no error")
	}
}

// TestNumberKeepsOtherFields checks that an executor of an older version keeps the fields that it does not know.
func TestNumberKeepsOtherFields(t *testing.T) {
	long := strings.Repeat("x", MaxDetails-60)
	for name, tc := range map[string]struct {
		reason, details string
		number          int64
		want            string
	}{
		"unknown field": {
			"a newer version has written it", `{"key":"a","later":{"n":1.50,"m":[null]},"prompt":{"later":1},"turnNumber":2}`, 3,
			`{"key":"a","later":{"n":1.50,"m":[null]},"prompt":{"later":1},"turnNumber":3}`,
		},
		"too large": {
			"the limit applies to each record", `{"later":"` + long + long + `","strategy":"DirectAnswer"}`, 3,
			`{"strategy":"DirectAnswer","turnNumber":3}`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := WithTurnNumber([]byte(tc.details), tc.number)
			if err != nil || string(got) != tc.want {
				t.Errorf("WithTurnNumber: %s, %v; want %s: %s", got, err, tc.want, tc.reason)
			}
		})
	}
}
