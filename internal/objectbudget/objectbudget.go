// Package objectbudget bounds the memory of the objects that the manager's cache holds. An object whose namespace has
// no memory left is cached without its content, and with a Ready condition that says so. A user who may create objects
// in one namespace can therefore not use up the memory of all namespaces.
package objectbudget

import (
	"context"
	"fmt"
	"reflect"
	"runtime"
	"strconv"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/predicate"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/bytebudget"
)

const (
	// unreserved is the number of bytes of each object that need no reservation, because an object without its content
	// needs as much.
	unreserved = 2 << 10
	// tolerance is the number of bytes by which a cached object may grow without a reservation while its spec stays the
	// same. So a longer message in its status does not make it lose its content.
	tolerance = 4 << 10
	// maxConsent is the maximum number of bytes of the spec.allowedNamespaces that an object without its content keeps.
	// A selector may have 70 KiB.
	maxConsent = 1 << 10
)

// The annotations of a cached object without content. The API server accepts no names with spaces, so no user can set
// these annotations.
const (
	sizeAnnotation     = "bytes left out"
	reportedAnnotation = "left out and reported"
)

// Budget counts the bytes of cached objects. It is safe for concurrent use.
type Budget struct {
	memory *bytebudget.Budget

	mu sync.Mutex
	// objects holds the objects of which a counted version is still in memory.
	objects map[types.UID]*object
	// namespaces holds the bytes of each namespace.
	namespaces map[string]int64
}

type object struct {
	namespace   string
	reservation *bytebudget.Reservation
	generation  int64
	// versions is the number of versions of the object that are in memory. Only the bytes of the newest version are
	// counted, because the others are garbage soon.
	versions int
}

// New returns a budget that reserves bytes of memory.
func New(memory *bytebudget.Budget) *Budget {
	return &Budget{memory: memory, objects: map[types.UID]*object{}, namespaces: map[string]int64{}}
}

// Transform returns a function for the cache. It calls next, and then removes the content of objects that have no
// space. next must remove the annotations of objects.
func (b *Budget) Transform(next cache.TransformFunc) cache.TransformFunc {
	return func(in any) (any, error) {
		out, err := next(in)
		if err != nil {
			return out, err
		}
		switch o := out.(type) {
		case *v1alpha1.Agent:
			return admit(b, o, o.Status.Conditions, func(kept *v1alpha1.Agent, c []metav1.Condition) {
				kept.Spec.Limits, kept.Spec.MaxParallelTurns = o.Spec.Limits, o.Spec.MaxParallelTurns
				kept.Spec.PromptProfileRef, kept.Status.Conditions = o.Spec.PromptProfileRef, c
				kept.Spec.AllowedNamespaces = consent(o.Spec.AllowedNamespaces)
			}), nil
		case *v1alpha1.PromptProfile:
			return admit(b, o, o.Status.Conditions, func(kept *v1alpha1.PromptProfile, c []metav1.Condition) {
				kept.Status.Conditions, kept.Spec.AllowedNamespaces = c, consent(o.Spec.AllowedNamespaces)
			}), nil
		case *v1alpha1.ModelProvider:
			return admit(b, o, o.Status.Conditions, func(kept *v1alpha1.ModelProvider, c []metav1.Condition) {
				kept.Status.Conditions, kept.Spec.AllowedNamespaces = c, consent(o.Spec.AllowedNamespaces)
			}), nil
		case *v1alpha1.ToolServer:
			return admit(b, o, o.Status.Conditions, func(kept *v1alpha1.ToolServer, c []metav1.Condition) {
				kept.Status.Conditions, kept.Spec.AllowedNamespaces = c, consent(o.Spec.AllowedNamespaces)
			}), nil
		case *v1alpha1.Session:
			// Runs read their Session from the API server. Do not write to an object that is already in use: its
			// subject is empty.
			if o.Spec.Subject != "" {
				o.Spec.Subject = ""
			}
		}
		return out, nil
	}
}

