package evaluation

import (
	"fmt"
	"slices"
	"strings"

	"github.com/capstan-dev/capstan/internal/runtime/judge"
	"github.com/capstan-dev/capstan/internal/termsafe"
)

// PromptChange says how the prompt of a recorded Turn changes.
type PromptChange string

// The changes of a prompt.
const (
	// PromptSame means that the model receives the same messages and tools.
	PromptSame PromptChange = "Same"
	// PromptChanged means that the model receives other messages or tools.
	PromptChanged PromptChange = "Changed"
	// PromptFails means that the prompt cannot be made.
	PromptFails PromptChange = "Fails"
)

// Backtest is the part of a report that is about recorded Turns.
type Backtest struct {
	// Replayed is true if models were asked. Otherwise only the prompts were compared.
	Replayed bool `json:"replayed"`
	// Changed, Same and Fails are the numbers of the Turns by the change of their prompts.
	Changed int `json:"changed"`
	Same    int `json:"same"`
	Fails   int `json:"fails"`
	// Changes are at most 10 different changes of prompts, sorted by the number of Turns that they affect, the largest
	// number first. MoreChanges is the number of further changes.
	Changes     []*Change `json:"changes,omitempty"`
	MoreChanges int       `json:"moreChanges,omitempty"`
	// Skipped are the Turns whose recordings cannot be replayed with any prompt. They do not count.
	Skipped []Skipped `json:"skipped,omitempty"`
	// Spent is the usage and cost of the recorded Turns, without their sub-agents.
	Spent Spent `json:"spent"`
}

// Change is a change that the prompts of one or more Turns have in common.
type Change struct {
	// Turns is the number of these Turns. Names are the names of the first 5.
	Turns int      `json:"turns"`
	Names []string `json:"names"`
	// Diff is the change as a diff, cut after 4000 characters.
	Diff string `json:"diff"`
}

// Skipped is a Turn that cannot be replayed.
type Skipped struct {
	Turn   string `json:"turn"`
	Reason string `json:"reason"`
}

// RecordedTurn is a Turn as it was recorded.
type RecordedTurn struct {
	// Reason is the stop reason.
	Reason string `json:"reason"`
	// Answer is the answer, cut after 32000 characters.
	Answer string `json:"answer,omitempty"`
	// Evaluations are the evaluations of the recorded answer by the same judges.
	Evaluations []Evaluation `json:"evaluations,omitempty"`
	Spent       Spent        `json:"spent"`
}

// shortAnswer returns the beginning of an answer, without control characters.
func shortAnswer(text string) string {
	text = termsafe.Safe(text)
	if runes := []rune(text); len(runes) > maxAnswer {
		text = string(runes[:maxAnswer])
	}
	return text
}

// addTurns adds the results of recorded Turns. Turns that cannot be replayed do not count.
func (r *Report) addTurns(results []*Result, threshold judge.Score) {
	t := r.Backtest
	changes := map[string]*Change{}
	var all []*Change
	var counted []*Result
	for _, one := range results {
		if one == nil {
			counted = append(counted, nil)
			continue
		}
		if one.skipped {
			t.Skipped = append(t.Skipped, Skipped{one.Name, one.Problems[0]})
			r.Spent.merge(&one.Spent) // a Turn may be deleted during its replay
			continue
		}
		counted = append(counted, one)
		t.Spent.merge(&one.recordedSpent) // even if the replay was interrupted, so that the sums can be compared
		if one.interrupted {
			continue
		}
		switch one.Prompt {
		case PromptSame:
			t.Same++
		case PromptFails:
			t.Fails++
		case PromptChanged:
			t.Changed++
			c := changes[one.change]
			if c == nil {
				c = &Change{Diff: one.diff}
				changes[one.change], all = c, append(all, c)
			}
			if c.Turns++; len(c.Names) < maxNames {
				c.Names = append(c.Names, one.Name)
			}
		}
	}
	slices.SortStableFunc(all, func(a, b *Change) int { return b.Turns - a.Turns })
	t.Changes = all[:min(len(all), maxChanges)]
	t.MoreChanges = len(all) - len(t.Changes)
	r.addAll(counted, threshold)
}

// shortDiff returns the beginning of a diff.
func shortDiff(text string) string {
	runes := []rune(text)
	if len(runes) <= maxChange {
		return text
	}
	return string(runes[:maxChange]) + fmt.Sprintf("\n(%d more characters are left out)\n", len(runes)-maxChange)
}

// title returns a line with the number and the names of the Turns that a change affects.
func (c *Change) title() string {
	text := fmt.Sprintf("The prompts of %s change: %s", termsafe.Counted(c.Turns, "Turn", "Turns"), strings.Join(c.Names, ", "))
	if more := c.Turns - len(c.Names); more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	return text
}

// total returns how many prompts change, and how many Turns were skipped.
func (t *Backtest) total() string {
	text := fmt.Sprintf("Prompts: %d changed, %d same, %d cannot be made.", t.Changed, t.Same, t.Fails)
	if n := len(t.Skipped); n > 0 {
		text += fmt.Sprintf(" %s skipped.", termsafe.Counted(n, "Turn was", "Turns were"))
	}
	return text
}

// calls returns how many calls of a replay were answered, and how many were not made.
func (r *Result) calls() string {
	if r.Calls == nil {
		return ""
	}
	text := fmt.Sprint(r.Calls.Recorded)
	if r.Calls.NotMade > 0 {
		text += fmt.Sprintf(", %d not made", r.Calls.NotMade)
	}
	return text
}

// changes returns the lines for each change of prompts. It leaves out a change for which lines returns none, and adds a
// line with the number of changes that are left out.
func (r *Report) changes(lines func(*Change) []string) []string {
	if r.Backtest == nil {
		return nil
	}
	var all []string
	n := r.Backtest.MoreChanges
	for _, c := range r.Backtest.Changes {
		text := lines(c)
		if len(text) == 0 {
			n++
		}
		all = append(all, text...)
	}
	if n > 0 {
		all = append(all, "", termsafe.Counted(n, "more change is left out.", "more changes are left out."))
	}
	return all
}

// skipped returns the lines about Turns that were skipped. escape makes a text safe for the format.
func (r *Report) skipped(escape func(string) string) []string {
	if r.Backtest == nil || len(r.Backtest.Skipped) == 0 {
		return nil
	}
	all := []string{""}
	for _, s := range r.Backtest.Skipped[:min(len(r.Backtest.Skipped), maxNames)] {
		all = append(all, fmt.Sprintf("Skipped: %s: %s", escape(s.Turn), escape(termsafe.Line(s.Reason, maxShown))))
	}
	if more := len(r.Backtest.Skipped) - maxNames; more > 0 {
		all = append(all, termsafe.Counted(more, "more Turn was skipped.", "more Turns were skipped."))
	}
	return all
}
