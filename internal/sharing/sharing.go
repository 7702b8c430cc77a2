// Package sharing decides whether an object may be used from another namespace: the owner of the object must consent,
// by its spec.allowedNamespaces.
package sharing

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capstan-dev/capstan/api/v1alpha1"
)

const (
	// labelsTTL is how long the labels of a namespace are used before they are read again.
	labelsTTL = 10 * time.Second
	// labelsGrace is how long the labels are used if they cannot be read again. An API server that starts forbids to
	// read them until it has loaded its roles. A consent that was withdrawn must take effect even if the API server
	// does not answer.
	labelsGrace = 5 * time.Minute
	// maxNamespaces limits the number of namespaces whose labels are kept, which take about 1 KiB each. If it is
	// reached, the oldest labels are forgotten.
	maxNamespaces = 16384
)

const kindAgent = "Agent"

// RefusedError means that an object cannot be used from a namespace. It does not say whether the object exists, because
// the namespace must not learn that without the owner's consent.
type RefusedError struct {
	// Kind and Object are the kind and the key of the object. From is the namespace that refers to the object.
	Kind, From string
	Object     client.ObjectKey
}

func (e *RefusedError) Error() string {
	return fmt.Sprintf("%s %q cannot be used in namespace %q: it does not exist, or its spec.allowedNamespaces does not allow "+
		"this namespace: ask its owner, or use an object of this namespace", e.Kind, e.Object, e.From)
}

// Checker checks consent. It is safe for concurrent use.
type Checker struct {
	// reader reads Namespaces from the API server.
	reader client.Reader
	now    func() time.Time
	// watched are the namespaces that the manager watches. If it is empty, the manager watches all of them.
	watched []string

	mu    sync.Mutex
	known map[string]namespace
	// permitted is when the API server last permitted to read a namespace. It is zero before the first such read.
	permitted time.Time
}

// namespace holds the labels of a namespace, and the time at which they were read.
type namespace struct {
	labels labels.Set
	// nameOnly is true if only the label with the name is known, because the API server forbids to read the namespace.
	nameOnly bool
	read     time.Time
	// forbidden is when the API server first forbade to read the namespace. It is zero if nameOnly is false.
	forbidden time.Time
	// doubt is the answer of the API server if the other labels may be known soon. Otherwise, it is nil.
	doubt error
}

// matches reports whether a selector selects the namespace. A selector that uses unknown labels does not: otherwise a
// selector that excludes a label would select namespaces that have the label. If these labels may be known soon,
// matches returns an error.
func (n namespace) matches(selector labels.Selector) (bool, error) {
	required, _ := selector.Requirements() // a selector that selects nothing has none, and does not match below
	if n.nameOnly && slices.ContainsFunc(required, func(r labels.Requirement) bool { return r.Key() != corev1.LabelMetadataName }) {
		return false, n.doubt
	}
	return selector.Matches(n.labels), nil
}

// New returns a Checker that reads Namespaces with this reader. Objects of namespaces that are not in watched do not
// exist for it. If watched is empty, all namespaces are watched.
func New(reader client.Reader, now func() time.Time, watched []string) *Checker {
	return &Checker{reader: reader, now: now, watched: watched, known: map[string]namespace{}}
}

// watches reports whether the objects of a namespace can be read.
func (c *Checker) watches(namespace string) bool {
	return len(c.watched) == 0 || slices.Contains(c.watched, namespace)
}

// Allows reports whether a namespace, the argument from, may use an object. objectNamespace is the namespace of the
// object, and allowed is its spec.allowedNamespaces. Allows returns an error if the labels of the namespace that wants
// to use the object cannot be read. A selector that cannot be used selects nothing.
func (c *Checker) Allows(
	ctx context.Context, objectNamespace string, allowed *v1alpha1.AllowedNamespaces, from string,
) (bool, error) {
	switch {
	case objectNamespace == from:
		return true, nil
	case allowed == nil:
		return false, nil
	case allowed.From == v1alpha1.NamespacesFromAll:
		return true, nil
	case allowed.From != v1alpha1.NamespacesFromSelector, allowed.Selector == nil:
		return false, nil
	}
	selector, err := allowed.Selector.Selector()
	if err != nil {
		return false, nil //nolint:nilerr // because the schema rejects such selectors, and they are no consent
	}
	ns, err := c.labelsOf(ctx, from)
	if err != nil {
		return false, err
	}
	return ns.matches(selector)
}

// labelsOf returns the labels of a namespace. They are at most labelsTTL old, or labelsGrace if the API server does not
// answer or forbids to read them.
//
// If it forbids to read a namespace without such labels, the other labels are in doubt while both of these hold: it has
// permitted a read of any namespace in the last labelsGrace, and it has forbidden this one for less than that. Then the
// API server may only be loading its roles. A manager that may read some namespaces, and never this one, gets no error
// after labelsGrace.
func (c *Checker) labelsOf(ctx context.Context, name string) (namespace, error) {
	c.mu.Lock()
	known, ok := c.known[name]
	permitted := c.permitted
	c.mu.Unlock()
	if age := c.now().Sub(known.read); ok && known.doubt == nil && age >= 0 && age < labelsTTL {
		return known, nil
	}
	read := c.now()
	o := &metav1.PartialObjectMetadata{}
	o.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("Namespace"))
	err := c.reader.Get(ctx, client.ObjectKey{Name: name}, o)
	forbidden := apierrors.IsForbidden(err)
	if client.IgnoreNotFound(err) != nil {
		// The API server may only restart. If the permission was missing before, too, the answer is recorded as before.
		if ok && (!forbidden || !known.nameOnly) && ctx.Err() == nil && read.Sub(known.read) < labelsGrace {
			return known, nil
		}
		err = fmt.Errorf("failed to get namespace %q: %w", name, err)
		if !forbidden {
			return namespace{}, err
		}
	}
	ns := namespace{labels: o.Labels, read: read}
	if forbidden {
		ns.labels, ns.nameOnly, ns.forbidden = labels.Set{corev1.LabelMetadataName: name}, true, read
		if known.nameOnly {
			ns.forbidden = known.forbidden
		}
		if read.Sub(permitted) < labelsGrace && read.Sub(ns.forbidden) < labelsGrace {
			ns.doubt = err
		}
	}
	c.keep(name, ns)
	return ns, nil
}

