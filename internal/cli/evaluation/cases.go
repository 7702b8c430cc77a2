package evaluation

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strings"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/cli/exit"
	"github.com/capstan-dev/capstan/internal/manifest"
	"github.com/capstan-dev/capstan/internal/runtime/invalid"
	"github.com/capstan-dev/capstan/internal/runtime/judge"
	"github.com/capstan-dev/capstan/internal/runtime/outputpolicy"
	"github.com/capstan-dev/capstan/internal/runtime/pattern"
	"github.com/capstan-dev/capstan/internal/smallfile"
	"github.com/capstan-dev/capstan/internal/yamldoc"
)

// The limits of a file of cases.
const (
	maxFileBytes = 8 << 20
	// MaxCases is the maximum number of cases of a file.
	MaxCases = 1000
	// maxExpected is the maximum number of entries of each list of a case.
	maxExpected = 32
)

// file is a file of cases.
type file struct {
	// Agent is the Agent that answers, as NAME or NAMESPACE/NAME.
	Agent string `json:"agent"`
	// Manifests are the paths of manifests, relative to the directory of the file.
	Manifests []string `json:"manifests"`
	// Cases are the cases, with the fields of a Turn's spec.
	Cases []map[string]json.RawMessage `json:"cases"`
}

// Case is one case: a Turn and its expectations.
type Case struct {
	Name   string
	Expect Expect
	// spec is the spec of the Turn without agentRef.
	spec map[string]json.RawMessage
}

// Expect are the expectations of a case. If Reason is empty, the Turn must also succeed.
type Expect struct {
	// Reason is the expected reason of the condition Succeeded. If it is empty, the condition must be true.
	Reason string `json:"reason,omitempty"`
	// Contains and NotContains are texts that the answer must or must not contain.
	Contains    []string `json:"contains,omitempty"`
	NotContains []string `json:"notContains,omitempty"`
	// Matches and NotMatches are RE2 patterns that the answer must or must not match.
	Matches    []string `json:"matches,omitempty"`
	NotMatches []string `json:"notMatches,omitempty"`
	// Expressions are CEL expressions over output, as in output policies, that must be true.
	Expressions []string `json:"expressions,omitempty"`
	// Tools are the names of tools, as the model uses them.
	Tools Tools `json:"tools,omitzero"`
	// Judges holds thresholds by the name of the judge. They replace the thresholds of the profile.
	Judges map[string]string `json:"judges,omitempty"`
	// Feedback is the feedback of people about an earlier answer, or nil if there is none.
	Feedback *Feedback `json:"feedback,omitempty"`
}

// Feedback is an earlier answer with the score that people gave it. If the score is at least 0.5, no judge may score
// the new answer much lower than the earlier one: see tolerance. Otherwise the new answer must be different.
type Feedback struct {
	Answer string `json:"answer"`
	// Score is a decimal from 0 to 1.
	Score string `json:"score"`
}

// Tools are tools that must or must not be called.
type Tools struct {
	Called    []string `json:"called,omitempty"`
	NotCalled []string `json:"notCalled,omitempty"`
}

// fixedFields holds the fields of a Turn that a case cannot have, and why.
var fixedFields = map[string]string{
	"agentRef":                "the file names the Agent",
	"sessionRef":              "each case is a separate conversation: use history",
	"undo":                    "each case asks a model",
	"execution":               "each case asks a model",
	"desiredState":            "each case runs to its end",
	"ttlSecondsAfterFinished": "nothing is kept",
}

// readFile reads a file of cases, or standard input for "-".
func readFile(path string, stdin io.Reader) (text []byte, err error) {
	if path == "-" {
		text, err = io.ReadAll(io.LimitReader(stdin, maxFileBytes+1))
	} else {
		text, err = smallfile.Read(path, maxFileBytes)
	}
	if err == nil && len(text) > maxFileBytes {
		err = fmt.Errorf("it must be at most %d MiB", maxFileBytes>>20)
	}
	return text, err
}

