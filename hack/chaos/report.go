package main

import (
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
)

// report is the result of the test.
type report struct {
	Seed   uint64         `json:"seed"`
	Store  string         `json:"store"`
	Phases []*phaseReport `json:"phases"`
}

// phaseReport is the result of a phase.
type phaseReport struct {
	Name    string  `json:"name"`
	Seconds float64 `json:"seconds"`
	// Done lists what the test did to the processes and what it measured, as lines of the report.
	Done    []fact  `json:"done"`
	Figures figures `json:"figures"`
	// Points are the crash points of the phase points.
	Points []pointResult `json:"points,omitempty"`
	// Checked are the guarantees that the phase checks, and Violations the ones that did not hold.
	Checked    []guarantee `json:"checked"`
	Violations []violation `json:"violations,omitempty"`
}

// fact is a line of a report.
type fact struct {
	What  string `json:"what"`
	Value string `json:"value"`
}

// newPhaseReport checks the evidence of a phase.
func newPhaseReport(e evidence) *phaseReport {
	p := &phaseReport{}
	p.Figures, p.Violations = check(e)
	p.checked(guarantees...)
	if len(e.Kills) > 0 && p.Figures.CutOff == 0 {
		p.wrong(everyTurnFinished, "%d kills have hit no running Turn: this proves nothing", len(e.Kills))
	}
	return p
}

// checkFeatures checks that the Turns of a phase have used every feature of a Turn.
func (p *phaseReport) checkFeatures() {
	f := p.Figures
	p.checkCounts(map[string]int{
		"calls in waves": f.Waves, "calls that were approved": f.Approved, "calls that were denied": f.Denied,
		"Turns of sub-agents": f.Children, "compactions": f.Compactions, "parked Turns that continued": f.Parked,
	})
}

// checkCounts checks that no count is zero.
func (p *phaseReport) checkCounts(counts map[string]int) {
	for what, n := range counts {
		if n == 0 {
			p.wrong(everyTurnFinished, "there were no %s: this proves nothing", what)
		}
	}
}

func (p *phaseReport) add(what string, value any) {
	p.Done = append(p.Done, fact{what, fmt.Sprint(value)})
}

// checked records that the phase checks these guarantees.
func (p *phaseReport) checked(all ...guarantee) { p.Checked = append(p.Checked, all...) }

// wrong records that a guarantee did not hold.
func (p *phaseReport) wrong(g guarantee, format string, args ...any) {
	p.Violations = append(p.Violations, violation{Guarantee: g, What: fmt.Sprintf(format, args...)})
}

// broken returns how many times a guarantee did not hold.
func (p *phaseReport) broken(g guarantee) int {
	n := 0
	for _, v := range p.Violations {
		if v.Guarantee == g {
			n++
		}
	}
	return n
}

func (p *phaseReport) verdict() string {
	if n := len(p.Violations); n > 0 {
		return fmt.Sprintf("%d violations", n)
	}
	return "all guarantees held"
}

// failure returns an error if a guarantee did not hold.
func (r *report) failure() error {
	var names []string
	n := 0
	for _, p := range r.Phases {
		for _, v := range p.Violations {
			n++
			if name := fmt.Sprintf("%s: %s", p.Name, v.Guarantee); !slices.Contains(names, name) {
				names = append(names, name)
			}
		}
	}
	if n == 0 {
		return nil
	}
	return fmt.Errorf("%d violations of these guarantees: %s", n, strings.Join(names, "; "))
}

// maxShown is the maximum number of violations that the report shows per guarantee.
const maxShown = 5

func (r *report) write(out io.Writer, format string) error {
	if format == outputJSON {
		encoder := json.NewEncoder(out)
		encoder.SetIndent("", "  ")
		return encoder.Encode(r)
	}
	var text strings.Builder
	fmt.Fprintf(&text, "The kill test, seed %d, store %s\n", r.Seed, r.Store)
	for _, p := range r.Phases {
		p.text(&text)
	}
	_, err := io.WriteString(out, text.String())
	return err
}

