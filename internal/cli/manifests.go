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

// The names of kinds in messages.
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

// source holds the flags of render and run, which select a Turn from manifests.
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
	f.StringVar(&s.turn, "turn", "", "Turn to use, as NAME or NAMESPACE/NAME; required if the manifests contain several")
	f.StringVarP(&s.namespace, "namespace", "n", "default", "namespace of objects that do not name one")
	f.StringVar(&s.skills, "skills-file", "",
		"`PATH` of a YAML file of skills that every Agent may load, like those of the manager; default: none")
	f.Var(&s.now, "now", "time that the prompt and the record contain; default: the current time")
	f.VarP(&s.output, "output", "o", "output format")
}

// clock returns a function that returns the current time, or the time of --now if it is set.
func (s *source) clock() func() time.Time {
	if s.now.IsZero() {
		return s.env.Now
	}
	return func() time.Time { return s.now.Time }
}

// bundle is a Turn with the objects that it refers to, as far as the manifests hold them.
type bundle struct {
	set     *manifest.Set
	turn    *v1alpha1.Turn
	agent   *v1alpha1.Agent
	profile *v1alpha1.PromptProfile
	// session is the Session of the Turn, with its local UID. It is nil if the Turn has none.
	session *v1alpha1.Session
	// team holds the Agent and all Agents that it can call directly or indirectly, by name.
	team map[string]*bundle
	// skills are the skills that every Agent may load.
	skills []prepare.Skill
	// read holds the values of the ConfigMap keys that were read. The value of a missing key is nil.
	read map[v1alpha1.ConfigMapKeyReference]*string
}

// load reads the manifests and finds the Turn, its Agent and the Agent's PromptProfile. Arguments are more paths,
// so that -f *.yaml works when a shell expands it.
func (s *source) load(ctx context.Context, args []string) (*bundle, error) {
	if len(s.files) == 0 {
		return nil, errors.New("there are no manifests: name a file, a directory or - with -f")
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

// manifests reads objects from files, and prints a note about each object that it ignores.
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

// find returns a Turn of the manifests with the objects that it refers to.
func find(set *manifest.Set, turn string, skills []prepare.Skill) (*bundle, error) {
	p := &bundle{set: set, skills: skills, read: map[v1alpha1.ConfigMapKeyReference]*string{}}
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
		p.session = p.sessionOf(ref.Name)
	}
	return p, p.findTeam()
}

// objects returns the objects from which the messages of the Turn are made.
func (p *bundle) objects() translate.Objects {
	return translate.Objects{
		Turn: p.turn, Agent: p.agent, Profile: p.profile, ConfigMaps: p.configMaps,
		ManagerSkills: p.skills, Session: p.session,
	}
}

// configMaps returns a value of a ConfigMap in the manifests, and stores it in p.read.
func (p *bundle) configMaps(_ context.Context, ref v1alpha1.ConfigMapKeyReference) (string, error) {
	p.read[ref] = nil
	object, ok := p.set.ConfigMap(p.turn.Namespace, ref.Name)
	if !ok {
		return "", &translate.MissingError{Reason: p.absent(kindConfigMap, ref.Name)}
	}
	if _, binary := object.BinaryData[ref.Key]; binary {
		return "", &translate.MissingError{Reason: fmt.Sprintf("key %q of ConfigMap %q is in its binaryData: put the text into data",
			ref.Key, ref.Name)}
	}
	value, err := translate.ConfigMapValue(ref, object.Data)
	if err != nil {
		return "", err
	}
	p.read[ref] = &value
	return value, nil
}

// problem returns an error about a field of an object. The error names the file and the line of the object.
func (p *bundle) problem(kind, name, field, message string) *manifest.Error {
	e := &manifest.Error{Kind: kind, Namespace: p.turn.Namespace, Name: name, Field: field, Message: message}
	e.File, e.Line = p.set.Origin(kind, p.turn.Namespace, name)
	return e
}

// missing returns the error for a reference to an object that is not in the manifests.
func (p *bundle) missing(kind, name, field, wantKind, want string) *manifest.Error {
	return p.problem(kind, name, field, p.absent(wantKind, want))
}

// absent returns a message that an object is not in the manifests.
func (p *bundle) absent(kind, name string) string {
	return fmt.Sprintf("%s %q is not in the manifests, which contain %s: correct the name, or add its file with -f",
		kind, p.turn.Namespace+"/"+name, p.held(kind))
}

// mostListed is the maximum number of names in a message.
const mostListed = 10

// held returns the names of the objects of a kind in the manifests, as a list for messages.
func (p *bundle) held(kind string) string {
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

// located adds the object and its file to a message of the engine. Such a message starts with the kind and the
// field. Messages that start with "tools[" are about the Agent, but the engine does not name its kind there.
func (p *bundle) located(message string) error {
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

// isField reports whether a text starts with the path of a field.
func isField(text string) bool {
	return strings.HasPrefix(text, "spec") || strings.HasPrefix(text, "metadata.") || strings.HasPrefix(text, "tools[")
}

// title returns the kind, the namespace and the name of the Turn.
func (p *bundle) title() string { return kindTurn + " " + p.turn.Namespace + "/" + p.turn.Name }
