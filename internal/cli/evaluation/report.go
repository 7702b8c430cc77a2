package evaluation

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"

	"github.com/shopspring/decimal"

	"github.com/capstan-dev/capstan/internal/cli/output"
	"github.com/capstan-dev/capstan/internal/runtime/finalize"
	"github.com/capstan-dev/capstan/internal/runtime/judge"
	"github.com/capstan-dev/capstan/internal/runtime/model"
	"github.com/capstan-dev/capstan/internal/runtime/turn"
	"github.com/capstan-dev/capstan/internal/termsafe"
)

// Format is a format of the report.
type Format string

// The formats.
const (
	Text     Format = "text"
	JSON     Format = "json"
	JUnit    Format = "junit"
	Markdown Format = "markdown"
)

// Formats lists all formats.
var Formats = []string{string(Text), string(JSON), string(JUnit), string(Markdown)}

// Set parses a value of the command line.
func (f *Format) Set(value string) error {
	if !slices.Contains(Formats, value) {
		return errors.New("must be text, json, junit or markdown")
	}
	*f = Format(value)
	return nil
}

// String returns the format.
func (f *Format) String() string { return string(*f) }

// Type returns the values for help texts.
func (f *Format) Type() string { return strings.Join(Formats, "|") }

// Outcome is the outcome of a case.
type Outcome string

// The outcomes.
const (
	// Passed means that all expectations are met.
	Passed Outcome = "Passed"
	// Failed means that the result does not meet an expectation.
	Failed Outcome = "Failed"
	// Errored means that there is no answer to check: no model answered, or the Turn could not run.
	Errored Outcome = "Error"
)

const (
	// maxProblem and maxAnswer are the maximum lengths of a problem and of an answer in a report, in characters.
	// maxShown is the maximum length of texts that a person reads in a table or on one line.
	maxProblem, maxAnswer, maxShown = 2000, 32_000, 300
)

// Report is the result of an evaluation.
type Report struct {
	// Agent, PromptProfile and Version identify the evaluated Agent and its prompt.
	Agent         string `json:"agent"`
	PromptProfile string `json:"promptProfile"`
	Version       string `json:"version"`
	// OK is true if enough cases passed. Threshold is the share of cases that must pass.
	OK        bool   `json:"ok"`
	Threshold string `json:"threshold"`
	// Total is the number of cases that have run; Passed, Failed and Errors are the numbers of cases by outcome.
	// Missing is the number of cases that have not run to their end, because the evaluation was interrupted.
	Total   int `json:"total"`
	Passed  int `json:"passed"`
	Failed  int `json:"failed"`
	Errors  int `json:"errors"`
	Missing int `json:"missing,omitempty"`
	// Spent and JudgesSpent are the tokens and the cost of the Turns and of their judges, including those of
	// interrupted cases, which count in Missing.
	Spent       Spent     `json:"spent"`
	JudgesSpent Spent     `json:"judgesSpent"`
	Cases       []*Result `json:"cases"`
	// Backtest is about the recorded Turns of a backtest, which are the cases of the report. It is nil for capstan
	// eval.
	Backtest *Backtest `json:"backtest,omitempty"`
}

// Spent is an amount of tokens and its cost.
type Spent struct {
	Tokens int64 `json:"tokens"`
	// Cost is absent if it is not known, or if the parts have several currencies.
	Cost *finalize.Cost `json:"cost,omitempty"`
	// unknown is true if the cost of a part is not known, or has another currency.
	unknown bool
}

