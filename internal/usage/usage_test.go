package usage

import (
	"errors"
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/capstan-dev/capstan/internal/runtime/model"
	"github.com/capstan-dev/capstan/internal/runtime/turnrecord"
)

func record(agent string, models ...turnrecord.Model) turnrecord.Record {
	return turnrecord.Record{Namespace: "helpdesk", Agent: agent, Details: turnrecord.Details{Models: models}}
}

func asked(name string, tokens int64, cost *turnrecord.Cost) turnrecord.Model {
	return turnrecord.Model{Provider: "p", Model: name, Usage: model.Usage{InputTokens: tokens}, Cost: cost}
}

// judged returns an evaluation by a model. If name is empty, no model was asked.
func judged(name string, tokens int64, cost *turnrecord.Cost) turnrecord.Evaluation {
	e := turnrecord.Evaluation{Model: name, Usage: model.Usage{InputTokens: tokens}, Cost: cost}
	if name != "" {
		e.Provider = "p"
	}
	return e
}

func evaluated(r turnrecord.Record, all ...turnrecord.Evaluation) turnrecord.Record {
	r.Evaluations = all
	return r
}

func spending(r turnrecord.Record, all ...turnrecord.Expense) turnrecord.Record {
	r.Expenses = all
	return r
}

// TestSumOfExpenses checks that all expenses of a record count, and that its evaluations do not count in addition if
// the expenses already include an evaluation.
func TestSumOfExpenses(t *testing.T) {
	of := func(kind string, tokens int64, cost *turnrecord.Cost) turnrecord.Expense {
		return turnrecord.Expense{For: kind, Provider: "p", Model: "j", Usage: model.Usage{InputTokens: tokens}, Cost: cost}
	}
	sum := NewSum([]Dimension{For})
	for _, r := range []turnrecord.Record{
		spending(evaluated(record("a", asked("m", 100, eur("1"))), judged("j", 7, eur("0.5"))),
			of(ForEvaluation, 20, eur("0.75")), of(ForMemory, 5, nil)),
		spending(evaluated(record("a", asked("m", 100, eur("1"))), judged("j", 7, eur("0.5"))), of(ForMemory, 5, eur("0.25"))),
	} {
		if err := sum.Add(&r); err != nil {
			t.Fatal(err)
		}
	}
	tokens := func(n int64) model.Usage { return model.Usage{InputTokens: n} }
	want := []Group{
		{Values: []string{"turn"}, Turns: 2, Usage: tokens(200), Costs: []turnrecord.Cost{*eur("2")}},
		{Values: []string{"evaluation"}, Turns: 2, Usage: tokens(27), Costs: []turnrecord.Cost{*eur("1.25")}},
		{Values: []string{"memory"}, Turns: 2, Usage: tokens(10), Costs: []turnrecord.Cost{*eur("0.25")}, TurnsOfUnknownCost: 1},
	}
	if diff := cmp.Diff(want, sum.Groups(), cmpopts.IgnoreUnexported(Group{})); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

// TestSumOfAModelWithoutAPrice checks that the known cost of a model counts although other requests have no price.
func TestSumOfAModelWithoutAPrice(t *testing.T) {
	sum := NewSum([]Dimension{Model})
	r := record("a", asked("m", 10, eur("0.1")), asked("m", 5, nil))
	if err := sum.Add(&r); err != nil {
		t.Fatal(err)
	}
	want := []Group{{
		Values: []string{"p/m"}, Turns: 1, Usage: model.Usage{InputTokens: 15}, Costs: []turnrecord.Cost{*eur("0.1")},
		TurnsOfUnknownCost: 1,
	}}
	if diff := cmp.Diff(want, sum.Groups(), cmpopts.IgnoreUnexported(Group{})); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

func eur(amount string) *turnrecord.Cost { return &turnrecord.Cost{Amount: amount, Currency: "EUR"} }

func TestSum(t *testing.T) {
	usd := &turnrecord.Cost{Amount: "1", Currency: "USD"}
	all := []turnrecord.Record{
		record("a", asked("m", 10, eur("0.1")), asked("n", 5, nil)),
		record("a", asked("m", 10, eur("0.2"))),
		record("b", asked("m", 1, usd)),
		record("b"),
		record("c", asked("free", 1, eur("0")), asked("idle", 0, nil)),
		evaluated(record("d", asked("m", 100, eur("1"))), judged("m", 7, eur("0.5")), judged("j", 2, nil), judged("", 0, nil)),
	}
	tokens := func(n int64) model.Usage { return model.Usage{InputTokens: n} }
	for name, tc := range map[string]struct {
		by   string
		want []Group
	}{
		"agent": {"agent", []Group{
			{Values: []string{"d"}, Turns: 1, Usage: tokens(109), Costs: []turnrecord.Cost{*eur("1.5")}, TurnsOfUnknownCost: 1},
			{Values: []string{"a"}, Turns: 2, Usage: tokens(25), Costs: []turnrecord.Cost{*eur("0.3")}, TurnsOfUnknownCost: 1},
			{Values: []string{"b"}, Turns: 2, Usage: tokens(1), Costs: []turnrecord.Cost{*usd}},
			{Values: []string{"c"}, Turns: 1, Usage: tokens(1), Costs: []turnrecord.Cost{*eur("0")}},
		}},
		"namespace": {"namespace", []Group{{
			Values: []string{"helpdesk"}, Turns: 6, Usage: tokens(136), Costs: []turnrecord.Cost{*eur("1.8"), *usd}, TurnsOfUnknownCost: 2,
		}}},
		"model": {"model", []Group{
			{Values: []string{"p/m"}, Turns: 4, Usage: tokens(128), Costs: []turnrecord.Cost{*eur("1.8"), *usd}},
			{Values: []string{"p/n"}, Turns: 1, Usage: tokens(5), TurnsOfUnknownCost: 1},
			{Values: []string{"p/j"}, Turns: 1, Usage: tokens(2), TurnsOfUnknownCost: 1},
			{Values: []string{"p/free"}, Turns: 1, Usage: tokens(1), Costs: []turnrecord.Cost{*eur("0")}},
			{Values: []string{""}, Turns: 2},
			{Values: []string{"p/idle"}, Turns: 1},
		}},
		"for": {"for", []Group{
			{Values: []string{"turn"}, Turns: 6, Usage: tokens(127), Costs: []turnrecord.Cost{*eur("1.3"), *usd}, TurnsOfUnknownCost: 1},
			{Values: []string{"evaluation"}, Turns: 1, Usage: tokens(9), Costs: []turnrecord.Cost{*eur("0.5")}, TurnsOfUnknownCost: 1},
		}},
	} {
		t.Run(name, func(t *testing.T) {
			by, err := ParseDimensions(tc.by)
			if err != nil {
				t.Fatal(err)
			}
			sum := NewSum(by)
			for i := range all {
				if err := sum.Add(&all[i]); err != nil {
					t.Fatal(err)
				}
			}
			if diff := cmp.Diff(tc.want, sum.Groups(), cmpopts.IgnoreUnexported(Group{})); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}
}

func TestSumIsBounded(t *testing.T) {
	sum := NewSum([]Dimension{Agent})
	for i := range MaxGroups {
		r := record(fmt.Sprint(i))
		if err := sum.Add(&r); err != nil {
			t.Fatal(err)
		}
	}
	known, more := record("7"), record("one more")
	if err := sum.Add(&known); err != nil {
		t.Errorf("Add to a known group: %v", err)
	}
	if err := sum.Add(&more); !errors.Is(err, ErrTooManyGroups) {
		t.Errorf("Add: %v, want ErrTooManyGroups", err)
	}
}

func TestParseDimensions(t *testing.T) {
	got, err := ParseDimensions("model, agent,model")
	if diff := cmp.Diff([]Dimension{Model, Agent}, got); diff != "" || err != nil {
		t.Errorf("%v; -want +got:\n%s", err, diff)
	}
	for _, text := range []string{"", "team", "agent,"} {
		if _, err := ParseDimensions(text); err == nil {
			t.Errorf("ParseDimensions(%q) returns no error", text)
		}
	}
}
