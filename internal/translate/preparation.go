package translate

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"time"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/redact"
	"github.com/capstan-dev/capstan/internal/runtime/canonical"
	"github.com/capstan-dev/capstan/internal/runtime/invalid"
	"github.com/capstan-dev/capstan/internal/runtime/judge"
	"github.com/capstan-dev/capstan/internal/runtime/model"
	"github.com/capstan-dev/capstan/internal/runtime/outputpolicy"
	"github.com/capstan-dev/capstan/internal/runtime/prepare"
	"github.com/capstan-dev/capstan/internal/runtime/prompt"
	"github.com/capstan-dev/capstan/internal/runtime/turncontext"
	"github.com/capstan-dev/capstan/internal/runtime/zone"
)

// Objects are the objects from which the messages of a Turn are made.
type Objects struct {
	Turn    *v1alpha1.Turn
	Agent   *v1alpha1.Agent
	Profile *v1alpha1.PromptProfile
	// ConfigMaps reads the ConfigMaps to which the Turn refers. AgentConfigMaps and ProfileConfigMaps read those to
	// which the Agent and the profile refer, which may be in other namespaces. If AgentConfigMaps or ProfileConfigMaps
	// is nil, ConfigMaps is used instead.
	ConfigMaps, AgentConfigMaps, ProfileConfigMaps ConfigMaps
	// ManagerSkills are available to every Agent.
	ManagerSkills []prepare.Skill
	// Session is the Session of the Turn, or nil if the Turn has none. The engine reads the history itself.
	Session *v1alpha1.Session
	// Redaction removes texts of the Turn and of contributions. If it is nil, the rules of the Agent apply, and nothing
	// is counted.
	Redaction *redact.TurnRedactor
}

// Preparation returns the values from which the messages of a Turn are made. now is the time that the prompt states. It
// returns an *invalid.Error for an input that cannot be used, such as an unknown time zone, a spec that is too large or
// a ConfigMap that does not exist. Any other error means that a ConfigMap could not be read.
func Preparation(ctx context.Context, o Objects, now time.Time) (prepare.Input, error) {
	if err := o.Turn.Spec.CheckSize(); err != nil {
		return prepare.Input{}, invalid.Field("Turn spec", "%s", err)
	}
	loc, err := Location(o.Agent)
	if err != nil {
		return prepare.Input{}, err
	}
	in := prepare.Input{ManagerSkills: o.ManagerSkills, Now: now.In(loc)}
	if o.AgentConfigMaps == nil {
		o.AgentConfigMaps = o.ConfigMaps
	}
	if in.Agent, err = Agent(ctx, o.Agent, o.AgentConfigMaps); err != nil {
		return prepare.Input{}, err
	}
	if o.ProfileConfigMaps == nil {
		o.ProfileConfigMaps = o.ConfigMaps
	}
	if in.Profile, err = Profile(ctx, o.Profile, o.ProfileConfigMaps); err != nil {
		return prepare.Input{}, err
	}
	in.Turn, err = request(ctx, o.Turn, o.ConfigMaps)
	addSession(&in.Turn, o.Session)
	if err != nil {
		return in, err
	}
	if o.Redaction == nil {
		if o.Redaction, err = Redaction(ctx, o.Agent, nil); err != nil {
			return prepare.Input{}, err
		}
	}
	redactInput(&in, o.Redaction)
	return in, nil
}

// Location returns the agent's time zone. It returns an *invalid.Error for a name that is not in the time zone
// database.
func Location(a *v1alpha1.Agent) (*time.Location, error) {
	name := a.Spec.TimeZone
	if name == "" || name == "Local" {
		name = "UTC"
	}
	loc, err := zone.Load(name)
	if err != nil || a.Spec.TimeZone == "Local" {
		return nil, invalid.Field("Agent spec.timeZone",
			"%q is not an IANA time zone: use a name such as Europe/Berlin or UTC", a.Spec.TimeZone)
	}
	return loc, nil
}

// Agent returns the part of an Agent from which its prompt is made.
func Agent(ctx context.Context, a *v1alpha1.Agent, maps ConfigMaps) (prepare.Agent, error) {
	out := prepare.Agent{
		Name: a.Name, Description: a.Spec.Description, Instructions: a.Spec.Instructions, Thinking: prompt.Thinking(a.Spec.Thinking),
		MaxMemories: MaxMemories(a), AllowsTrusted: a.Spec.ContributionTrust == v1alpha1.TrustTrusted,
	}
	if s := a.Spec.Skills; s != nil {
		out.Loaded, out.Available = s.Loaded, s.Available
	}
	err := maps.readSource(ctx, "Agent spec.instructionsFrom", a.Spec.InstructionsFrom, &out.Instructions, &out.InstructionsFrom)
	if err != nil {
		return out, err
	}
	out.Contributions, err = contributions(ctx, "Agent spec.contributions", a.Spec.Contributions, maps)
	return out, err
}

