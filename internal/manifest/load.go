package manifest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/capstan-dev/capstan/api/v1alpha1"
)

// Options configures Load.
type Options struct {
	// Stdin is the reader for the path "-". If it is nil, Load returns an error for that path.
	Stdin io.Reader
	// Namespace is the namespace of objects without a namespace. If it is empty, they are in the namespace "default".
	Namespace string
	// Into is the Set to which Load adds the objects, and which it returns. If it is nil, Load makes a new Set. After
	// an error, the Set may have some of the objects.
	Into *Set
}

// Load reads manifests from files, from directories with everything below them, and from standard input for the
// path "-".
//
// The Set has the Agents, PromptProfiles, ModelProviders, ToolServers, Turns, Sessions, ConfigMaps and Secrets. Load
// validates Budgets and ToolApprovals and then ignores them. If a path or a manifest has mistakes, the error is an
// Errors with all of them. Any other error means that paths is empty, or that the embedded schemas cannot be used.
func Load(ctx context.Context, paths []string, opts Options) (*Set, error) {
	if len(paths) == 0 {
		return nil, errors.New("failed to load manifests: name a file, a directory or - for standard input")
	}
	kinds, err := schemas()
	if err != nil {
		return nil, err
	}
	if opts.Namespace == "" {
		opts.Namespace = metav1.NamespaceDefault
	}
	if opts.Into == nil {
		opts.Into = newSet()
	}
	l := &loader{opts: opts, kinds: kinds, set: opts.Into}
	seen := map[string]bool{}
	for _, path := range paths {
		found, err := files(path)
		if err != nil {
			l.addProblem(&Error{File: path, Message: err.Error()})
			continue
		}
		for _, file := range found {
			if !seen[file] {
				seen[file] = true
				l.loadFile(ctx, file)
			}
		}
	}
	if len(l.problems) > 0 {
		return nil, l.problems
	}
	return l.set, nil
}

// loader holds the state of one call of Load.
type loader struct {
	opts     Options
	kinds    map[string]*kindSchema
	set      *Set
	problems Errors
	// document is the document that is being loaded, or nil if the lines of its fields are not known or not shown.
	document *document
}

type objectKey struct {
	kind string
	types.NamespacedName
}

func (l *loader) addProblem(e *Error) { l.problems = append(l.problems, e) }

func (l *loader) loadFile(ctx context.Context, file string) {
	text, err := read(file, l.opts.Stdin)
	if err != nil {
		l.addProblem(&Error{File: file, Message: err.Error()})
		return
	}
	documents, err := split(file, text)
	if err != nil {
		l.addProblem(&Error{File: file, Message: err.Error()})
		return
	}
	for _, d := range documents {
		at := origin{file: file}
		l.document = nil
		if len(documents) > 1 {
			at.line, l.document = d.line, &d
		}
		object, faults := d.decode()
		for _, f := range faults {
			l.addProblem(&Error{File: at.file, Line: cmp.Or(f.line, at.line), Message: f.message})
		}
		if len(faults) == 0 {
			l.add(ctx, at, object)
		}
	}
}

// add adds an object to the set, or records why it cannot be added.
func (l *loader) add(ctx context.Context, at origin, object map[string]any) {
	apiVersion, _ := object["apiVersion"].(string)
	kind, _ := object["kind"].(string)
	version, err := schema.ParseGroupVersion(apiVersion)
	switch {
	case apiVersion == "":
		l.addProblem(&Error{File: at.file, Line: at.line, Kind: kind, Field: "apiVersion", Message: "is required, as a string"})
	case kind == "":
		l.addProblem(&Error{File: at.file, Line: at.line, Field: "kind", Message: "is required, as a string"})
	case err != nil:
		l.addProblem(&Error{File: at.file, Line: at.line, Kind: kind, Field: "apiVersion", Message: err.Error()})
	case isList(version, kind):
		l.addItems(ctx, at, kind, object)
	case version.Group == v1alpha1.GroupVersion.Group:
		l.addOurs(ctx, at, version, kind, object)
	case apiVersion == "v1" && kind == "Secret":
		l.addSecret(ctx, at, object)
	case apiVersion == "v1" && kind == "ConfigMap":
		l.addConfigMap(ctx, at, object)
	default:
		l.set.Ignored = append(l.set.Ignored, fmt.Sprintf("%s: %s: ignored: Capstan does not use %s of %s",
			at, describe(kind, "", nameOf(object)), kind, apiVersion))
	}
}

// isList reports whether an object is a list, such as kubectl get -o yaml prints for several objects.
func isList(version schema.GroupVersion, kind string) bool {
	if version.Group == v1alpha1.GroupVersion.Group {
		return strings.HasSuffix(kind, "List")
	}
	return version.String() == "v1" && slices.Contains([]string{"List", "SecretList", "ConfigMapList"}, kind)
}