// Result is the result of one case.
type Result struct {
	Name    string  `json:"name"`
	Outcome Outcome `json:"outcome"`
	// Reason is the reason of the Turn's condition Succeeded.
	Reason string `json:"reason,omitempty"`
	// Problems are the expectations that are not met.
	Problems []string `json:"problems,omitempty"`
	// Answer is the answer, cut after 32000 characters.
	Answer      string       `json:"answer,omitempty"`
	Evaluations []Evaluation `json:"evaluations,omitempty"`
	Spent       Spent        `json:"spent"`
	JudgesSpent Spent        `json:"judgesSpent"`
	// Milliseconds is the duration of the case, including its judges.
	Milliseconds int64 `json:"milliseconds"`
	// Prompt says how the prompt of a recorded Turn changes, and Changed lists the names of the messages that change.
	// Both are empty for capstan eval.
	Prompt  PromptChange `json:"prompt,omitempty"`
	Changed []string     `json:"changed,omitempty"`
	// Recorded is the Turn as it was recorded, and Calls says how the calls of its replay were answered. Both are nil
	// for capstan eval, and if no model was asked.
	Recorded *RecordedTurn       `json:"recorded,omitempty"`
	Calls    *turn.AnswerSummary `json:"calls,omitempty"`
	// Feedback is the feedback of people about the recorded answer, or nil without --feedback.
	Feedback *PeopleScore `json:"feedback,omitempty"`
	// diff is the beginning of the changes of the prompt, and change identifies all of them.
	diff, change string
	// recordedSpent is the usage and cost of the recorded Turn.
	recordedSpent Spent
	// skipped is true for a Turn that cannot be replayed.
	skipped bool
	// interrupted is true for a case that was interrupted before it ended, or before all judges were asked. It counts
	// as missing, but its usage and cost count.
	interrupted bool
}

// Evaluation is the verdict of a judge about an answer.
type Evaluation struct {
	Judge     string        `json:"judge"`
	Type      judge.Kind    `json:"type"`
	Model     string        `json:"model,omitempty"`
	Verdict   judge.Verdict `json:"verdict"`
	Score     string        `json:"score,omitempty"`
	Threshold string        `json:"threshold"`
	Reason    string        `json:"reason,omitempty"`
}

// add adds an amount. If cost is nil, or has another currency than the sum, the cost of the sum becomes unknown. A nil
// cost of 0 tokens changes nothing.
func (s *Spent) add(tokens int64, cost *finalize.Cost) {
	s.Tokens += tokens
	switch {
	case tokens == 0 && cost == nil:
	case cost == nil, s.Cost != nil && s.Cost.Currency != cost.Currency:
		s.unknown = true
	case s.Cost == nil:
		s.Cost = new(*cost)
	default:
		a, _ := decimal.NewFromString(s.Cost.Amount) // both are amounts that the engine has written
		b, _ := decimal.NewFromString(cost.Amount)
		s.Cost = &finalize.Cost{Amount: a.Add(b).String(), Currency: cost.Currency}
	}
	if s.unknown {
		s.Cost = nil
	}
}

// String returns the tokens and the cost for people.
func (s *Spent) String() string {
	text := termsafe.Thousands(s.Tokens) + " tokens"
	if s.Cost != nil {
		text += ", " + s.cost()
	}
	return text
}

// cost returns the cost for people.
func (s *Spent) cost() string {
	if s.Cost == nil {
		return "-"
	}
	return s.Cost.Amount + " " + s.Cost.Currency
}

func tokens(u model.Usage) int64 { return u.InputTokens + u.OutputTokens }

// addTurn adds the answer of a Turn, and the usage of the Turn and its sub-agents.
func (r *Result) addTurn(result *turn.Result) {
	r.Answer = shortAnswer(result.Text)
	r.Spent.add(tokens(result.Record.Usage), result.Record.Cost)
	if s := result.SubAgents; s != nil {
		r.Spent.add(tokens(s.Usage), s.Cost)
	}
}

// addEvaluation adds the evaluation of a judge, with its cost.
func (r *Result) addEvaluation(e *judge.Evaluation) {
	r.Evaluations = append(r.Evaluations, evaluationOf(e))
	r.addCost(e)
	if why := refusal(e); why != "" {
		r.Problems = append(r.Problems, why)
	}
}

// addCost adds the usage of a judge.
func (r *Result) addCost(e *judge.Evaluation) {
	var cost *finalize.Cost
	if e.Cost != nil {
		cost = &finalize.Cost{Amount: e.Cost.Amount.String(), Currency: e.Cost.Currency}
	}
	r.JudgesSpent.add(tokens(e.Usage), cost)
}

func evaluationOf(e *judge.Evaluation) Evaluation {
	out := Evaluation{
		Judge: e.Judge, Type: e.Kind, Verdict: e.Verdict, Threshold: e.Threshold.String(), Reason: e.Reason,
	}
	if e.Model != "" {
		out.Model = e.Provider + "/" + e.Model
	}
	if e.Score != nil {
		out.Score = e.Score.String()
	}
	return out
}

