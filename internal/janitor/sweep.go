package janitor

import (
	"context"
	"errors"
	"fmt"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capstan-dev/capstan/api/v1alpha1"
)

// The sizes of the pages in which journals and objects are listed.
const (
	storePage = 2000
	apiPage   = 500
)

// sweep retires the journals whose objects were deleted while nobody saw it.
//
// Executors begin journals meanwhile. So the journals are listed before the objects: a journal that is in the list has an
// object that is older, and whoever lists the objects afterwards finds it. Caches may be behind, so that only the API
// server's word makes a journal an orphan.
func (j *Janitor) sweep(ctx context.Context) error {
	left, err := j.journals(ctx)
	if err != nil {
		return fmt.Errorf("failed to list the journals: %w", err)
	}
	for _, kind := range []string{"TurnList", "SessionList"} {
		for _, namespace := range j.namespaces() {
			if err := j.strike(ctx, kind, namespace, left); err != nil {
				return fmt.Errorf("failed to list the objects of kind %s from the API server: %w", kind, err)
			}
		}
	}
	if err := errors.Join(j.strikeForeign(ctx, left), j.strikeReferred(ctx, left)); err != nil {
		return err
	}
	if left.Len() == 0 {
		return nil
	}
	j.Log.Info("Found journals of objects that are gone", "journals", left.Len(), "keptFor", j.Retention.String())
	gone, uncharged := j.chargeAll(ctx, left.UnsortedList())
	for batch := range slices.Chunk(gone, storePage) {
		bounded, cancel := context.WithTimeout(ctx, storeTimeout)
		err := j.Store.Retire(bounded, j.Now(), batch...)
		cancel()
		if err != nil {
			return errors.Join(fmt.Errorf("failed to retire journals: %w", err), uncharged)
		}
	}
	return uncharged
}

// chargeAll charges the Turns among the UIDs of what is gone. It returns those that may be retired, and why the others may not yet.
func (j *Janitor) chargeAll(ctx context.Context, uids []string) (done []string, err error) {
	for _, uid := range uids {
		if failure := j.chargeUID(ctx, uid); failure != nil {
			err = fmt.Errorf("failed to charge a deleted turn to its session: %w", failure) // one of them says enough
			continue
		}
		done = append(done, uid)
	}
	return done, err
}

// journals are the UIDs of all journals that are not retired.
func (j *Janitor) journals(ctx context.Context) (sets.Set[string], error) {
	all := sets.New[string]()
	for after := ""; ; {
		bounded, cancel := context.WithTimeout(ctx, storeTimeout)
		page, err := j.Store.UIDs(bounded, after, storePage)
		cancel()
		if err != nil {
			return nil, err
		}
		all.Insert(page...)
		if len(page) < storePage {
			return all, nil
		}
		after = page[len(page)-1]
	}
}

// namespaces are those to list objects in; the empty one stands for all.
func (j *Janitor) namespaces() []string {
	if len(j.Namespaces) == 0 {
		return []string{metav1.NamespaceAll}
	}
	return j.Namespaces
}

// strikeForeign takes the journals out of a set that are of other namespaces, or do not say of which.
func (j *Janitor) strikeForeign(ctx context.Context, left sets.Set[string]) error {
	if len(j.Namespaces) == 0 {
		return nil
	}
	foreign := sets.New[string]()
	for uid := range left {
		is := j.foreign.Has(uid)
		if !is {
			bounded, cancel := context.WithTimeout(ctx, storeTimeout)
			namespace, err := j.Namespace(bounded, uid)
			cancel()
			if err != nil {
				return fmt.Errorf("failed to learn the namespace of a journal: %w", err)
			}
			is = !slices.Contains(j.Namespaces, namespace)
		}
		if is {
			foreign.Insert(uid)
			left.Delete(uid)
		}
	}
	j.foreign = foreign
	return nil
}

// strikeReferred takes the histories out of a set that an unfinished Turn refers to.
func (j *Janitor) strikeReferred(ctx context.Context, left sets.Set[string]) error {
	if left.Len() == 0 || j.Turns == nil {
		return nil
	}
	for _, namespace := range j.namespaces() {
		if _, err := j.referring(ctx, namespace, "", func(session string) bool {
			left.Delete(session)
			return false
		}); err != nil {
			return err
		}
	}
	return nil
}

// isReferred reports whether an object is a Session whose history an unfinished Turn may refer to.
func (j *Janitor) isReferred(ctx context.Context, uid types.UID, d doubt) (bool, error) {
	if j.Turns == nil || d.object.kind.Kind != "Session" {
		return false, nil
	}
	return j.referring(ctx, d.object.key.Namespace, d.object.key.Name, func(session string) bool {
		return session == "" || session == string(uid)
	})
}

// referring calls a function with the UID of the Session that an unfinished Turn refers to, for each Turn of a namespace and of a
// Session, by name, or of any. The UID is empty for a Turn that is bound and has no prompt yet. It reports whether the function did for
// one of them, which is then the last.
func (j *Janitor) referring(ctx context.Context, namespace, name string, is func(session string) bool) (bool, error) {
	var turns v1alpha1.TurnList
	if err := j.Turns.List(ctx, &turns, client.InNamespace(namespace), client.UnsafeDisableDeepCopy); err != nil {
		return false, fmt.Errorf("failed to list the unfinished turns: %w", err)
	}
	for i := range turns.Items {
		t := &turns.Items[i]
		if t.Spec.SessionRef == nil || t.Epoch() == 0 || t.IsFinished() || name != "" && t.Spec.SessionRef.Name != name {
			continue
		}
		bounded, cancel := context.WithTimeout(ctx, storeTimeout)
		session, err := j.Reference(bounded, string(t.UID))
		cancel()
		if err != nil {
			return false, fmt.Errorf("failed to learn which history the journal of a turn refers to: %w", err)
		}
		if (session != "" || t.BoundTo() != "") && is(session) {
			return true, nil
		}
	}
	return false, nil
}

// strike takes the UIDs of all objects of a kind and a namespace out of a set.
func (j *Janitor) strike(ctx context.Context, kind, namespace string, left sets.Set[string]) error {
	for next := ""; left.Len() > 0; {
		page := &metav1.PartialObjectMetadataList{}
		page.SetGroupVersionKind(v1alpha1.GroupVersion.WithKind(kind))
		if err := j.Reader.List(ctx, page, client.InNamespace(namespace), client.Limit(apiPage), client.Continue(next)); err != nil {
			return err
		}
		for i := range page.Items {
			left.Delete(string(page.Items[i].UID))
		}
		if next = page.Continue; next == "" {
			return nil
		}
	}
	return nil
}

// isGone asks the API server whether an object is gone. One of its name with another UID is another one.
func (j *Janitor) isGone(ctx context.Context, uid types.UID, d doubt) (bool, error) {
	now := &metav1.PartialObjectMetadata{}
	now.SetGroupVersionKind(d.object.kind)
	err := j.Reader.Get(ctx, d.object.key, now)
	if apierrors.IsNotFound(err) {
		return true, nil
	}
	return err == nil && now.UID != uid, err
}
