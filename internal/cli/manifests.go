package cli

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/manifest"
)

// The kinds of objects, as messages name them.
const (
	kindTurn          = "Turn"
	kindAgent         = "Agent"
	kindPromptProfile = "PromptProfile"
	kindModelProvider = "ModelProvider"
	kindSecret        = "Secret"
)

// source says which Turn of which manifests is meant; the flags of render and run.
type source struct {
	env       Environment
	files     []string
	turn      string
	namespace string
	now       instant
	output    outputFormat
}

func newSource(env Environment) *source { return &source{env: env, output: outputText} }

func (s *source) addFlags(cmd *cobra.Command) {
	f := cmd.Flags()
	f.StringArrayVarP(&s.files, "filename", "f", nil,
		"file or directory of manifests, or - for standard input; may be repeated, and more may follow as arguments")
	f.StringVar(&s.turn, "turn", "", "Turn to take, as NAME or NAMESPACE/NAME; needed where the manifests hold several")
	f.StringVarP(&s.namespace, "namespace", "n", "default", "namespace of objects that name none")
	f.Var(&s.now, "now", "time that the prompt and the record speak of; default: the time it is")
	f.VarP(&s.output, "output", "o", "output format")
}

// clock returns the time of day, or the fixed time of --now.
func (s *source) clock() func() time.Time {
	if s.now.IsZero() {
		return s.env.Now
	}
	return func() time.Time { return s.now.Time }
}

// project is a Turn with the objects it refers to, as far as the manifests hold them.
type project struct {
	set     *manifest.Set
	turn    *v1alpha1.Turn
	agent   *v1alpha1.Agent
	profile *v1alpha1.PromptProfile
}

// load reads the manifests and finds the Turn, its Agent and the Agent's PromptProfile. Arguments are more paths, so that
// a shell may expand -f *.yaml.
func (s *source) load(ctx context.Context, args []string) (*project, error) {
	if len(s.files) == 0 {
		return nil, errors.New("failed to find the manifests: name a file, a directory or - with -f")
	}
	set, err := manifest.Load(ctx, slices.Concat(s.files, args), manifest.Options{Stdin: s.env.In, Namespace: s.namespace})
	if err != nil {
		return nil, fail(ExitUsage, err)
	}
	for _, line := range set.Ignored {
		s.env.tell("note: %s", line)
	}
	p := &project{set: set}
	if p.turn, err = set.Turn(s.turn); err != nil {
		return nil, fail(ExitUsage, fmt.Errorf("--turn: %w", err))
	}
	var ok bool
	ref := p.turn.Spec.AgentRef.Name
	if p.agent, ok = set.Agent(p.turn.Namespace, ref); !ok {
		return nil, fail(ExitFailed, p.missing(kindTurn, p.turn.Name, "spec.agentRef.name", kindAgent, ref))
	}
	ref = p.agent.Spec.PromptProfileRef.Name
	if p.profile, ok = set.PromptProfile(p.turn.Namespace, ref); !ok {
		return nil, fail(ExitFailed, p.missing(kindAgent, p.agent.Name, "spec.promptProfileRef.name", kindPromptProfile, ref))
	}
	return p, nil
}

// problem returns an error about a field of one of the Turn's objects, with the place it was read from.
func (p *project) problem(kind, name, field, message string) *manifest.Error {
	e := &manifest.Error{Kind: kind, Namespace: p.turn.Namespace, Name: name, Field: field, Message: message}
	e.File, e.Line = p.set.Origin(kind, p.turn.Namespace, name)
	return e
}

// missing returns the error for a reference to an object that the manifests do not hold.
func (p *project) missing(kind, name, field, wantKind, want string) *manifest.Error {
	return p.problem(kind, name, field, fmt.Sprintf("%s %q is not in the manifests, which hold %s: correct the name, or name its file with -f too",
		wantKind, p.turn.Namespace+"/"+want, p.held(wantKind)))
}

// mostListed bounds the names that a message lists.
const mostListed = 10

// held lists what the manifests hold of a kind.
func (p *project) held(kind string) string {
	names := p.set.Names(kind)
	more := ""
	if n := len(names) - mostListed; n > 0 {
		more = fmt.Sprintf(" and %d more", n)
	}
	if len(names) == 0 {
		return "none"
	}
	return strings.Join(names[:min(len(names), mostListed)], ", ") + more
}

// located adds the object and its file to a message of the engine, which begins with the kind and the field.
func (p *project) located(message string) error {
	kind, rest, _ := strings.Cut(message, " ")
	name, ok := map[string]string{kindTurn: p.turn.Name, kindAgent: p.agent.Name, kindPromptProfile: p.profile.Name}[kind]
	if !ok || !strings.HasPrefix(rest, "spec") {
		return errors.New(message)
	}
	return p.problem(kind, name, "", rest)
}

// title names the Turn.
func (p *project) title() string { return kindTurn + " " + p.turn.Namespace + "/" + p.turn.Name }
