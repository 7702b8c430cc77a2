// Package replay prepares recorded Turns again with other objects, and replays them: the tool calls that the model
// requests are answered from the journal, and no tool is called.
package replay

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	"k8s.io/apimachinery/pkg/types"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/cli/bundle"
	"github.com/capstan-dev/capstan/internal/cli/exit"
	"github.com/capstan-dev/capstan/internal/cli/localrun"
	"github.com/capstan-dev/capstan/internal/cli/output"
	"github.com/capstan-dev/capstan/internal/cli/terminal"
	"github.com/capstan-dev/capstan/internal/manifest"
	"github.com/capstan-dev/capstan/internal/redact"
	"github.com/capstan-dev/capstan/internal/runtime/invalid"
	"github.com/capstan-dev/capstan/internal/runtime/prepare"
	"github.com/capstan-dev/capstan/internal/runtime/turn"
	"github.com/capstan-dev/capstan/internal/skillfile"
	"github.com/capstan-dev/capstan/internal/translate"
)

// Flags select the new state: the objects with which recorded Turns are prepared again.
type Flags struct {
	Env terminal.Environment
	// Files are the paths of manifests with the change. Their objects replace the objects of Manifests that have the
	// same kind, namespace and name.
	Files []string
	// Manifests are the paths of the other manifests: the Agent, its ModelProviders and Secrets.
	Manifests []string
	// Profile is the name of the PromptProfile to use. If it is empty, the profile that the Agent names is used. But if
	// Files have exactly one PromptProfile and not the Agent, that PromptProfile is used: see named.
	Profile string
	// Model is the model to ask, as MODEL or PROVIDER:MODEL. If it is empty, the Agent decides.
	Model string
	// EnvSecrets set keys of Secrets from environment variables, as [NAMESPACE/]NAME/KEY=ENVVAR.
	EnvSecrets []string
	// SkillsFile is the path of a file of skills that every Agent may load. If it is empty, the recorded skills stay.
	SkillsFile string
}

// State is the new state. It is safe for concurrent use.
type State struct {
	flags *Flags
	set   *manifest.Set
	// changed are the objects of Flags.Files.
	changed *manifest.Set
	skills  []prepare.Skill

	mu sync.Mutex
	// adapted holds the names of the Agents that adapt has changed.
	adapted map[types.NamespacedName]bool
}

// Load reads the manifests. namespace is the namespace of objects that do not name one.
func (f *Flags) Load(ctx context.Context, namespace string) (*State, error) {
	if len(f.Files)+len(f.Manifests) == 0 {
		return nil, errors.New("there are no manifests: set -f to the changed manifests, and --manifests to the others")
	}
	all := slices.Concat(f.Files, f.Manifests)
	if i := slices.Index(all, "-"); i >= 0 && slices.Contains(all[i+1:], "-") {
		return nil, errors.New("standard input can be read only once: name - once")
	}
	s := &State{flags: f, adapted: map[types.NamespacedName]bool{}}
	var err error
	if s.changed, err = f.read(ctx, f.Files, namespace); err != nil {
		return nil, err
	}
	base, err := f.read(ctx, f.Manifests, namespace)
	if err != nil {
		return nil, err
	}
	if s.set = s.changed; base != nil {
		s.set = base
		if s.changed != nil {
			s.set = s.changed.Over(base)
		}
	}
	for _, spec := range f.EnvSecrets {
		if err := s.set.SetSecretFromEnv(spec, f.Env.LookupEnv); err != nil {
			return nil, fmt.Errorf("--env-secret: %w", err)
		}
	}
	if f.SkillsFile != "" {
		if s.skills, err = skillfile.Load(f.SkillsFile); err != nil {
			return nil, fmt.Errorf("--skills-file: %w", err)
		}
	}
	return s, nil
}

// read reads manifests. It returns nil if there are no paths.
func (f *Flags) read(ctx context.Context, paths []string, namespace string) (*manifest.Set, error) {
	if len(paths) == 0 {
		return nil, nil //nolint:nilnil // because there is nothing to read
	}
	source := bundle.Source{Env: f.Env, Namespace: namespace}
	return source.Manifests(ctx, paths)
}

// Prepared is a recorded Turn with the objects of the new state.
type Prepared struct {
	*turn.Recording
	bundle *bundle.Bundle
	state  *State
}

// For finds the objects for a recorded Turn.
func (s *State) For(r *turn.Recording) (*Prepared, error) {
	ref := v1alpha1.ParseSharedReference(r.Agent)
	key := ref.Key(r.Namespace)
	p := &Prepared{Recording: r, state: s}
	t := translate.RecordedTurn(r, ref)
	agent, ok := s.set.Agent(key.Namespace, key.Name)
	if !ok {
		profile, err := s.profileFor(r, key)
		if err != nil {
			return nil, exit.WithCode(exit.Failed, err)
		}
		p.bundle = bundle.ForProfile(s.set, t, profile, s.skills, bundle.ManifestsFlag)
		return p, nil
	}
	if err := s.adapt(agent, key); err != nil {
		return nil, exit.WithCode(exit.Failed, err)
	}
	var err error
	if p.bundle, err = bundle.ForTurn(s.set, t, s.skills, bundle.ManifestsFlag); err != nil {
		return nil, err
	}
	t.Spec.Model = recordedModel(r, p.bundle.Agent)
	return p, nil
}