// Profile returns a PromptProfile in the form of the engine.
func Profile(ctx context.Context, p *v1alpha1.PromptProfile, maps ConfigMaps) (prepare.Profile, error) {
	s := p.Spec
	out := prepare.Profile{
		Name: p.Name, ID: s.ID, Version: s.Version, Generation: p.Generation, Tags: s.Tags, Variables: variables(s.Variables),
		Mode: prompt.Mode(s.Mode), Identity: &turncontext.Identity{}, Instructions: s.Instructions, Sections: s.Sections,
		StablePrefix: s.StablePrefix, DynamicSuffix: s.DynamicSuffix,
		Overlays: overlays(s.Overlays), Guardrails: guardrails(s.Guardrails), Shaping: shaping(s.Shaping),
	}
	if id := s.Identity; id != nil {
		out.Identity = &turncontext.Identity{
			AssistantName: id.AssistantName, SystemPrompt: id.SystemPrompt,
			DeveloperPrompt: id.DeveloperPrompt,
		}
		if t := id.Traits; t != nil {
			out.Identity.Traits = turncontext.Traits{
				Voice: string(t.Voice), Formality: string(t.Formality), Proactivity: turncontext.Level(t.Proactivity),
				RiskPosture: string(t.RiskPosture),
			}
		}
	}
	if o := s.Overrides; o != nil {
		out.Behavior, out.ToolsText = o.Behavior, o.Tools
	}
	out.ForModels = forModels(s.ForModels)
	out.OutputPolicies = outputPolicies(s.OutputPolicy)
	err := maps.readSource(ctx, "PromptProfile spec.instructionsFrom", s.InstructionsFrom, &out.Instructions, &out.InstructionsFrom)
	if err != nil {
		return out, err
	}
	if id := s.Identity; id != nil {
		err = maps.readSource(ctx, "PromptProfile spec.identity.systemPromptFrom", id.SystemPromptFrom,
			&out.Identity.SystemPrompt, &out.SystemPromptFrom)
		if err != nil {
			return out, err
		}
	}
	if out.Skills, err = skills(ctx, s.Skills, maps); err != nil {
		return out, err
	}
	out.Contributions, err = contributions(ctx, "PromptProfile spec.contributions", s.Contributions, maps)
	return out, err
}

func forModels(list []v1alpha1.ModelTexts) []prepare.ModelTexts {
	var out []prepare.ModelTexts
	for _, m := range list {
		texts := prepare.ModelTexts{Models: m.Models}
		if o := m.Overrides; o != nil {
			texts.Behavior, texts.ToolsText = o.Behavior, o.Tools
		}
		for _, c := range m.Contributions {
			texts.Contributions = append(texts.Contributions,
				prompt.Contribution{Name: c.Name, Text: c.Text, Trusted: c.Trust == v1alpha1.TrustTrusted})
		}
		out = append(out, texts)
	}
	return out
}

func outputPolicies(list []v1alpha1.OutputPolicy) []outputpolicy.Policy {
	var out []outputpolicy.Policy
	for _, p := range list {
		policy := outputpolicy.Policy{
			Name: p.Name, Expression: p.Expression, Prompt: p.Prompt, Message: p.Message,
			OnViolation: cmp.Or(outputpolicy.Action(p.OnViolation), outputpolicy.Fail),
		}
		if policy.OnViolation == outputpolicy.Retry {
			policy.MaxRetries = v1alpha1.DefaultPolicyRetries
			if p.MaxRetries != nil {
				policy.MaxRetries = int(*p.MaxRetries)
			}
		}
		out = append(out, policy)
	}
	return out
}

// Judges returns the judges of a PromptProfile in the form of the engine.
func Judges(p *v1alpha1.PromptProfile) ([]judge.Judge, error) {
	var all []judge.Judge
	for i := range p.Spec.Judges {
		spec := &p.Spec.Judges[i]
		j := judge.Judge{Name: spec.Name, Kind: judge.Kind(spec.Type), Prompt: spec.Prompt}
		if ref := spec.ModelRef; ref != nil {
			j.Provider, j.Model = ref.ProviderRef.Name, ref.Model
		}
		var err error
		if j.Threshold, err = judge.ParseScore(cmp.Or(spec.Threshold, v1alpha1.DefaultJudgeThreshold)); err != nil {
			return nil, invalid.Field(fmt.Sprintf("PromptProfile spec.judges[%d].threshold", i), "%s", err)
		}
		all = append(all, j)
	}
	return all, nil
}

