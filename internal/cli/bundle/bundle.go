// Package bundle finds a Turn in manifests, with all the objects that it refers to.
package bundle

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/cli/exit"
	"github.com/capstan-dev/capstan/internal/cli/output"
	"github.com/capstan-dev/capstan/internal/cli/terminal"
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
	kindConfigMap     = "ConfigMap"
	kindSecret        = "Secret"
)

// Source holds the flags of render and run, which select a Turn from manifests.
type Source struct {
	Env terminal.Environment
	// Files are the paths of files and directories of manifests; "-" is standard input. Load requires at least one.
	Files []string
	// Turn is NAME or NAMESPACE/NAME of the Turn. It may be empty if the manifests contain one Turn.
	Turn string
	// Object is the Turn to use instead of a Turn in the manifests. If it is nil, the manifests have the Turn.
	Object *v1alpha1.Turn
	// Namespace is the namespace of objects that do not name one.
	Namespace string
	// SkillsFile is the path of a file of skills that every Agent may load. If it is empty, there are none.
	SkillsFile string
	// Attach are files to attach to the Turn, as NAME=FILE.
	Attach []string
	// Now is the time that the prompt and the journal contain. If it is zero, they contain the current time.
	Now time.Time
	// contents holds the contents of the files of Attach by their paths, because a file may be a pipe, which can be
	// read only once.
	contents map[string][]byte
}

// Clock returns a function that returns the current time, or the time of --now if it is set.
func (s *Source) Clock() func() time.Time {
	if s.Now.IsZero() {
		return s.Env.Now
	}
	return func() time.Time { return s.Now }
}

// Bundle is a Turn with the objects of the manifests that it refers to.
type Bundle struct {
	// Set holds all objects of the manifests.
	Set     *manifest.Set
	Turn    *v1alpha1.Turn
	Agent   *v1alpha1.Agent
	Profile *v1alpha1.PromptProfile
	// Session is the Session of the Turn. Its UID is that of sessionUID, because no API server has set one. Session is
	// nil if the Turn has no Session.
	Session *v1alpha1.Session
	// Team holds the Agent and all Agents that it can call directly or indirectly, by AgentName.
	Team map[string]*Bundle
	// Skills are the skills that every Agent may load.
	Skills []prepare.Skill
	// flag is the flag with which the user adds manifests, for messages.
	flag string
	// elsewhere is true if the Turn is not that of the manifests, which may have another Turn of the same name.
	elsewhere bool
	// files holds the contents of the files of --attach by the names of their attachments.
	files map[string]string
	// read holds the values of the ConfigMap keys that were read; for attachments, their digests. The value of a
	// missing key is nil.
	read map[configMapKey]*string
}

// Load reads the manifests and finds the objects of the Turn. args are more paths, so that -f *.yaml works when a shell
// expands it.
func (s *Source) Load(ctx context.Context, args []string) (*Bundle, error) {
	switch {
	case len(s.Files) == 0 && len(args) > 0:
		return nil, fmt.Errorf("there are no manifests: put -f before %q", args[0])
	case len(s.Files) == 0:
		return nil, errors.New("there are no manifests: name a file, a directory or - with -f")
	}
	set, err := s.Manifests(ctx, slices.Concat(s.Files, args))
	if err != nil {
		return nil, err
	}
	var skills []prepare.Skill
	if s.SkillsFile != "" {
		if skills, err = skillfile.Load(s.SkillsFile); err != nil {
			return nil, exit.WithCode(exit.Usage, fmt.Errorf("--skills-file: %w", err))
		}
	}
	object := s.Object
	if object == nil {
		if object, err = set.Turn(s.Turn); err != nil {
			return nil, exit.WithCode(exit.Usage, fmt.Errorf("--turn: %w", err))
		}
	}
	p, err := ForTurn(set, object, skills, FilesFlag)
	if err != nil {
		return nil, err
	}
	return p, s.AttachFiles(p)
}

// Manifests reads objects from files, and prints a note about each object that it ignores.
func (s *Source) Manifests(ctx context.Context, paths []string) (*manifest.Set, error) {
	set, err := manifest.Load(ctx, paths, manifest.Options{Stdin: s.Env.In, Namespace: s.Namespace})
	if err != nil {
		return nil, exit.WithCode(exit.Usage, err)
	}
	for _, line := range set.Ignored {
		s.Env.Logf("note: %s", line)
	}
	return set, nil
}

// The flags with which a user adds manifests. A command has one of them, or -f for its own files and --manifests for
// manifests.
const (
	FilesFlag     = "-f"
	ManifestsFlag = "--manifests"
)

// Find returns a Turn of the manifests with the objects that it refers to. flag is the flag with which the user adds
// manifests.
func Find(set *manifest.Set, turn string, skills []prepare.Skill, flag string) (*Bundle, error) {
	t, err := set.Turn(turn)
	if err != nil {
		return nil, exit.WithCode(exit.Usage, fmt.Errorf("--turn: %w", err))
	}
	return ForTurn(set, t, skills, flag)
}