func (p *phaseReport) text(out *strings.Builder) {
	fmt.Fprintf(out, "\n== %s (%.0f s)\n", p.Name, p.Seconds)
	facts := p.Done
	if p.Figures != (figures{}) { // otherwise Done has all results of the phase
		facts = slices.Concat(p.Done, p.Figures.facts())
	}
	for _, f := range facts {
		fmt.Fprintf(out, "  %-58s %s\n", f.What, f.Value)
	}
	if len(p.Points) > 0 {
		fmt.Fprintf(out, "  %-9s%-9s%-10s%s\n", "resumes", "unknown", "requests", "died at")
		for _, row := range p.Points {
			fmt.Fprintf(out, "  %-9d%-9d%-10d%s\n", row.Resumes, row.UnknownOutcomes, row.ModelRequests, row.Point)
		}
	}
	for _, g := range p.Checked {
		verdict := "held"
		if n := p.broken(g); n > 0 {
			verdict = fmt.Sprintf("BROKEN, %d times", n)
		}
		fmt.Fprintf(out, "  %-70s %s\n", g, verdict)
	}
	shown := map[guarantee]int{}
	for _, v := range p.Violations {
		if shown[v.Guarantee]++; shown[v.Guarantee] <= maxShown {
			fmt.Fprintf(out, "    ! %s: %s %s\n", v.Guarantee, v.Turn, v.What)
		}
	}
}

// facts returns the counts as lines of the report.
func (f figures) facts() []fact {
	line := func(what, format string, args ...any) fact { return fact{what, fmt.Sprintf(format, args...)} }
	return []fact{
		line("Turns, finished with an answer", "%d of %d", f.Finished, f.Turns),
		line("  of sub-agents", "%d, by %d calls", f.Children, f.Delegated),
		line("  of Sessions", "%d", f.SessionTurns),
		line("resumes, by the statuses", "%d", f.Resumes),
		line("continued runs: after an interruption, after a park", "%d, %d", f.CutOff, f.Parked),
		line("journal entries", "%d", f.Entries),
		line("requests that the model server received", "%d", f.Requests),
		line("  = replies in the journals", "%d (%d for compactions)", f.Replies, f.Asides),
		line("  + failures in the journals", "%d", f.Failures),
		line("  + in flight at a kill, and sent", "%d", f.LostSent),
		line("never sent: in flight at a kill, failed", "%d, %d", f.LostUnsent, f.Unsent),
		line("recorded replies that were requested again", "%d", f.Repeated),
		line("side-effecting calls: intended", "%d", f.Intended),
		line("  made", "%d", f.Made),
		line("  made twice", "%d", f.Twice),
		line("  in flight at a kill, with unknown outcome", "%d (%d were made)", f.Unknown, f.UnknownMade),
		line("  reported in statuses, shown to the model", "%d, %d", f.UnknownReported, f.UnknownTold),
		line("calls that may be repeated, times made", "%d, %d", f.Repeatable, f.RepeatableMade),
		line("  waves: several at the same time", "%d", f.Waves),
		line("calls that required approval", "%d", f.Awaited),
		line("  approved, of these made", "%d, %d", f.Approved, f.ApprovedMade),
		line("  denied, of these made", "%d, %d", f.Denied, f.DeniedMade),
		line("compactions", "%d", f.Compactions),
		line("tokens billed, in + out", "%d + %d", f.Billed.Input, f.Billed.Output),
		line("  = in the statuses", "%d + %d", f.Reported.Input, f.Reported.Output),
		line("    estimates for requests that were interrupted", "%d", f.Estimated.Input),
		line("    of sub-agents, which their parents report too", "%d + %d", f.OfChildren.Input, f.OfChildren.Output),
		line("  + billed for replies in flight at a kill", "%d + %d", f.Lost.Input, f.Lost.Output),
		line("records", "%d", f.Records),
		line("requests of judges, for memories; received", "%d, %d; %d", f.Judged, f.Learned, f.FollowUps),
		line("  tokens in the records", "%d + %d", f.FollowedUp.Input, f.FollowedUp.Output),
		line("  messages whose tokens equal the bill; with estimates", "%d; %d", f.ComparedMessages, f.EstimatedMessages),
		line("counted by the Budget: tokens, cost, Turns", "%d, %s %s, %d", f.Counted, f.CountedCost, currency, f.CountedTurns),
	}
}