// parse reads the cases of a file. Its errors name the case and the field.
func parse(text []byte) (*file, []Case, error) {
	data, err := yamldoc.ToJSON(text)
	if err != nil {
		return nil, nil, err
	}
	f := &file{}
	if err := decode(data, f, ""); err != nil {
		return nil, nil, err
	}
	switch n := len(f.Cases); {
	case n == 0:
		return nil, nil, errors.New("cases: there must be at least one case")
	case n > MaxCases:
		return nil, nil, fmt.Errorf("cases: there must be at most %d cases, not %d", MaxCases, n)
	}
	var cases []Case
	for i, fields := range f.Cases {
		c, err := parseCase(fields)
		if err != nil {
			return nil, nil, fmt.Errorf("cases[%d].%w", i, err)
		}
		if slices.ContainsFunc(cases, func(o Case) bool { return o.Name == c.Name }) {
			return nil, nil, fmt.Errorf("cases[%d].name: another case has the name %q", i, c.Name)
		}
		_, given := c.spec["message"]
		if _, referred := c.spec["messageFrom"]; !given && !referred { // the schema's error would also mention undo
			return nil, nil, fmt.Errorf("case %s: message: Required value", c.Name)
		}
		cases = append(cases, c)
	}
	return f, cases, nil
}

// parseCase reads a case. Its errors begin with a field of the case.
func parseCase(fields map[string]json.RawMessage) (Case, error) {
	c := Case{spec: map[string]json.RawMessage{}}
	if name, given := fields["name"]; given {
		if err := decode(name, &c.Name, "name"); err != nil {
			return c, err
		}
	}
	if c.Name == "" {
		return c, errors.New("name: is required, as a string")
	}
	for field, value := range fields {
		if why := fixedFields[field]; why != "" {
			return c, fmt.Errorf("%s: must not be given: %s", field, why)
		}
		if field != "name" && field != "expect" {
			c.spec[field] = value
		}
	}
	if expect, ok := fields["expect"]; ok {
		if err := decode(expect, &c.Expect, "expect"); err != nil {
			return c, err
		}
	}
	return c, c.Expect.check()
}

// endings are the reasons with which the Turn of a case can end. Others need a Session, a cluster, a Turn that asks no
// model, or an interruption, after which the case has no result.
var endings = []string{
	v1alpha1.TurnReasonCompleted, v1alpha1.TurnReasonPreparationFailed, v1alpha1.TurnReasonModelFailed,
	v1alpha1.TurnReasonStepLimitExceeded, v1alpha1.TurnReasonBudgetExceeded, v1alpha1.TurnReasonDeadlineExceeded,
	v1alpha1.TurnReasonContextLimitExceeded, v1alpha1.TurnReasonOutputInvalid, v1alpha1.TurnReasonPolicyViolated,
}

// check returns an error if an expectation is invalid.
func (e *Expect) check() error {
	if e.Reason != "" && !slices.Contains(endings, e.Reason) {
		return fmt.Errorf("expect.reason: %q must be a reason with which a case can end: %s", e.Reason, strings.Join(endings, ", "))
	}
	for _, l := range []struct {
		field   string
		entries []string
	}{
		{"contains", e.Contains},
		{"notContains", e.NotContains},
		{"matches", e.Matches},
		{"notMatches", e.NotMatches},
		{"expressions", e.Expressions},
		{"tools.called", e.Tools.Called},
		{"tools.notCalled", e.Tools.NotCalled},
	} {
		if len(l.entries) > maxExpected {
			return fmt.Errorf("expect.%s: must have at most %d entries", l.field, maxExpected)
		}
		for i, text := range l.entries {
			path := fmt.Sprintf("expect.%s[%d]", l.field, i)
			if text == "" {
				return fmt.Errorf("%s: must not be empty", path)
			}
			if err := checkEntry(l.field, path, text); err != nil {
				return err
			}
		}
	}
	for name, threshold := range e.Judges {
		if _, err := judge.ParseScore(threshold); err != nil {
			return fmt.Errorf("expect.judges.%s: %w", name, err)
		}
	}
	return e.Feedback.check()
}