// scores returns the scores of the judges for people. If a recorded answer has another score, scores returns both:
// see arrow.
func (r *Result) scores() string {
	var all []string
	for i := range r.Evaluations {
		e := &r.Evaluations[i]
		score := e.score()
		if r.Recorded != nil && i < len(r.Recorded.Evaluations) {
			score = arrow(r.Recorded.Evaluations[i].score(), score)
		}
		all = append(all, e.Judge+" "+score)
	}
	return strings.Join(all, ", ")
}

// score returns the score for people.
func (e *Evaluation) score() string {
	if e.Score == "" {
		return "failed"
	}
	return e.Score
}

// arrow returns "RECORDED → REPLAYED" for the values of a recorded Turn and its replay, or one value if they are equal.
func arrow(recorded, replayed string) string {
	if recorded == replayed {
		return replayed
	}
	return recorded + " → " + replayed
}

// tokens returns the tokens for people. If a recorded Turn used another number of tokens, tokens returns both: see
// arrow.
func (r *Result) tokens() string {
	spent := termsafe.Thousands(r.Spent.Tokens)
	if r.Recorded == nil {
		return spent
	}
	return arrow(termsafe.Thousands(r.Recorded.Spent.Tokens), spent)
}

// cost is like tokens, for the cost.
func (r *Result) cost() string {
	if r.Recorded == nil {
		return r.Spent.cost()
	}
	return arrow(r.Recorded.Spent.cost(), r.Spent.cost())
}

// line returns the result as one line.
func (r *Result) line() string {
	switch {
	case r.skipped:
		return r.Name + ": skipped"
	case r.Prompt != "" && r.Recorded == nil:
		return fmt.Sprintf("%s: %s", r.Name, strings.ToLower(string(r.Prompt)))
	}
	text := fmt.Sprintf("%s: %s, %s, %.1f s", r.Name, strings.ToLower(string(r.Outcome)), r.Spent.String(), float64(r.Milliseconds)/1000)
	if scores := r.scores(); scores != "" {
		text += "; " + scores
	}
	return text
}

// report makes the report. A result is nil if its case has not run.
func (e *evaluation) report(results []*Result, threshold judge.Score) *Report {
	p := e.bundles[0]
	r := &Report{Agent: p.Agent.Namespace + "/" + p.Agent.Name, PromptProfile: p.Profile.Name, Version: p.Profile.Spec.Version}
	r.addAll(results, threshold)
	return r
}

// addAll adds the results and the outcome. A result is nil if its case has not run.
func (r *Report) addAll(results []*Result, threshold judge.Score) {
	r.Threshold, r.Cases = threshold.String(), []*Result{}
	for _, one := range results {
		if one != nil {
			r.Spent.merge(&one.Spent)
			r.JudgesSpent.merge(&one.JudgesSpent)
		}
		if one == nil || one.interrupted {
			r.Missing++
			continue
		}
		switch one.Outcome {
		case Passed:
			r.Passed++
		case Failed:
			r.Failed++
		case Errored:
			r.Errors++
		}
		r.Total++
		r.Cases = append(r.Cases, one)
	}
	r.OK = r.Missing == 0 && r.Passed*int(judge.MaxScore) >= int(threshold)*len(results)
}

// merge adds another amount.
func (s *Spent) merge(o *Spent) { s.add(o.Tokens, o.Cost) }

// summary returns the result in a few words.
func (r *Report) summary() string {
	all := r.Total + r.Missing
	text := fmt.Sprintf("%d of %d %s (%d%%)", r.Passed, all, r.passed(), r.Passed*100/max(all, 1))
	if r.Errors > 0 {
		text += fmt.Sprintf(", %d had an error", r.Errors)
	}
	return text
}

// unit returns the plural noun for the evaluated items.
func (r *Report) unit() string {
	if r.Backtest != nil {
		return "Turns"
	}
	return "cases"
}

// missing returns how many of the items have not run to their end.
func (r *Report) missing() string {
	if r.Backtest != nil {
		return termsafe.Counted(r.Missing, "Turn has not ended", "Turns have not ended")
	}
	return termsafe.Counted(r.Missing, "case has not ended", "cases have not ended")
}

// passed returns the words that follow the number of results that passed.
func (r *Report) passed() string {
	if r.Backtest != nil && !r.Backtest.Replayed {
		return "prompts can be made"
	}
	return r.unit() + " passed"
}

func percent(s judge.Score) string { return strconv.Itoa(int(s)) + "%" }