// recordedModel returns the name of the recorded model in the chain of an Agent, or an empty text if the chain does not
// have the model. It is preferred, because prompts for different models always differ. The Agent must be that of the
// bundle: if it is shared from another namespace, its references and the recorded name both include the namespace.
func recordedModel(r *turn.Recording, a *v1alpha1.Agent) string {
	provider := v1alpha1.ParseSharedReference(r.Prepared.Provider).Key(r.Namespace)
	for _, m := range a.Spec.Models {
		if m.ProviderRef.Key(r.Namespace) == provider && m.Model == r.Prepared.Model {
			return m.ProviderRef.String() + ":" + m.Model
		}
	}
	return ""
}

// profileFor returns the profile for a Turn whose Agent is not in the manifests.
func (s *State) profileFor(r *turn.Recording, agent types.NamespacedName) (*v1alpha1.PromptProfile, error) {
	key, named := s.named(agent)
	if !named {
		key = types.NamespacedName{Namespace: agent.Namespace, Name: r.Input.Profile.Name}
	}
	profile, ok := s.set.PromptProfile(key.Namespace, key.Name)
	if !ok {
		return nil, fmt.Errorf("nothing would change: the manifests have neither Agent %q nor PromptProfile %q, but %s: name the "+
			"PromptProfile with --profile, or add the Agent", agent, key, listed(s.set))
	}
	return profile, nil
}

// listed returns the names of the Agents and the PromptProfiles of a set.
func listed(set *manifest.Set) string {
	var all []string
	for _, kind := range []string{"Agent", "PromptProfile"} {
		names := set.Names(kind)
		for _, name := range names[:min(len(names), output.MostListed)] {
			all = append(all, kind+" "+name)
		}
	}
	if len(all) == 0 {
		return "no Agent and no PromptProfile"
	}
	return strings.Join(all, ", ")
}

// named returns the name of the profile that the flags select: the profile of --profile. Without --profile, it is the
// profile of -f, if -f has exactly one profile and not the Agent. Otherwise named returns false, and the profile that
// the Agent names is used.
func (s *State) named(agent types.NamespacedName) (types.NamespacedName, bool) {
	if s.flags.Profile != "" {
		return types.NamespacedName{Namespace: agent.Namespace, Name: s.flags.Profile}, true
	}
	if s.changed == nil {
		return types.NamespacedName{}, false
	}
	if _, given := s.changed.Agent(agent.Namespace, agent.Name); given {
		return types.NamespacedName{}, false
	}
	names := s.changed.Names("PromptProfile")
	if len(names) != 1 {
		return types.NamespacedName{}, false
	}
	namespace, name, _ := strings.Cut(names[0], "/")
	return types.NamespacedName{Namespace: namespace, Name: name}, true
}

// adapt changes an Agent for replays. The Agent gets the selected profile and model. It loses its tools, because the
// replay uses the recorded results of tools, and its embeddings, because the recorded tools and memories need no
// selection.
func (s *State) adapt(a *v1alpha1.Agent, key types.NamespacedName) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.adapted[key] {
		return nil
	}
	if profile, named := s.named(key); named {
		if _, ok := s.set.PromptProfile(profile.Namespace, profile.Name); !ok { // it is not the only profile of -f
			return fmt.Errorf("--profile: %s", bundle.NotFound(s.set, "PromptProfile", profile, bundle.ManifestsFlag))
		}
		a.Spec.PromptProfileRef = v1alpha1.SharedReference{Name: profile.Name}
		if profile.Namespace != key.Namespace {
			a.Spec.PromptProfileRef.Namespace = profile.Namespace
		}
	}
	if s.flags.Model != "" {
		chosen, err := chosenModel(a, s.flags.Model)
		if err != nil {
			return err
		}
		a.Spec.Models = []v1alpha1.ModelReference{chosen}
	}
	a.Spec.Tools, a.Spec.Embeddings = nil, nil
	s.adapted[key] = true
	return nil
}

// chosenModel returns the model that --model names. If the Agent's chain has this model, the result includes its
// parameters; otherwise it is a model of the named ModelProvider, without parameters. A ModelProvider in the namespace
// of the Agent may be named with and without the namespace.
func chosenModel(a *v1alpha1.Agent, name string) (v1alpha1.ModelReference, error) {
	wanted := prepare.ParseModelName(name)
	provider := v1alpha1.ParseSharedReference(wanted.Provider).Key(a.Namespace)
	for _, m := range a.Spec.Models {
		if m.Model == wanted.Model && (wanted.Provider == "" || provider == m.ProviderRef.Key(a.Namespace)) {
			return m, nil
		}
	}
	if wanted.Provider == "" || wanted.Model == "" {
		return v1alpha1.ModelReference{}, fmt.Errorf("--model: Agent %q has no model %q: name it as PROVIDER:MODEL", a.Name, name)
	}
	return v1alpha1.ModelReference{ProviderRef: v1alpha1.ParseSharedReference(wanted.Provider), Model: wanted.Model}, nil
}

