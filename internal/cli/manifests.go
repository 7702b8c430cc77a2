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
	"github.com/capstan-dev/capstan/internal/runtime/prepare"
	"github.com/capstan-dev/capstan/internal/skillfile"
	"github.com/capstan-dev/capstan/internal/translate"
)

// The kinds of objects, as messages name them.
const (
	kindTurn          = "Turn"
	kindAgent         = "Agent"
	kindPromptProfile = "PromptProfile"
	kindModelProvider = "ModelProvider"
	kindSession       = "Session"
	kindToolServer    = "ToolServer"
	kindToolApproval  = "ToolApproval"
	kindConfigMap     = "ConfigMap"
	kindSecret        = "Secret"
)

// source says which Turn of which manifests is meant; the flags of render and run.
type source struct {
	env       Environment
	files     []string
	turn      string
	namespace string
	skills    string
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
	f.StringVar(&s.skills, "skills-file", "", "`PATH` of a YAML file of skills that every Agent may load, as the manager has them; default: none")
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
	// session of the Turn, with the UID it has here; nil if it has none.
	session *v1alpha1.Session
	// team are the Agent and all that it may hand work on to, by name.
	team map[string]*project
	// skills are available to every Agent.
	skills []prepare.Skill
	// read are the ConfigMap keys that were asked for, with their values, nil for one that is missing.
	read map[v1alpha1.ConfigMapKeyReference]*string
}

// load reads the manifests and finds the Turn, its Agent and the Agent's PromptProfile. Arguments are more paths, so that
// a shell may expand -f *.yaml.
func (s *source) load(ctx context.Context, args []string) (*project, error) {
	if len(s.files) == 0 {
		return nil, errors.New("failed to find the manifests: name a file, a directory or - with -f")
	}
	set, err := s.manifests(ctx, slices.Concat(s.files, args))
	if err != nil {
		return nil, err
	}
	var skills []prepare.Skill
	if s.skills != "" {
		if skills, err = skillfile.Load(s.skills); err != nil {
			return nil, fail(ExitUsage, fmt.Errorf("--skills-file: %w", err))
		}
	}
	return find(set, s.turn, skills)
}

// manifests reads objects, and tells which ones it leaves out.
func (s *source) manifests(ctx context.Context, paths []string) (*manifest.Set, error) {
	set, err := manifest.Load(ctx, paths, manifest.Options{Stdin: s.env.In, Namespace: s.namespace})
	if err != nil {
		return nil, fail(ExitUsage, err)
	}
	for _, line := range set.Ignored {
		s.env.tell("note: %s", line)
	}
	return set, nil
}

// find finds a Turn and what it refers to.
func find(set *manifest.Set, turn string, skills []prepare.Skill) (*project, error) {
	p := &project{set: set, skills: skills, read: map[v1alpha1.ConfigMapKeyReference]*string{}}
	var err error
	if p.turn, err = set.Turn(turn); err != nil {
		return nil, fail(ExitUsage, fmt.Errorf("--turn: %w", err))
	}
	var ok bool
	ref := p.turn.Spec.AgentRef.Name
	if p.agent, ok = set.Agent(p.turn.Namespace, ref); !ok {
		return nil, fail(ExitFailed, p.missing(kindTurn, p.turn.Name, "spec.agentRef.name", kindAgent, ref))
	}
	if err := p.findProfile(); err != nil {
		return nil, err
	}
	if ref := p.turn.Spec.SessionRef; ref != nil {
		p.session = p.conversation(ref.Name)
	}
	return p, p.assemble()
}

// objects are what the messages of the Turn are made of.
func (p *project) objects() translate.Objects {
	return translate.Objects{Turn: p.turn, Agent: p.agent, Profile: p.profile, ConfigMaps: p.configMaps, ManagerSkills: p.skills, Session: p.session}
}

// configMaps reads the ConfigMaps of the manifests, and notes what was asked for.
func (p *project) configMaps(_ context.Context, ref v1alpha1.ConfigMapKeyReference) (string, error) {
	p.read[ref] = nil
	object, ok := p.set.ConfigMap(p.turn.Namespace, ref.Name)
	if !ok {
		return "", &translate.MissingError{Reason: p.absent(kindConfigMap, ref.Name)}
	}
	if _, binary := object.BinaryData[ref.Key]; binary {
		return "", &translate.MissingError{Reason: fmt.Sprintf("key %q of ConfigMap %q is in its binaryData: put the text into data", ref.Key, ref.Name)}
	}
	value, err := translate.ConfigMapValue(ref, object.Data)
	if err != nil {
		return "", err
	}
	p.read[ref] = &value
	return value, nil
}

// problem returns an error about a field of one of the Turn's objects, with the place it was read from.
func (p *project) problem(kind, name, field, message string) *manifest.Error {
	e := &manifest.Error{Kind: kind, Namespace: p.turn.Namespace, Name: name, Field: field, Message: message}
	e.File, e.Line = p.set.Origin(kind, p.turn.Namespace, name)
	return e
}

// missing returns the error for a reference to an object that the manifests do not hold.
func (p *project) missing(kind, name, field, wantKind, want string) *manifest.Error {
	return p.problem(kind, name, field, p.absent(wantKind, want))
}

// absent says that the manifests do not hold an object.
func (p *project) absent(kind, name string) string {
	return fmt.Sprintf("%s %q is not in the manifests, which hold %s: correct the name, or name its file with -f too",
		kind, p.turn.Namespace+"/"+name, p.held(kind))
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

// located adds the object and its file to a message of the engine, which begins with the kind and the field. The tools
// are the Agent's, whose list of them the engine calls by no kind.
func (p *project) located(message string) error {
	if strings.HasPrefix(message, "tools[") {
		message = kindAgent + " " + message
	}
	kind, rest, _ := strings.Cut(message, " ")
	name, ok := map[string]string{kindTurn: p.turn.Name, kindAgent: p.agent.Name, kindPromptProfile: p.profile.Name}[kind]
	if !ok || !isField(rest) {
		return errors.New(message)
	}
	return p.problem(kind, name, "", rest)
}

// isField reports whether a text begins with the path of a field.
func isField(text string) bool {
	return strings.HasPrefix(text, "spec") || strings.HasPrefix(text, "metadata.") || strings.HasPrefix(text, "tools[")
}

// title names the Turn.
func (p *project) title() string { return kindTurn + " " + p.turn.Namespace + "/" + p.turn.Name }