// keep records the labels of a namespace.
func (c *Checker) keep(name string, ns namespace) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !ns.nameOnly && ns.read.After(c.permitted) {
		c.permitted = ns.read
	}
	if _, ok := c.known[name]; !ok && len(c.known) >= maxNamespaces {
		c.forgetOld(ns.read)
	}
	c.known[name] = ns
}

// forgetOld forgets all labels that are too old to be used. If there are none, it forgets the oldest ones. The caller
// must hold mu.
func (c *Checker) forgetOld(now time.Time) {
	var oldest string
	for name, ns := range c.known {
		if now.Sub(ns.read) >= labelsGrace {
			delete(c.known, name)
		} else if oldest == "" || ns.read.Before(c.known[oldest].read) {
			oldest = name
		}
	}
	if len(c.known) >= maxNamespaces {
		delete(c.known, oldest)
	}
}

// Reader reads an object. Its error satisfies apierrors.IsNotFound if the object does not exist.
type Reader func(ctx context.Context, key client.ObjectKey, o client.Object) error

// From returns a Reader that gets objects from a client.
func From(c client.Reader) Reader {
	return func(ctx context.Context, key client.ObjectKey, o client.Object) error { return c.Get(ctx, key, o) }
}

// Provider reads the ModelProvider to which an object refers. The argument from is the namespace of that object. If the
// ModelProvider is in the same namespace, Provider returns the error of read. If it is in another namespace, Provider
// returns a *RefusedError if the ModelProvider does not exist or may not be used.
func (c *Checker) Provider(ctx context.Context, read Reader, ref v1alpha1.SharedReference, from string) (*v1alpha1.ModelProvider, error) {
	p := new(v1alpha1.ModelProvider)
	allowed := func() *v1alpha1.AllowedNamespaces { return p.Spec.AllowedNamespaces }
	return p, c.get(ctx, read, "ModelProvider", ref.Key(from), p, allowed, from)
}

// Profile is Provider for a PromptProfile.
func (c *Checker) Profile(ctx context.Context, read Reader, ref v1alpha1.SharedReference, from string) (*v1alpha1.PromptProfile, error) {
	p := new(v1alpha1.PromptProfile)
	allowed := func() *v1alpha1.AllowedNamespaces { return p.Spec.AllowedNamespaces }
	return p, c.get(ctx, read, "PromptProfile", ref.Key(from), p, allowed, from)
}

// ToolServer is Provider for a ToolServer.
func (c *Checker) ToolServer(ctx context.Context, read Reader, ref v1alpha1.SharedReference, from string) (*v1alpha1.ToolServer, error) {
	s := new(v1alpha1.ToolServer)
	allowed := func() *v1alpha1.AllowedNamespaces { return s.Spec.AllowedNamespaces }
	return s, c.get(ctx, read, "ToolServer", ref.Key(from), s, allowed, from)
}

// Agent is Provider for an Agent.
func (c *Checker) Agent(ctx context.Context, read Reader, ref v1alpha1.SharedReference, from string) (*v1alpha1.Agent, error) {
	a := new(v1alpha1.Agent)
	allowed := func() *v1alpha1.AllowedNamespaces { return a.Spec.AllowedNamespaces }
	return a, c.get(ctx, read, kindAgent, ref.Key(from), a, allowed, from)
}

// SubAgent reads an Agent to which another Agent refers with ref, for a Turn of that other Agent. caller is the
// namespace of the other Agent, and turn is the namespace of the Turn. The Agent must allow both namespaces.
func (c *Checker) SubAgent(
	ctx context.Context, read Reader, ref v1alpha1.SharedReference, caller, turn string,
) (*v1alpha1.Agent, error) {
	a, err := c.Agent(ctx, read, ref, caller)
	if err != nil || turn == caller {
		return a, err
	}
	switch ok, err := c.Allows(ctx, a.Namespace, a.Spec.AllowedNamespaces, turn); {
	case err != nil:
		return a, err
	case !ok:
		return a, &RefusedError{Kind: kindAgent, Object: client.ObjectKeyFromObject(a), From: turn}
	}
	return a, nil
}

// get reads an object for a namespace. It calls allowed after the object was read, for the object's
// spec.allowedNamespaces.
func (c *Checker) get(
	ctx context.Context, read Reader, kind string, key client.ObjectKey, o client.Object,
	allowed func() *v1alpha1.AllowedNamespaces, from string,
) error {
	if key.Namespace == from {
		return read(ctx, key, o)
	}
	refused := &RefusedError{Kind: kind, Object: key, From: from}
	if !c.watches(key.Namespace) {
		return refused
	}
	if err := read(ctx, key, o); err != nil {
		if apierrors.IsNotFound(err) {
			return refused
		}
		return err
	}
	switch ok, err := c.Allows(ctx, key.Namespace, allowed(), from); {
	case err != nil:
		return err
	case !ok:
		return refused
	}
	return nil
}
