package translate

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"slices"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/fairgate"
	"github.com/capstan-dev/capstan/internal/redact"
	"github.com/capstan-dev/capstan/internal/runtime/model"
	"github.com/capstan-dev/capstan/internal/runtime/prepare"
	"github.com/capstan-dev/capstan/internal/runtime/prompt"
	"github.com/capstan-dev/capstan/internal/runtime/shared"
	"github.com/capstan-dev/capstan/internal/runtime/turn"
	"github.com/capstan-dev/capstan/internal/runtime/turncontext"
)

// sharedRules has the compiled rules of Agents by the digest of their JSON, because thousands of Turns of one Agent may
// run at the same time.
var sharedRules shared.Values[[sha256.Size]byte, redact.Rules]

// Rules returns the redaction rules of an Agent. Callers that hold them at the same time share them. It returns an
// *invalid.Error for a rule that cannot be used. The compilation waits for the turn of the context's namespace, because
// large rules take many milliseconds: see fairgate.AcquireProcessor.
func Rules(ctx context.Context, a *v1alpha1.Agent) (*redact.Rules, error) {
	r := a.Spec.Redaction
	if r == nil {
		return nil, nil //nolint:nilnil // because nil rules remove nothing
	}
	source, err := json.Marshal(r)
	if err != nil {
		return nil, fmt.Errorf("failed to encode the redaction rules: %w", err)
	}
	key := sha256.Sum256(source)
	if held := sharedRules.Get(key); held != nil {
		return held, nil
	}
	defer fairgate.AcquireProcessor(ctx, fairgate.Large)()
	if held := sharedRules.Get(key); held != nil { // another caller has compiled them meanwhile
		return held, nil
	}
	patterns := make([]redact.PatternRule, 0, len(r.Patterns))
	for _, p := range r.Patterns {
		patterns = append(patterns, redact.PatternRule{Name: p.Name, Pattern: p.Pattern, Replacement: p.Replacement})
	}
	rules, err := redact.NewRules("Agent spec.redaction", patterns, r.JSONPaths)
	if err != nil {
		return nil, err
	}
	return sharedRules.Of(key, rules), nil
}

// Redaction returns the redaction of a Turn of an Agent, which applies the rules of the Agent. It also applies
// credentials, which removes the credentials of the namespace from a text. credentials may be nil. Redaction returns an
// *invalid.Error for a rule that cannot be used.
func Redaction(ctx context.Context, a *v1alpha1.Agent, credentials func(string) string) (*redact.TurnRedactor, error) {
	rules, err := Rules(ctx, a)
	if err != nil {
		return nil, err
	}
	return redact.NewTurnRedactor(ctx, rules, credentials), nil
}

// redactInput applies a redaction to the texts of an input whose authors are not trusted: those of the Turn, and all
// contributions. Other texts of the profile and the Agent are not changed, even if they come from ConfigMaps.
func redactInput(in *prepare.Input, r *redact.TurnRedactor) {
	t := &in.Turn
	for _, text := range []*string{&t.Message, &t.Summary, &t.Skill, &t.Data} {
		*text = r.Remove(*text)
	}
	for name, value := range t.Parameters {
		t.Parameters[name] = r.Remove(value)
	}
	for i := range t.History {
		redactHistoryMessage(&t.History[i], r)
	}
	t.Preferences = slices.Clone(t.Preferences) // the Turn's object must not change
	for i := range t.Preferences {
		t.Preferences[i] = r.Remove(t.Preferences[i])
	}
	for i := range t.Facts {
		t.Facts[i].Text, t.Facts[i].Source = r.Remove(t.Facts[i].Text), r.Remove(t.Facts[i].Source)
	}
	for i := range t.Memories {
		t.Memories[i].Text = r.Remove(t.Memories[i].Text)
	}
	for i := range t.Enrichments {
		e := &t.Enrichments[i]
		e.Title, e.Content, e.Source = r.Remove(e.Title), r.Remove(e.Content), r.Remove(e.Source)
	}
	redactShaping(&t.Shaping, r)
	lists := [][]prompt.Contribution{t.Contributions, in.Agent.Contributions, in.Profile.Contributions}
	for i := range in.Profile.ForModels {
		lists = append(lists, in.Profile.ForModels[i].Contributions)
	}
	for _, all := range lists {
		for i := range all {
			all[i].Text = r.Remove(all[i].Text)
		}
	}
	if t.Session != nil {
		s := new(*t.Session)
		t.Session, s.UnresolvedQuestions = s, slices.Clone(s.UnresolvedQuestions)
		s.Subject, s.State, s.Summary = r.Remove(s.Subject), r.Remove(s.State), r.Remove(s.Summary)
		for i := range s.UnresolvedQuestions {
			s.UnresolvedQuestions[i] = r.Remove(s.UnresolvedQuestions[i])
		}
	}
}

// redactShaping applies a redaction to the shaping of a Turn.
func redactShaping(l *turncontext.Layer, r *redact.TurnRedactor) {
	l.Mode, l.Expression.Tone = r.Remove(l.Mode), r.Remove(l.Expression.Tone)
	for i := range l.Overlays {
		o := &l.Overlays[i]
		o.Text, o.Source = r.Remove(o.Text), r.Remove(o.Source)
	}
	for i := range l.Guardrails {
		g := &l.Guardrails[i]
		g.Rule, g.Source = r.Remove(g.Rule), r.Remove(g.Source)
	}
}

// redactHistoryMessage applies a redaction to a message of the history, in the same way as to a reply. The calls of the
// message keep their IDs, because the messages with the results of these calls name the same IDs.
func redactHistoryMessage(h *prepare.HistoryMessage, r *redact.TurnRedactor) {
	reply := model.Reply{Text: h.Content, ToolCalls: slices.Clone(h.ToolCalls), ProviderData: h.ProviderData}
	reply.Redact(r.Remove)
	for i := range reply.ToolCalls {
		reply.ToolCalls[i].ID = h.ToolCalls[i].ID
	}
	h.Content, h.ToolCalls, h.ProviderData = reply.Text, reply.ToolCalls, reply.ProviderData
}

// maxRedactionsBytes bounds the counts of redactions in a status, in bytes of JSON.
const maxRedactionsBytes = 4 << 10

// Redactions returns the number of matches of each rule in a Turn that has ended. If the counts are too long together
// for a status, it leaves out the last ones. The journal has all.
func Redactions(r *turn.Result) []v1alpha1.RedactionCount {
	var all []v1alpha1.RedactionCount
	size := len("[]")
	for _, c := range r.Redactions {
		count := v1alpha1.RedactionCount{Rule: c.Rule, Matches: c.Matches}
		text, err := json.Marshal(count)
		if size += len(text) + len(","); err != nil || size > maxRedactionsBytes {
			break
		}
		all = append(all, count)
	}
	return all
}