// check returns an error if the feedback is invalid.
func (f *Feedback) check() error {
	if f == nil {
		return nil
	}
	if f.Answer == "" {
		return errors.New("expect.feedback.answer: is required: the answer that people have scored")
	}
	if _, err := judge.ParseScore(f.Score); err != nil {
		return fmt.Errorf("expect.feedback.score: %w", err)
	}
	return nil
}

// checkEntry returns an error if a pattern or an expression is invalid. The error names the path of the entry.
func checkEntry(field, path, text string) error {
	switch field {
	case "matches", "notMatches":
		if _, err := pattern.Compile(text); err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
	case "expressions":
		if len(text) > outputpolicy.MaxExpression {
			return fmt.Errorf("%s: must have at most %d characters", path, outputpolicy.MaxExpression)
		}
		err := outputpolicy.Check("", []outputpolicy.Policy{{Expression: text}})
		if e, ok := errors.AsType[*invalid.Error](err); ok {
			e.Field = path
		}
		return err
	}
	return nil
}

// checkJudges returns an error if a case needs a judge that the profile does not have.
func checkJudges(cases []Case, p *v1alpha1.PromptProfile) error {
	for i := range cases {
		for name := range cases[i].Expect.Judges {
			if !slices.ContainsFunc(p.Spec.Judges, func(j v1alpha1.Judge) bool { return j.Name == name }) {
				return fmt.Errorf("case %q: expect.judges: PromptProfile %q has no judge %q", cases[i].Name, p.Name, name)
			}
		}
		if s := cases[i].Expect.Feedback.score(); s != nil && s.isGood && len(p.Spec.Judges) == 0 {
			return fmt.Errorf("case %q: expect.feedback: PromptProfile %q has no judge that could compare the answers: add a judge, or "+
				"give a score below 0.5, for which the answer must change", cases[i].Name, p.Name)
		}
	}
	return nil
}

// manifest returns the manifest of the Turn of a case.
func (c *Case) manifest(namespace, agent string) ([]byte, error) {
	spec := map[string]any{"agentRef": map[string]string{"name": agent}}
	for field, value := range c.spec {
		spec[field] = value
	}
	text, err := json.Marshal(map[string]any{
		"apiVersion": v1alpha1.GroupVersion.String(), "kind": "Turn", "spec": spec,
		"metadata": map[string]string{"namespace": namespace, "name": c.Name},
	})
	if err != nil {
		return nil, fmt.Errorf("failed to make the Turn of case %q: %w", c.Name, err)
	}
	return text, nil
}

// addTurns adds the Turns of the cases to the manifests, and checks them as a cluster would. path is the path of the
// file of cases, for errors. The manifests are not read again, because a file may be a pipe. Each Turn is loaded apart:
// all together can be longer than a manifest may be, because the file of cases can have aliases for long texts.
func addTurns(ctx context.Context, path string, set *manifest.Set, cases []Case, namespace, agent string) error {
	var problems manifest.Errors
	for i := range cases {
		document, err := cases[i].manifest(namespace, agent)
		if err != nil {
			return err
		}
		_, err = manifest.Load(ctx, []string{"-"}, manifest.Options{Stdin: bytes.NewReader(document), Into: set})
		all, ok := errors.AsType[manifest.Errors](err)
		if err != nil && !ok {
			return exit.WithCode(exit.Usage, err)
		}
		for _, e := range all {
			e.File, e.Line, e.Kind, e.Namespace, e.Name = path, 0, "case", "", cases[i].Name
			e.Field = strings.TrimPrefix(e.Field, "spec.")
		}
		problems = append(problems, all...)
	}
	if len(problems) > 0 {
		return exit.WithCode(exit.Usage, problems)
	}
	return nil
}

// relativeTo resolves a path relative to the directory of a file.
func relativeTo(file, path string) string {
	if filepath.IsAbs(path) || file == "-" {
		return path
	}
	return filepath.Join(filepath.Dir(file), path)
}