// ForTurn is like Find, for a Turn that need not be in the manifests.
func ForTurn(set *manifest.Set, t *v1alpha1.Turn, skills []prepare.Skill, flag string) (*Bundle, error) {
	p := newBundle(set, t, skills, flag)
	if err := p.findAgent(p.Turn.AgentKey(), p.Turn.Namespace); err != nil {
		return nil, exit.WithCode(exit.Failed, p.problem(kindTurn, p.Turn.Name, "spec.agentRef.name", err.Error()))
	}
	if err := p.findProfile(); err != nil {
		return nil, err
	}
	if ref := p.Turn.Spec.SessionRef; ref != nil {
		p.Session = p.sessionOf(ref.Name)
	}
	return p, p.findTeam()
}

// ForProfile returns a Turn with a PromptProfile of the manifests only: its Agent is nil.
func ForProfile(
	set *manifest.Set, t *v1alpha1.Turn, profile *v1alpha1.PromptProfile, skills []prepare.Skill, flag string,
) *Bundle {
	p := newBundle(set, t, skills, flag)
	p.Profile = profile
	return p
}

func newBundle(set *manifest.Set, t *v1alpha1.Turn, skills []prepare.Skill, flag string) *Bundle {
	return &Bundle{
		Set: set, Turn: t, Skills: skills, flag: flag, elsewhere: !slices.Contains(set.Turns(), t), read: map[configMapKey]*string{},
	}
}

// ObjectsOfProfile returns the objects from which the messages of the Turn are made, without an Agent if the bundle
// has none.
func (p *Bundle) ObjectsOfProfile() translate.Objects {
	if p.Agent != nil {
		return p.Objects()
	}
	return translate.Objects{
		Turn: p.Turn, Profile: p.Profile, ProfileConfigMaps: p.configMaps(p.Profile.Namespace), ManagerSkills: p.Skills,
	}
}

// Objects returns the objects from which the messages of the Turn are made.
func (p *Bundle) Objects() translate.Objects {
	return translate.Objects{
		Turn: p.Turn, Agent: p.Agent, Profile: p.Profile, ConfigMaps: p.configMaps(p.Turn.Namespace),
		AgentConfigMaps: p.configMaps(p.Agent.Namespace), ProfileConfigMaps: p.configMaps(p.Profile.Namespace),
		ManagerSkills: p.Skills, Session: p.Session,
	}
}

// Message returns the message of a Turn of the bundle, which may be in a ConfigMap.
func (p *Bundle) Message(ctx context.Context, t *v1alpha1.Turn) (string, error) {
	return translate.Message(ctx, t, p.configMaps(t.Namespace))
}

// configMapKey is a key of a ConfigMap in a namespace.
type configMapKey struct {
	namespace string
	v1alpha1.ConfigMapKeyReference
}

// configMaps returns the reader for the ConfigMaps of a namespace in the manifests. It stores the values in p.read.
func (p *Bundle) configMaps(namespace string) translate.ConfigMaps {
	return func(_ context.Context, ref v1alpha1.ConfigMapKeyReference) (string, error) {
		key := configMapKey{namespace, ref}
		p.read[key] = nil
		object, ok := p.Set.ConfigMap(namespace, ref.Name)
		if !ok {
			return "", &translate.MissingError{Reason: p.notFoundIn(kindConfigMap, namespace, ref.Name)}
		}
		if _, binary := object.BinaryData[ref.Key]; binary {
			return "", &translate.MissingError{Reason: fmt.Sprintf("key %q of ConfigMap %q is in its binaryData: put the text into data",
				ref.Key, ref.Name)}
		}
		value, err := translate.ConfigMapValue(ref, object.Data)
		if err != nil {
			return "", err
		}
		p.read[key] = &value
		return value, nil
	}
}

// provider returns the ModelProvider that a reference of the Agent names. A ModelProvider in another namespace must
// allow the namespace of the Agent. If it allows a selector, provider assumes that the selector matches, because
// manifests do not contain the labels of namespaces.
func (p *Bundle) provider(ref v1alpha1.SharedReference) (*v1alpha1.ModelProvider, error) {
	key := ref.Key(p.Agent.Namespace)
	object, ok := p.Set.ModelProvider(key.Namespace, key.Name)
	return object, p.checkShared(kindModelProvider, key, p.Agent.Namespace, ok,
		func() *v1alpha1.AllowedNamespaces { return object.Spec.AllowedNamespaces })
}

// checkShared returns an error if an object does not exist, or does not allow the namespace user.
func (p *Bundle) checkShared(
	kind string, key types.NamespacedName, user string, exists bool, allowed func() *v1alpha1.AllowedNamespaces,
) error {
	if !exists {
		return errors.New(p.notFoundIn(kind, key.Namespace, key.Name))
	}
	if key.Namespace == user {
		return nil
	}
	if a := allowed(); a == nil || a.From == v1alpha1.NamespacesFromSame || a.From == "" {
		return fmt.Errorf("%s %q does not allow namespace %q: allow it in spec.allowedNamespaces of the %s, or refer to another %s, "+
			"in namespace %q", kind, key, user, kind, kind, user)
	}
	return nil
}