// consent returns the spec.allowedNamespaces that an object without its content keeps, so that the namespaces that may
// use the object learn why it is not ready. If it is too long, consent returns nil, and other namespaces may not use
// the object.
func consent(allowed *v1alpha1.AllowedNamespaces) *v1alpha1.AllowedNamespaces {
	if outOfLine(reflect.ValueOf(allowed)) > maxConsent {
		return nil
	}
	return allowed
}

// admit counts the object and returns it. If there is no space, it returns a new object without the content. keep
// copies the fields that such an object keeps, and sets its conditions.
func admit[T any, P interface {
	*T
	client.Object
}](b *Budget, o P, conditions []metav1.Condition, keep func(kept P, c []metav1.Condition)) P {
	if IsLeftOut(o) {
		return o // the cache may call the function again with its result
	}
	bytes := sizeOf(reflect.TypeFor[T]()) + outOfLine(reflect.ValueOf((*T)(o)).Elem())
	if counted, ok := b.reserve(o, bytes); ok {
		if counted {
			runtime.AddCleanup((*T)(o), b.forget, o.GetUID())
		}
		return o
	}
	reported := meta.FindStatusCondition(conditions, v1alpha1.ConditionReady)
	var kept P = new(T)
	kept.SetNamespace(o.GetNamespace())
	kept.SetName(o.GetName())
	kept.SetUID(o.GetUID())
	kept.SetResourceVersion(o.GetResourceVersion())
	kept.SetGeneration(o.GetGeneration())
	kept.SetCreationTimestamp(o.GetCreationTimestamp())
	kept.SetDeletionTimestamp(o.GetDeletionTimestamp())
	marks := map[string]string{sizeAnnotation: strconv.FormatInt(bytes, 10)}
	if reported != nil && reported.ObservedGeneration == o.GetGeneration() && reported.Message == Message(o.GetNamespace()) {
		marks[reportedAnnotation] = "true"
	}
	kept.SetAnnotations(marks)
	keep(kept, []metav1.Condition{{
		Type: v1alpha1.ConditionReady, Status: metav1.ConditionFalse, Reason: v1alpha1.ReasonTooManyObjects,
		Message: Message(o.GetNamespace()), ObservedGeneration: o.GetGeneration(), LastTransitionTime: o.GetCreationTimestamp(),
	}})
	return kept
}

// Message returns the message of an object that is cached without its content.
func Message(namespace string) string {
	return fmt.Sprintf("the manager has no memory left for this object: the Agents, PromptProfiles, ModelProviders and "+
		"ToolServers of namespace %q may use a share of it; delete or shorten some of them, or raise the manager's memory limit",
		namespace)
}

// IsLeftOut reports whether a cached object is without its content.
func IsLeftOut(o metav1.Object) bool { return o.GetAnnotations()[sizeAnnotation] != "" }

// IsReported reports whether the status of the object on the API server already says that the cached object has no
// content.
func IsReported(o client.Object) bool { return o.GetAnnotations()[reportedAnnotation] != "" }

// Read reads an object from the API server into o, which is a cached object without content.
func Read(ctx context.Context, live client.Reader, key client.ObjectKey, o client.Object) error {
	reflect.ValueOf(o).Elem().SetZero() // reading would keep the annotations
	return live.Get(ctx, key, o)
}

