package turn

import (
	"github.com/capstan-dev/capstan/internal/runtime/citation"
	"github.com/capstan-dev/capstan/internal/runtime/loop"
	"github.com/capstan-dev/capstan/internal/runtime/outputpolicy"
)

// policies returns the output policies of the Turn from its journal.
func (r *run) policies() []outputpolicy.Policy {
	if f := r.replayed.input; f != nil {
		return f.outputPolicies()
	}
	return nil
}

// citations returns the sources of an answer in the order of the result: first the sources of facts, then those of tool
// results, in the order of these results.
func (r *run) citations() outputpolicy.Citations {
	var local [][]string
	var web [][]citation.Page
	if p := r.replayed.prompt; p != nil {
		local = append(local, p.Sources)
	}
	for i := range r.replayed.loop.CallResults {
		local = append(local, r.replayed.loop.CallResults[i].Documents)
		web = append(web, r.replayed.loop.CallResults[i].Pages)
	}
	return outputpolicy.Citations{Local: citation.MergeDocuments(local...), Web: citation.Merge(web...)}
}

// withhold fills in the violations of the newest answer, and removes the text of a result unless all enforced policies
// are known to hold for it. If a Turn ends early, for example at its deadline, its text was not checked. withhold then
// evaluates the expressions of the policies, but cannot ask a model any more.
func (r *run) withhold(result *Result, sources outputpolicy.Citations) {
	policies, last := r.policies(), r.replayed.loop.LastStep()
	if len(policies) == 0 || last == nil {
		return
	}
	check := r.recordedCheck(result, last)
	if check == nil {
		if result.Text == "" {
			return
		}
		check = &loop.AnswerCheck{Findings: loop.Violations(r.life, policies,
			r.replayed.loop.PolicyOutput(result.Text, r.output != nil, sources))}
		for i := range policies {
			if p := &policies[i]; p.Prompt != "" {
				check.Findings = append(check.Findings, loop.Finding{
					Policy: p.Name, OnViolation: p.OnViolation, Unchecked: true, Rule: p.Rule(),
				})
			}
		}
	}
	for _, f := range check.Findings {
		result.Violations = append(result.Violations, PolicyViolation{f.Policy, f.OnViolation, f.Unchecked, f.Rule})
	}
	if result.Text != "" && check.Refused() {
		result.Text, result.Withheld = "", true
	}
}

// recordedCheck returns the recorded check of the newest answer, or nil if the text of a result was not checked. If a
// Turn ends early, for example because it is cancelled, its text may be the text of the model although the check was
// about the result of a tool. A check that refuses the answer always counts.
func (r *run) recordedCheck(result *Result, last *loop.Step) *loop.AnswerCheck {
	check := r.replayed.loop.Check(last.Step)
	if check == nil || result.Text == "" || check.Refused() {
		return check
	}
	if isAboutTool := check.CallID != ""; isAboutTool != (r.toolAnswer(result.Stop) != nil) {
		return nil
	}
	return check
}