// addSession adds the name and the subject of the Turn's Session to the caller's description of the conversation.
func addSession(t *prepare.Turn, s *v1alpha1.Session) {
	if s == nil {
		return
	}
	if t.Session == nil {
		t.Session = &turncontext.Session{}
	}
	t.Session.ID, t.Session.Subject = s.Name, s.Spec.Subject
}

func variables(list []v1alpha1.Variable) []prepare.Variable {
	var out []prepare.Variable
	for _, v := range list {
		variable := prepare.Variable{Name: v.Name, Required: v.Required, Trusted: v.Trust == v1alpha1.TrustTrusted}
		if v.Default != nil {
			variable.Default = *v.Default
		}
		out = append(out, variable)
	}
	return out
}

// request returns the spec of a Turn in the form of the engine.
func request(ctx context.Context, t *v1alpha1.Turn, maps ConfigMaps) (prepare.Turn, error) {
	s := t.Spec
	out := prepare.Turn{
		Name: t.Name, Namespace: t.Namespace, Parameters: map[string]string{}, Mode: prompt.Mode(s.PromptMode),
		Shaping: shaping(s.Shaping),
	}
	var err error
	if out.Message, err = Message(ctx, t, maps); err != nil {
		return out, err
	}
	out.Shaping.Guardrails = guardrails(s.Guardrails)
	if s.Depth != nil {
		out.Depth = int(*s.Depth)
	}
	for i := range s.Parameters {
		p := &s.Parameters[i]
		if out.Parameters[p.Name], err = parameter(ctx, fmt.Sprintf("Turn spec.parameters[%d]", i), p, maps); err != nil {
			return out, err
		}
	}
	for _, h := range s.History {
		role := model.RoleUser
		if h.Role == v1alpha1.HistoryRoleAssistant {
			role = model.RoleAssistant
		}
		out.History = append(out.History, prepare.HistoryMessage{Role: role, Content: h.Content})
	}
	if s.Context == nil {
		return out, nil
	}
	err = addContext(ctx, &out, s.Context, maps)
	return out, err
}

// addContext fills in the context that the caller of a Turn has given.
func addContext(ctx context.Context, out *prepare.Turn, c *v1alpha1.TurnContext, maps ConfigMaps) (err error) {
	for _, f := range c.Facts {
		out.Facts = append(out.Facts, turncontext.Fact{ID: f.ID, Text: f.Text, Source: f.Source})
	}
	for i, m := range c.Memories {
		memory := turncontext.Memory{ID: m.ID, Text: m.Text, Scope: string(m.Scope), Freshness: string(m.Freshness)}
		if m.Relevance != nil {
			memory.Relevance, err = strconv.ParseFloat(*m.Relevance, 64)
			if r := memory.Relevance; err != nil || !(r >= 0 && r <= 1) {
				return invalid.Field(fmt.Sprintf("Turn spec.context.memories[%d].relevance", i),
					"%q must be a decimal from 0 to 1", *m.Relevance)
			}
		}
		out.Memories = append(out.Memories, memory)
	}
	for _, e := range c.Enrichments {
		out.Enrichments = append(out.Enrichments, turncontext.Enrichment{
			ID: e.ID, Kind: string(e.Kind), Source: e.Source, Title: e.Title, Content: e.Content,
			Importance: turncontext.Level(e.Importance), Audience: string(e.Audience),
		})
	}
	if s := c.Session; s != nil {
		out.Session = &turncontext.Session{
			ID: s.ID, Subject: s.Subject, State: string(s.State), Summary: s.Summary, UnresolvedQuestions: s.UnresolvedQuestions,
			Momentum: turncontext.Level(s.Momentum),
		}
	}
	out.Preferences, out.Skill = c.Preferences, c.Skill
	if c.Data != nil && len(c.Data.Raw) > 0 {
		if out.Data, err = data(c.Data.Raw); err != nil {
			return err
		}
	}
	out.Contributions, err = contributions(ctx, "Turn spec.context.contributions", c.Contributions, maps)
	return err
}

// maxDataBytes bounds the data of a Turn's context, in bytes of JSON.
const maxDataBytes = 65536

// data returns the data of a Turn's context as canonical JSON, so that the same data always makes the same prompt.
func data(raw []byte) (string, error) {
	const field = "Turn spec.context.data"
	text, err := canonical.JSON(json.RawMessage(raw))
	switch {
	case err != nil:
		return "", invalid.Field(field, "is not valid JSON: %s", err)
	case text[0] != '{':
		return "", invalid.Field(field, "must be a JSON object: put the value into a field of an object")
	case len(text) > maxDataBytes:
		return "", invalid.Field(field, "has %d bytes of JSON but may have at most %d: shorten it, or attach it as application/json",
			len(text), maxDataBytes)
	}
	return string(text), nil
}
