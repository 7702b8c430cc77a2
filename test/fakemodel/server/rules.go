package server

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"text/template"
)

// defaultText is the answer of a rule without a reply, and of a server without rules.
const defaultText = `This is {{ .Model }}. You said: {{ .User }}`

// ruleset is a compiled Config. Only the match counts of the rules change.
type ruleset struct {
	cfg   Config
	rules []*compiledRule
	// defaultRule is used if no rule matches.
	defaultRule *compiledRule
	// synonyms maps a word to the word that replaces it in embeddings.
	synonyms map[string]string
}

type compiledRule struct {
	Rule
	// index is the position of the rule in the file, or -1 for the default rule.
	index   int
	matches *regexp.Regexp
	// text is nil for an answer without text, and reasoning for an answer without reasoning.
	text      *template.Template
	reasoning *template.Template
	arguments []*template.Template
	// used counts the matches, for Times.
	used atomic.Int64
}

// compile checks a configuration and parses its patterns and templates. Its errors begin with the index of the rule
// and the field.
func compile(cfg Config) (*ruleset, error) {
	if i := slices.Index(cfg.APIKeys, ""); i >= 0 {
		return nil, fmt.Errorf("apiKeys[%d]: must not be empty; leave apiKeys out to require none", i)
	}
	if i := slices.Index(cfg.Models, ""); i >= 0 {
		return nil, fmt.Errorf("models[%d]: must not be empty; leave models out to serve any", i)
	}
	defaultRule, err := compileRule(-1, Rule{})
	if err != nil {
		return nil, err
	}
	if n := cfg.ContextTokens; n != nil && *n < 1 {
		return nil, fmt.Errorf("contextTokens: must be 1 or more, not %d", *n)
	}
	if n := cfg.Embeddings.Dimensions; n < 0 || n > maxDimensions {
		return nil, fmt.Errorf("embeddings.dimensions: must be 1 to %d, not %d", maxDimensions, n)
	}
	set := &ruleset{cfg: cfg, defaultRule: defaultRule, synonyms: synonymsOf(cfg.Embeddings.Synonyms)}
	for i, rule := range cfg.Rules {
		compiled, err := compileRule(i, rule)
		if err != nil {
			return nil, fmt.Errorf("rules[%d].%w", i, err)
		}
		set.rules = append(set.rules, compiled)
	}
	return set, nil
}

func compileRule(index int, rule Rule) (*compiledRule, error) {
	if err := rule.validate(); err != nil {
		return nil, err
	}
	compiled := &compiledRule{Rule: rule, index: index}
	var err error
	if rule.When.Matches != "" {
		if compiled.matches, err = regexp.Compile(rule.When.Matches); err != nil {
			return nil, fmt.Errorf("when.matches: %w", err)
		}
	}
	text := rule.Reply.Text
	if text == nil && len(rule.Reply.ToolCalls) == 0 {
		text = new(defaultText)
	}
	if text != nil {
		if compiled.text, err = parseTemplate("reply.text", *text); err != nil {
			return nil, err
		}
	}
	if rule.Reply.Reasoning != nil {
		if compiled.reasoning, err = parseTemplate("reply.reasoning", *rule.Reply.Reasoning); err != nil {
			return nil, err
		}
	}
	for i, call := range rule.Reply.ToolCalls {
		arguments := "{}"
		if call.Arguments != nil {
			arguments = *call.Arguments
		}
		parsed, err := parseTemplate(fmt.Sprintf("reply.toolCalls[%d].arguments", i), arguments)
		if err != nil {
			return nil, err
		}
		compiled.arguments = append(compiled.arguments, parsed)
	}
	return compiled, nil
}

// parseTemplate parses a template and renders it once with sampleView.
func parseTemplate(field, text string) (*template.Template, error) {
	parsed, err := template.New(field).Funcs(functions).Parse(text)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", field, err)
	}
	if _, err := render(parsed, sampleView()); err != nil {
		return nil, fmt.Errorf("%s: must render for a request of one user message: %w", field, err)
	}
	return parsed, nil
}

// render executes a template; a nil template renders no text.
func render(t *template.Template, v View) (string, error) {
	if t == nil {
		return "", nil
	}
	var out strings.Builder
	if err := t.Execute(&out, v); err != nil {
		if execErr, ok := errors.AsType[template.ExecError](err); ok {
			err = execErr.Err
		}
		return "", err
	}
	return out.String(), nil
}

// match returns the first rule that applies to a request, and counts the match.
func (s *ruleset) match(v View) *compiledRule {
	for _, rule := range s.rules {
		if rule.holds(v) && rule.take() {
			return rule
		}
	}
	return s.defaultRule
}

// holds reports whether every condition of the rule holds for the request.
func (r *compiledRule) holds(v View) bool {
	contains := func(want string) func(string) bool {
		return func(text string) bool { return strings.Contains(text, want) }
	}
	w := r.When
	return w.Embeddings == v.embeddings && v.Model == cmp.Or(w.Model, v.Model) &&
		strings.Contains(v.User, w.Contains) &&
		(r.matches == nil || r.matches.MatchString(v.User)) &&
		valueOr(w.ToolMessages, v.ToolMessages) == v.ToolMessages &&
		valueOr(w.HasTools, len(v.Tools) > 0) == (len(v.Tools) > 0) &&
		cmp.Or(w.ResponseFormat, v.ResponseFormat) == v.ResponseFormat &&
		(w.SystemContains == "" || slices.ContainsFunc(v.System, contains(w.SystemContains))) &&
		(w.AnyContains == "" || slices.ContainsFunc(v.Messages, func(m Message) bool {
			return strings.Contains(m.Content, w.AnyContains)
		}))
}

// take uses up one match of the rule and reports whether one was left.
func (r *compiledRule) take() bool {
	n := r.used.Add(1)
	return r.Times == nil || n <= *r.Times
}

// reset sets the match counts of all rules to 0.
func (s *ruleset) reset() {
	for _, rule := range s.rules {
		rule.used.Store(0)
	}
}

// tooLong returns the error for a request that exceeds the context window, with the real API's message, or nil if
// the request fits.
func (s *ruleset) tooLong(req *completionRequest) *wireError {
	limit, tokens := valueOr(s.cfg.ContextTokens, math.MaxInt), req.promptTokens()
	if tokens <= limit {
		return nil
	}
	return refuse("messages", "context_length_exceeded",
		"This model's maximum context length is %d tokens. However, your messages resulted in %d tokens. Please "+
			"reduce the length of the messages.", limit, tokens)
}

// serves reports whether a model with this name is served.
func (s *ruleset) serves(model string) bool {
	return len(s.cfg.Models) == 0 || slices.Contains(s.cfg.Models, model)
}