// encode returns the report in a format. isScreen is true if it is for a terminal.
func (r *Report) encode(f Format, isScreen bool) (string, error) {
	switch f {
	case JSON:
		return output.Encode(r, output.JSON)
	case JUnit:
		text, err := r.junit()
		return termsafe.Inert(text), err
	case Markdown:
		return r.markdown(), nil
	case Text:
	}
	if isScreen {
		return termsafe.Safe(r.text()), nil
	}
	return termsafe.Inert(r.text()), nil
}

// text returns the report for people.
func (r *Report) text() string {
	var b strings.Builder
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	row := func(cells ...string) { _, _ = w.Write([]byte(strings.Join(cells, "\t") + "\n")) } // a strings.Builder takes all
	titles, cells := r.columns()
	row(upper(titles)...)
	for _, c := range r.Cases {
		row(cells(c)...)
	}
	_ = w.Flush()
	var lines []string
	for line := range strings.Lines(b.String()) {
		lines = append(lines, strings.TrimRight(line, " \n"))
	}
	lines = append(lines, r.changesInText()...)
	for _, c := range r.Cases {
		if len(c.Problems) == 0 {
			continue
		}
		lines = append(lines, "", c.Name+":")
		for _, p := range c.Problems {
			lines = append(lines, "  - "+termsafe.Line(p, maxProblem))
		}
		if c.Answer != "" {
			lines = append(lines, "  answer: "+termsafe.Line(c.Answer, maxShown))
		}
	}
	lines = append(lines, r.skipped(func(text string) string { return text })...)
	lines = append(lines, "", r.total())
	return strings.Join(lines, "\n") + "\n"
}

// changesInText returns the lines of a text about each change of prompts.
func (r *Report) changesInText() []string {
	return r.changes(func(c *Change) []string {
		return append([]string{"", c.title() + ":"}, strings.Split(strings.TrimSuffix(c.Diff, "\n"), "\n")...)
	})
}

// columns returns the titles of the columns of a table, and the cells of a result.
func (r *Report) columns() (titles []string, cells func(*Result) []string) {
	if r.Backtest != nil && slices.ContainsFunc(r.Cases, func(c *Result) bool { return c.Feedback != nil }) {
		titles, baseCells := r.baseColumns()
		return append(titles, "feedback"), func(c *Result) []string { return append(baseCells(c), c.Feedback.String()) }
	}
	return r.baseColumns()
}

// baseColumns is like columns, without the column about feedback.
func (r *Report) baseColumns() (titles []string, cells func(*Result) []string) {
	switch {
	case r.Backtest == nil:
		return []string{"case", "result", "tokens", "cost", "time", "judges"}, func(c *Result) []string {
			return []string{c.Name, string(c.Outcome), c.tokens(), c.cost(), seconds(c.Milliseconds) + " s", c.scores()}
		}
	case !r.Backtest.Replayed:
		return []string{"turn", "prompt", "changes"}, func(c *Result) []string {
			return []string{c.Name, cmp.Or(string(c.Prompt), string(c.Outcome)), strings.Join(c.Changed, ", ")}
		}
	}
	return []string{"turn", "result", "prompt", "calls", "tokens", "cost", "judges"}, func(c *Result) []string {
		return []string{c.Name, string(c.Outcome), string(c.Prompt), c.calls(), c.tokens(), c.cost(), c.scores()}
	}
}

func upper(titles []string) []string {
	var all []string
	for _, t := range titles {
		all = append(all, strings.ToUpper(t))
	}
	return all
}

// total returns the last line of a report.
func (r *Report) total() string {
	if r.Backtest != nil {
		return r.summary() + ". " + r.Backtest.total() + " " + r.spending()
	}
	return r.summary() + ". " + r.spending()
}

// spending describes the usage and cost of the Turns and the judges.
func (r *Report) spending() string {
	if r.Backtest != nil && !r.Backtest.Replayed {
		return "Recorded: " + r.Backtest.Spent.String() + "."
	}
	line := "Turns: " + r.Spent.String() + "."
	if r.Backtest != nil {
		line = "Recorded: " + r.Backtest.Spent.String() + ". Replayed: " + r.Spent.String() + "."
	}
	if r.JudgesSpent.Tokens > 0 {
		line += " Judges: " + r.JudgesSpent.String() + "."
	}
	return line
}

func seconds(ms int64) string { return fmt.Sprintf("%.1f", float64(ms)/1000) }
