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
		if err := j.strike(ctx, kind, left); err != nil {
			return fmt.Errorf("failed to list the objects of kind %s from the API server: %w", kind, err)
		}
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

// strike takes the UIDs of all objects of a kind out of a set.
func (j *Janitor) strike(ctx context.Context, kind string, left sets.Set[string]) error {
	for next := ""; left.Len() > 0; {
		page := &metav1.PartialObjectMetadataList{}
		page.SetGroupVersionKind(v1alpha1.GroupVersion.WithKind(kind))
		if err := j.Reader.List(ctx, page, client.Limit(apiPage), client.Continue(next)); err != nil {
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
