// Package usage adds up the usage of Turns from their records.
package usage

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/shopspring/decimal"

	"github.com/capstan-dev/capstan/internal/runtime/model"
	"github.com/capstan-dev/capstan/internal/runtime/task"
	"github.com/capstan-dev/capstan/internal/runtime/turnrecord"
)

// Dimension is a field by which usage is grouped.
type Dimension string

// The dimensions.
const (
	Namespace Dimension = "namespace"
	Agent     Dimension = "agent"
	Requester Dimension = "requester"
	Session   Dimension = "session"
	// Model groups by PROVIDER/MODEL. A Turn that has asked several models is in several groups.
	Model Dimension = "model"
	// For groups by the purpose of the requests: see ForTurn, ForEvaluation and ForMemory.
	For Dimension = "for"
)

// The values of the dimension For.
const (
	// ForTurn is the usage of the Turn itself.
	ForTurn = "turn"
	// ForEvaluation is the usage of the judges that evaluated the Turn's answer.
	ForEvaluation = string(task.Evaluate)
	// ForMemory is the usage of the requests with which memories were learned from the Turn.
	ForMemory = string(task.Learn)
)

// Dimensions are all dimensions, in the order of their columns.
var Dimensions = []Dimension{Namespace, Agent, Requester, Session, Model, For}

// MaxGroups is the maximum number of groups.
const MaxGroups = 10_000

// ErrTooManyGroups is returned if there are more than MaxGroups groups.
var ErrTooManyGroups = errors.New("the usage has more than 10000 groups: group by fewer fields, or select fewer turns")

// ParseDimensions parses dimensions that are separated by commas. The result contains each dimension once, in the given
// order.
func ParseDimensions(text string) ([]Dimension, error) {
	var out []Dimension
	for part := range strings.SplitSeq(text, ",") {
		d := Dimension(strings.TrimSpace(part))
		if !slices.Contains(Dimensions, d) {
			return nil, fmt.Errorf("%q must be one of namespace, agent, requester, session, model and for, separated by commas", part)
		}
		if !slices.Contains(out, d) {
			out = append(out, d)
		}
	}
	return out, nil
}

// Group is the usage of the Turns with the same values of the dimensions, including the usage of their evaluation and
// of learning from them.
type Group struct {
	// Values are the values of the dimensions, in their order. A value is empty if it is not known.
	Values []string `json:"values"`
	// Turns is the number of Turns.
	Turns int64       `json:"turns"`
	Usage model.Usage `json:"usage"`
	// Costs are the known costs, one for each currency, sorted by currency.
	Costs []turnrecord.Cost `json:"costs,omitempty"`
	// TurnsOfUnknownCost is the number of Turns whose cost is not known, or only in part. Costs does not include the
	// unknown part.
	TurnsOfUnknownCost int64 `json:"turnsOfUnknownCost,omitempty"`

	costs map[string]decimal.Decimal
}

// Sum adds up records. It is not safe for concurrent use.
type Sum struct {
	by     []Dimension
	groups map[string]*Group
}

// NewSum returns an empty sum. Without dimensions, it has one group.
func NewSum(by []Dimension) *Sum { return &Sum{by: by, groups: map[string]*Group{}} }

// part is the usage of one model by a Turn, by its evaluation, or by learning from it.
type part struct {
	purpose, model string
	usage          model.Usage
	cost           *turnrecord.Cost
}

// partsOf returns the parts of the usage in a record. A Turn that has asked no model has one empty part.
func partsOf(r *turnrecord.Record) []part {
	var all []part
	for _, m := range r.Models {
		all = append(all, part{ForTurn, nameOf(m.Provider, m.Model), m.Usage, m.Cost})
	}
	if len(all) == 0 {
		all = append(all, part{purpose: ForTurn})
	}
	evaluated := false
	for i := range r.Expenses {
		e := &r.Expenses[i]
		evaluated = evaluated || e.For == ForEvaluation
		all = append(all, part{e.For, nameOf(e.Provider, e.Model), e.Usage, e.Cost})
	}
	if evaluated {
		return all
	}
	for i := range r.Evaluations { // an older version has evaluated the answer, and did not record expenses
		e := &r.Evaluations[i]
		all = append(all, part{ForEvaluation, nameOf(e.Provider, e.Model), e.Usage, e.Cost})
	}
	return all
}

func nameOf(provider, name string) string { return strings.Trim(provider+"/"+name, "/") }

// Add adds a record. It returns ErrTooManyGroups if there would be too many groups, and another error if a cost is not
// a number.
func (s *Sum) Add(r *turnrecord.Record) error {
	unknown := map[*Group]bool{} // whether a part of the cost of this Turn is not known, for each of its groups
	for _, p := range partsOf(r) {
		g, err := s.group(r, &p)
		if err != nil {
			return err
		}
		if _, counted := unknown[g]; !counted {
			g.Turns++
			unknown[g] = false
		}
		g.Usage = g.Usage.Add(p.usage)
		if p.cost == nil {
			unknown[g] = unknown[g] || p.usage != (model.Usage{})
			continue
		}
		amount, err := decimal.NewFromString(p.cost.Amount)
		if err != nil {
			return fmt.Errorf("failed to read the cost %q of a record: %w", p.cost.Amount, err)
		}
		g.costs[p.cost.Currency] = g.costs[p.cost.Currency].Add(amount)
	}
	for g, isUnknown := range unknown {
		if isUnknown {
			g.TurnsOfUnknownCost++
		}
	}
	return nil
}

// group returns the group of a part of a record.
func (s *Sum) group(r *turnrecord.Record, p *part) (*Group, error) {
	values := make([]string, len(s.by))
	for i, d := range s.by {
		values[i] = map[Dimension]string{
			Namespace: r.Namespace, Agent: r.Agent, Requester: r.Requester, Session: r.Session, Model: p.model, For: p.purpose,
		}[d]
	}
	key := strings.Join(values, "\x00")
	if g := s.groups[key]; g != nil {
		return g, nil
	}
	if len(s.groups) >= MaxGroups {
		return nil, ErrTooManyGroups
	}
	g := &Group{Values: values, costs: map[string]decimal.Decimal{}}
	s.groups[key] = g
	return g, nil
}

// Groups returns all groups, sorted by their tokens, the largest first.
func (s *Sum) Groups() []Group {
	all := make([]Group, 0, len(s.groups))
	for _, g := range s.groups {
		g.Costs = nil
		for currency, amount := range g.costs {
			g.Costs = append(g.Costs, turnrecord.Cost{Amount: amount.String(), Currency: currency})
		}
		slices.SortFunc(g.Costs, func(a, b turnrecord.Cost) int { return cmp.Compare(a.Currency, b.Currency) })
		all = append(all, *g)
	}
	tokens := func(g Group) int64 { return g.Usage.InputTokens + g.Usage.OutputTokens }
	slices.SortFunc(all, func(a, b Group) int {
		return cmp.Or(cmp.Compare(tokens(b), tokens(a)), slices.Compare(a.Values, b.Values))
	})
	return all
}