// Prompt makes the prompt of the Turn with the new objects, for the model that would be asked first. Its error names
// the object and the field.
func (p *Prepared) Prompt(ctx context.Context) (*prepare.Prepared, error) {
	in, err := translate.PrepareAgain(ctx, &p.Input, p.bundle.ObjectsOfProfile())
	if err == nil {
		err = checkVariables(&in)
	}
	if err == nil {
		in.Provider, in.Model, err = p.model()
	}
	var made *prepare.Prepared
	if err == nil {
		made, err = prepare.Prepare(in)
	}
	if err != nil {
		return nil, exit.WithCode(exit.Failed, p.bundle.Located(err.Error()))
	}
	return made, nil
}

// checkVariables returns an error about the PromptProfile if its variables do not fit the parameters of the recorded
// Turn. The error that the preparation would return is about the Turn, which cannot change any more.
func checkVariables(in *prepare.Input) error {
	declared := map[string]bool{}
	for i, v := range in.Profile.Variables {
		declared[v.Name] = true
		if _, given := in.Turn.Parameters[v.Name]; v.Required && !given {
			return invalid.Field(fmt.Sprintf("PromptProfile spec.variables[%d].required", i), "the recorded Turn has no value for %q: "+
				"give the variable a default, so that old Turns can be prepared again", v.Name)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(in.Turn.Parameters)) {
		if !declared[name] {
			return invalid.Field("PromptProfile spec.variables", "must declare %q, for which the recorded Turn has a value", name)
		}
	}
	return nil
}

// model returns the provider and the name of the model that would be asked first.
func (p *Prepared) model() (provider, name string, err error) {
	agent := p.bundle.Agent
	if agent == nil {
		old := p.Prepared
		m := prepare.ModelName{Provider: old.Provider, Model: old.Model}
		if wanted := p.state.flags.Model; wanted != "" {
			if m = prepare.ParseModelName(wanted); m.Provider == "" {
				m.Provider = old.Provider
			}
		}
		return m.Provider, m.Model, nil
	}
	index, err := translate.FirstModel(p.bundle.Turn, agent)
	if err != nil {
		return "", "", err
	}
	first := agent.Spec.Models[index]
	return first.ProviderRef.String(), first.Model, nil
}

// Profile returns the name and the version of the PromptProfile.
func (p *Prepared) Profile() (name, version string) {
	return p.bundle.Profile.Name, p.bundle.Profile.Spec.Version
}

// Redaction returns the redaction rules of the new Agent for texts of the recorded Turn, because some of the rules may
// be newer than the recorded texts. It returns nil, which removes nothing, if the Agent is not in the manifests.
func (p *Prepared) Redaction(ctx context.Context) (*redact.TurnRedactor, error) {
	if p.bundle.Agent == nil {
		return nil, nil //nolint:nilnil // because a nil redaction removes nothing
	}
	rules, err := translate.Redaction(ctx, p.bundle.Agent, nil)
	if err != nil {
		return nil, exit.WithCode(exit.Failed, p.bundle.Located(err.Error()))
	}
	return rules, nil
}

// Batch opens the models of the Agent and of its judges, to replay Turns of the same Agent. The caller must close it.
func (p *Prepared) Batch(ctx context.Context) (*localrun.Batch, error) {
	if p.bundle.Agent == nil {
		return nil, exit.WithCode(exit.Failed, fmt.Errorf(
			"to ask a model, the manifests must contain the Agent, its ModelProviders and their Secrets; the manifests have no Agent %q: "+
				"add its file with --manifests", p.Agent))
	}
	if p.state.flags.Model != "" { // adapt has set the model
		key := p.bundle.Agent.Spec.Models[0].ProviderRef.Key(p.bundle.Agent.Namespace)
		if _, ok := p.state.set.ModelProvider(key.Namespace, key.Name); !ok {
			return nil, exit.WithCode(exit.Failed, fmt.Errorf("--model: %s",
				bundle.NotFound(p.state.set, "ModelProvider", key, bundle.ManifestsFlag)))
		}
	}
	o := &localrun.Options{Source: &bundle.Source{Env: p.state.flags.Env}, Approve: localrun.ApproveNone}
	return o.NewBatch(ctx, p.bundle)
}

// Replay is the result of a replayed Turn.
type Replay struct {
	Turn   *v1alpha1.Turn
	Result *turn.Result
	Calls  turn.AnswerSummary
	// Err is the error because of which a recorded result could not be read, or nil. If it is not nil, the answer says
	// nothing about the prompt.
	Err error
}

// Replay asks the models, and answers their calls from the journal.
func (p *Prepared) Replay(b *localrun.Batch) (*Replay, error) {
	answers := p.Answers()
	t, result, err := b.Replay(p.bundle, p.Recording, answers)
	if err != nil {
		return nil, err
	}
	return &Replay{t, result, answers.Summary(), answers.Err()}, nil
}