// Fits reports whether a cached object without content would have space now.
func (b *Budget) Fits(o client.Object) bool {
	bytes, err := strconv.ParseInt(o.GetAnnotations()[sizeAnnotation], 10, 64)
	if err != nil {
		return false
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	want := bytes - unreserved
	if known := b.objects[o.GetUID()]; known != nil {
		want -= known.reservation.Bytes()
	}
	if want <= 0 {
		return true
	}
	account := b.memory.Account(o.GetNamespace(), bytebudget.Objects)
	if b.exceeds(account, o.GetNamespace(), want) {
		return false
	}
	r, err := account.TryReserve(want)
	if err != nil {
		return false
	}
	r.Release()
	return true
}

// exceeds reports whether a namespace would use too much for objects with delta more bytes. Half of the bytes that a
// namespace can reserve are left for its conversations. The caller must hold the lock.
func (b *Budget) exceeds(account bytebudget.Account, namespace string, delta int64) bool {
	limit := account.MaxReservation()
	return limit > 0 && b.namespaces[namespace]+delta > limit/2
}

// reserve counts a version of an object. ok reports whether the object may be cached with its content. counted is false
// if the object is too small to be counted.
func (b *Budget) reserve(o client.Object, bytes int64) (counted, ok bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	known, want := b.objects[o.GetUID()], max(0, bytes-unreserved)
	if known == nil {
		if want == 0 {
			return false, true
		}
		account := b.memory.Account(o.GetNamespace(), bytebudget.Objects)
		if b.exceeds(account, o.GetNamespace(), want) {
			return false, false
		}
		r, err := account.TryReserve(want)
		if err != nil {
			return false, false
		}
		b.objects[o.GetUID()] = &object{namespace: o.GetNamespace(), reservation: r, generation: o.GetGeneration(), versions: 1}
		b.namespaces[o.GetNamespace()] += r.Bytes()
		return true, true
	}
	delta := want - known.reservation.Bytes()
	account := b.memory.Account(o.GetNamespace(), bytebudget.Objects)
	switch {
	case delta > 0 && b.exceeds(account, known.namespace, delta), known.reservation.Resize(want) != nil:
		if delta > tolerance || known.generation != o.GetGeneration() {
			return false, false
		}
	default:
		b.namespaces[known.namespace] += delta
	}
	known.versions, known.generation = known.versions+1, o.GetGeneration()
	return true, true
}

// forget records that a counted version of an object was garbage-collected. When no counted version is left, it
// releases the bytes of the object.
func (b *Budget) forget(uid types.UID) {
	b.mu.Lock()
	defer b.mu.Unlock()
	known := b.objects[uid]
	if known.versions--; known.versions > 0 {
		return
	}
	if b.namespaces[known.namespace] -= known.reservation.Bytes(); b.namespaces[known.namespace] <= 0 {
		delete(b.namespaces, known.namespace)
	}
	known.reservation.Release()
	delete(b.objects, uid)
}

// Changed returns a predicate for updates by which a cached object loses its content or gets it back.
func Changed() predicate.Predicate {
	return predicate.Funcs{UpdateFunc: func(e event.UpdateEvent) bool {
		return e.ObjectOld != nil && e.ObjectNew != nil && IsLeftOut(e.ObjectOld) != IsLeftOut(e.ObjectNew)
	}}
}

var timeType = reflect.TypeFor[time.Time]()

// sizeOf returns the bytes of a value of a type, without the memory that the value refers to.
func sizeOf(t reflect.Type) int64 {
	return int64(t.Size()) //nolint:gosec // because no type has a size that an int64 cannot hold
}

// outOfLine returns the bytes of the memory that a value refers to.
func outOfLine(v reflect.Value) int64 {
	switch v.Kind() {
	case reflect.String:
		return int64(v.Len())
	case reflect.Slice:
		bytes := int64(v.Cap()) * sizeOf(v.Type().Elem())
		if v.Type().Elem().Kind() == reflect.Uint8 {
			return bytes
		}
		for i := range v.Len() {
			bytes += outOfLine(v.Index(i))
		}
		return bytes
	case reflect.Array:
		var bytes int64
		for i := range v.Len() {
			bytes += outOfLine(v.Index(i))
		}
		return bytes
	case reflect.Map:
		bytes := int64(v.Len()) * 2 * (sizeOf(v.Type().Key()) + sizeOf(v.Type().Elem()))
		for entry := v.MapRange(); entry.Next(); {
			bytes += outOfLine(entry.Key()) + outOfLine(entry.Value())
		}
		return bytes
	case reflect.Pointer:
		if v.IsNil() {
			return 0
		}
		return sizeOf(v.Type().Elem()) + outOfLine(v.Elem())
	case reflect.Interface:
		if v.IsNil() {
			return 0
		}
		return sizeOf(v.Elem().Type()) + outOfLine(v.Elem())
	case reflect.Struct:
		if v.Type() == timeType { // all times share their locations
			return 0
		}
		var bytes int64
		for _, field := range v.Fields() {
			bytes += outOfLine(field)
		}
		return bytes
	default:
		return 0
	}
}