// problem returns an error about a field of the Turn, its Agent or its PromptProfile. The error names the file and the
// line of the object.
func (p *Bundle) problem(kind, name, field, message string) *manifest.Error {
	namespace := p.Turn.Namespace
	switch {
	case kind == kindAgent && p.Agent != nil:
		namespace = p.Agent.Namespace
	case kind == kindPromptProfile && p.Profile != nil:
		namespace = p.Profile.Namespace
	}
	return p.problemOf(kind, namespace, name, field, message)
}

// problemOf is problem for an object of any namespace.
func (p *Bundle) problemOf(kind, namespace, name, field, message string) *manifest.Error {
	e := &manifest.Error{Kind: kind, Namespace: namespace, Name: name, Field: field, Message: message}
	if kind != kindTurn || !p.elsewhere {
		e.File, e.Line = p.Set.Origin(kind, namespace, name)
	}
	return e
}

// notFound returns a message that an object of the Turn's namespace is not in the manifests.
func (p *Bundle) notFound(kind, name string) string {
	return p.notFoundIn(kind, p.Turn.Namespace, name)
}

// notFoundIn is like notFound, for an object of any namespace.
func (p *Bundle) notFoundIn(kind, namespace, name string) string {
	return NotFound(p.Set, kind, types.NamespacedName{Namespace: namespace, Name: name}, p.flag)
}

// NotFound returns a message that an object is not in the manifests. flag is the flag with which the user adds
// manifests.
func NotFound(set *manifest.Set, kind string, key types.NamespacedName, flag string) string {
	return fmt.Sprintf("%s %q is not in the manifests, which contain %s: correct the name, or add its file with %s",
		kind, key, namesOf(set, kind), flag)
}

// namesOf returns the names of the objects of a kind in the manifests, as a list for messages.
func namesOf(set *manifest.Set, kind string) string {
	names := set.Names(kind)
	more := ""
	if n := len(names) - output.MostListed; n > 0 {
		more = fmt.Sprintf(" and %d more", n)
	}
	if len(names) == 0 {
		return "none"
	}
	return strings.Join(names[:min(len(names), output.MostListed)], ", ") + more
}

// Located adds the object and its file to an error message of the engine that starts with a kind and a field. Messages
// that start with "tools[" are about the Agent, although the engine does not name its kind there. Other messages stay
// unchanged.
func (p *Bundle) Located(message string) error {
	if strings.HasPrefix(message, "tools[") {
		message = kindAgent + " " + message
	}
	kind, rest, _ := strings.Cut(message, " ")
	named := map[string]string{kindTurn: p.Turn.Name, kindPromptProfile: p.Profile.Name}
	if p.Agent != nil {
		named[kindAgent] = p.Agent.Name
	}
	name, ok := named[kind]
	if !ok || !isField(rest) {
		return errors.New(message)
	}
	return p.problem(kind, name, "", rest)
}

// isField reports whether a text starts with the path of a field.
func isField(text string) bool {
	return strings.HasPrefix(text, "spec") || strings.HasPrefix(text, "metadata.") || strings.HasPrefix(text, "tools[")
}

// Title returns the kind, the namespace and the name of the Turn.
func (p *Bundle) Title() string { return kindTurn + " " + p.Turn.Namespace + "/" + p.Turn.Name }

// ObjectName identifies an object of the manifests.
type ObjectName struct{ Kind, Namespace, Name string }

// objectName returns the ObjectName of an object with a key.
func objectName(kind string, key types.NamespacedName) ObjectName {
	return ObjectName{kind, key.Namespace, key.Name}
}

// ObjectNames returns the objects from which the messages were made.
func (p *Bundle) ObjectNames() []ObjectName {
	all := []ObjectName{
		{kindTurn, p.Turn.Namespace, p.Turn.Name},
		{kindAgent, p.Agent.Namespace, p.Agent.Name},
		{kindPromptProfile, p.Profile.Namespace, p.Profile.Name},
	}
	if p.Session != nil {
		if _, ok := p.Set.Session(p.Session.Namespace, p.Session.Name); ok {
			all = append(all, ObjectName{kindSession, p.Session.Namespace, p.Session.Name})
		}
	}
	for _, entry := range p.Agent.Spec.Tools {
		if ref := entry.AgentRef; ref != nil {
			all = append(all, objectName(kindAgent, ref.Key(p.Agent.Namespace)))
		}
		if ref := entry.ServerRef; ref != nil {
			all = append(all, objectName(kindToolServer, ref.Key(p.Agent.Namespace)))
		}
	}
	var maps []ObjectName
	for ref := range p.read {
		maps = append(maps, ObjectName{kindConfigMap, ref.namespace, ref.Name})
	}
	slices.SortFunc(maps, func(a, b ObjectName) int {
		return cmp.Or(strings.Compare(a.Namespace, b.Namespace), strings.Compare(a.Name, b.Name))
	})
	return unique(append(all, maps...))
}

// unique returns the objects of a list in their order, each of them once.
func unique(all []ObjectName) []ObjectName {
	seen := make(map[ObjectName]bool, len(all))
	return slices.DeleteFunc(all, func(o ObjectName) bool {
		again := seen[o]
		seen[o] = true
		return again
	})
}