func (l *loader) addItems(ctx context.Context, at origin, kind string, list map[string]any) {
	items, ok := list["items"].([]any)
	if !ok {
		l.addProblem(&Error{File: at.file, Line: at.line, Kind: kind, Field: "items", Message: "must be a list of objects"})
		return
	}
	l.document = nil // the paths of fields begin at the items
	for i, item := range items {
		object, ok := item.(map[string]any)
		if nested, _ := object["kind"].(string); !ok || strings.HasSuffix(nested, "List") {
			l.addProblem(&Error{
				File: at.file, Line: at.line, Kind: kind, Field: fmt.Sprintf("items[%d]", i),
				Message: "must be an object, and not a list",
			})
			continue
		}
		l.add(ctx, at, object)
	}
}

func (l *loader) addOurs(ctx context.Context, at origin, version schema.GroupVersion, kind string, object map[string]any) {
	known, ok := l.kinds[kind]
	if !ok || version != v1alpha1.GroupVersion {
		l.addProblem(&Error{
			File: at.file, Line: at.line, Kind: kind, Name: nameOf(object),
			Message: fmt.Sprintf("unknown kind in %s: must be one of %s in %s", version,
				strings.Join(slices.Sorted(maps.Keys(l.kinds)), ", "), v1alpha1.GroupVersion),
		})
		return
	}
	meta, findings := known.defaultAndValidate(ctx, object, l.opts.Namespace)
	key := objectKey{kind, types.NamespacedName{Namespace: meta.Namespace, Name: cmp.Or(meta.Name, nameOf(object))}}
	if !l.register(at, key, findings) {
		return
	}
	if why := ignored[kind]; why != "" {
		l.set.Ignored = append(l.set.Ignored, fmt.Sprintf("%s: %s: ignored: %s", at, describe(kind, key.Namespace, key.Name), why))
		return
	}
	if err := l.set.store(kind, key.NamespacedName, object); err != nil {
		l.report(at, key, finding{"", err.Error()})
	}
}

// register records the origin of an object and its problems: the findings, and a duplicate of its kind and name. It
// reports whether the object has no problems.
func (l *loader) register(at origin, key objectKey, findings []finding) bool {
	for _, f := range findings {
		l.report(at, key, f)
	}
	if first, taken := l.set.origins[key]; taken && key.Name != "" {
		l.report(at, key, finding{"metadata.name", fmt.Sprintf("must be unique: %s has the same object", first)})
		return false
	}
	l.set.origins[key] = at
	return len(findings) == 0
}

func (l *loader) report(at origin, key objectKey, f finding) {
	line := at.line
	if l.document != nil {
		line = cmp.Or(l.document.lineOf(f.field), line)
	}
	l.addProblem(&Error{
		File: at.file, Line: line, Kind: key.kind, Namespace: key.Namespace, Name: key.Name,
		Field: f.field, Message: f.message,
	})
}

// ignored has the reason for each kind whose objects are validated and then ignored.
var ignored = map[string]string{
	"Budget":       "a Budget limits the Turns of a cluster, whose store counts them; for one Turn, use its limits",
	"ToolApproval": "a ToolApproval decides about a Turn in a cluster; capstan run asks for decisions, or takes --approve",
}

// store adds a valid object to the objects of its kind.
func (s *Set) store(kind string, name types.NamespacedName, object map[string]any) (err error) {
	switch kind {
	case "Agent":
		s.agents[name], err = convert[v1alpha1.Agent](object)
	case "ModelProvider":
		s.providers[name], err = convert[v1alpha1.ModelProvider](object)
	case "PromptProfile":
		s.profiles[name], err = convert[v1alpha1.PromptProfile](object)
	case "ToolServer":
		s.servers[name], err = convert[v1alpha1.ToolServer](object)
	case "Turn":
		s.turns[name], err = convert[v1alpha1.Turn](object)
	case "Session":
		s.sessions[name], err = convert[v1alpha1.Session](object)
	default:
		err = fmt.Errorf("failed to store it: kind %q has a schema but no Go type", kind)
	}
	return err
}

func convert[T any](object map[string]any) (*T, error) {
	into := new(T)
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(object, into); err != nil {
		return nil, fmt.Errorf("failed to convert it: %w", err)
	}
	return into, nil
}

// nameOf returns the name of an object that may be malformed.
func nameOf(object map[string]any) string {
	meta, _ := object["metadata"].(map[string]any)
	name, _ := meta["name"].(string)
	return name
}
