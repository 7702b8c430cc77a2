package journalgc

import (
	"context"
	"errors"
	"fmt"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/identities"
	"github.com/capstan-dev/capstan/internal/runtime/journal"
	"github.com/capstan-dev/capstan/internal/runtime/turnrecord"
	"github.com/capstan-dev/capstan/internal/store"
)

// The page sizes for listing journals and objects.
const (
	storePage = 2000
	apiPage   = 500
)

// sweep retires the journals of deleted objects. It finds the objects whose deletion no watch has reported. It also
// revives retired journals whose objects exist again, because the cluster was restored from a backup. purge may only
// follow a sweep that has looked for them.
//
//  1. Executors create journals at any time, so sweep lists the journals before the objects. Each object is older than
//     its journal, so the later list of objects contains the object of each listed journal, unless it was deleted. The
//     same holds for the comments on Turns. A Turn that never ran has no journal. A list of objects whose token has
//     expired continues in a newer state, which has these objects, too.
//  2. Caches may be stale, so only the API server decides that a journal is orphaned.
//  3. sweep leaves the journals of a namespace in which it may not list objects. It handles those of the others.
//  4. sweep leaves suspects to followUp, which knows the kinds and names of the objects. So only followUp finds that a
//     Turn is about to use the history of a Session that was deleted a moment ago.
func (c *Collector) sweep(ctx context.Context) error {
	c.mayPurge = false
	left, err := allUIDs(ctx, c.Store.UIDs)
	if err != nil {
		return fmt.Errorf("failed to list the journals: %w", err)
	}
	retired, err := allUIDs(ctx, c.Store.RetiredUIDs)
	if err != nil {
		return fmt.Errorf("failed to list the retired journals: %w", err)
	}
	commented, err := c.commented(ctx)
	if err != nil {
		return fmt.Errorf("failed to list the records with comments: %w", err)
	}
	left = left.Union(sets.KeySet(commented))
	unseen := left.Union(retired)
	unread := sets.New[string]()
	var denied error // of the namespaces in unread
	for _, kind := range []string{"TurnList", "SessionList"} {
		for _, namespace := range c.namespaces() {
			err := c.removeExisting(ctx, kind, namespace, unseen)
			if err == nil {
				continue
			}
			err = fmt.Errorf("failed to list the objects of kind %s from the API server: %w", kind, err)
			if namespace == metav1.NamespaceAll || !apierrors.IsForbidden(err) {
				return err
			}
			denied = errors.Join(denied, err)
			unread.Insert(namespace)
		}
	}
	if err := c.revive(ctx, retired.Difference(unseen).UnsortedList()); err != nil {
		return errors.Join(err, denied)
	}
	// The deletion of the objects of all retired journals was confirmed once. So a namespace that may not be listed
	// does not prevent purges, which would fill the disk.
	c.mayPurge = true
	left = left.Intersection(unseen)
	c.suspects.exclude(left) // after the list of objects, because objects may have been deleted since the list of journals
	err = errors.Join(c.removeForeign(ctx, left, commented), c.removeOf(ctx, unread, left, commented),
		c.removeReferenced(ctx, left, commented))
	if err != nil {
		return errors.Join(err, denied)
	}
	return errors.Join(c.retireOrphans(ctx, left), denied)
}

// revive revives retired journals whose objects exist.
func (c *Collector) revive(ctx context.Context, uids []string) error {
	if len(uids) == 0 {
		return nil
	}
	c.Log.Info("Found retired journals whose objects exist again, which are kept", "objects", len(uids))
	for batch := range slices.Chunk(uids, storePage) {
		bounded, cancel := context.WithTimeout(ctx, storeTimeout)
		err := c.Store.Revive(bounded, batch...)
		cancel()
		if err != nil {
			return fmt.Errorf("failed to revive journals: %w", err)
		}
	}
	return nil
}

// retireOrphans charges deleted Turns, and retires the journals of these Turns and of deleted Sessions.
func (c *Collector) retireOrphans(ctx context.Context, left sets.Set[string]) error {
	if left.Len() == 0 {
		return nil
	}
	c.Log.Info("Found journals or comments of deleted objects", "objects", left.Len(), "keptFor", c.Retention.String())
	gone, uncharged := c.chargeAll(ctx, left.UnsortedList())
	for batch := range slices.Chunk(gone, storePage) {
		bounded, cancel := context.WithTimeout(ctx, storeTimeout)
		err := c.Store.Retire(bounded, c.Now(), batch...)
		cancel()
		if err != nil {
			return errors.Join(fmt.Errorf("failed to retire journals: %w", err), uncharged)
		}
	}
	return uncharged
}

// chargeAll charges the Turns among the UIDs of deleted objects. It returns the UIDs whose journals may be retired, and
// an error if the charge of any Turn has failed.
func (c *Collector) chargeAll(ctx context.Context, uids []string) (done []string, err error) {
	newer := 0
	defer func() { c.reportNewer(newer) }()
	for _, uid := range uids {
		failure := c.chargeUID(ctx, uid)
		if errors.Is(failure, journal.ErrNewer) {
			newer++
			continue
		}
		if failure != nil {
			err = fmt.Errorf("failed to add the usage of a deleted turn to its session: %w", failure) // only the last error is returned
			continue
		}
		done = append(done, uid)
	}
	return done, err
}

// reportNewer logs that the journals of n deleted Turns are left to a newer version.
func (c *Collector) reportNewer(n int) {
	if n > 0 {
		c.Log.Info("Left the journals of deleted turns to a newer version of Capstan, which has written them", "turns", n)
	}
}

// allUIDs returns the UIDs of all pages.
func allUIDs(ctx context.Context, list func(ctx context.Context, after string, limit int) ([]string, error)) (sets.Set[string], error) {
	all := sets.New[string]()
	for after := ""; ; {
		bounded, cancel := context.WithTimeout(ctx, storeTimeout)
		page, err := list(bounded, after, storePage)
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

// commented returns the UIDs of the Turns of this installation that have comments, with the namespaces of these Turns.
func (c *Collector) commented(ctx context.Context) (map[string]string, error) {
	all := map[string]string{}
	for r, err := range store.AllRecords(ctx, boundedRecords{c.Store}, store.RecordQuery{Commented: true}) {
		if err != nil {
			return nil, err
		}
		if len(c.Namespaces) == 0 || slices.Contains(c.Namespaces, r.Namespace) {
			all[r.UID] = r.Namespace
		}
	}
	return all, nil
}

// boundedRecords limits the time of each page of records.
type boundedRecords struct{ Store }

// Records returns one page of records.
func (s boundedRecords) Records(ctx context.Context, q store.RecordQuery) (page []turnrecord.Record, more bool, err error) {
	bounded, cancel := context.WithTimeout(ctx, storeTimeout)
	defer cancel()
	return s.Store.Records(bounded, q)
}

// namespaces returns the namespaces in which to list objects. The empty namespace means all.
func (c *Collector) namespaces() []string {
	if len(c.Namespaces) == 0 {
		return []string{metav1.NamespaceAll}
	}
	return c.Namespaces
}

// removeForeign removes from a set the journals that belong to other namespaces, or do not name their namespace. It
// does not ask for the namespaces of the UIDs in commented, which are known.
func (c *Collector) removeForeign(ctx context.Context, left sets.Set[string], commented map[string]string) error {
	if len(c.Namespaces) == 0 {
		return nil
	}
	foreign := sets.New[string]()
	for uid := range left {
		if _, known := commented[uid]; known {
			continue
		}
		isForeign := c.foreign.Has(uid)
		if !isForeign {
			bounded, cancel := context.WithTimeout(ctx, storeTimeout)
			namespace, err := c.Namespace(bounded, uid)
			cancel()
			if err != nil {
				return fmt.Errorf("failed to get the namespace of a journal: %w", err)
			}
			isForeign = !slices.Contains(c.Namespaces, namespace)
		}
		if isForeign {
			foreign.Insert(uid)
			left.Delete(uid)
		}
	}
	c.foreign = foreign
	return nil
}

// removeReferenced removes from a set the histories to which an unfinished Turn refers, and forgets what was learned in
// their Sessions. If only a newer version knows to which history a Turn refers, it removes all journals of the
// namespace of this Turn: a manager of that version retires them.
func (c *Collector) removeReferenced(ctx context.Context, left sets.Set[string], commented map[string]string) error {
	if left.Len() == 0 || c.Turns == nil {
		return nil
	}
	var deleted []string
	unknown := sets.New[string]()
	for _, namespace := range c.namespaces() {
		if _, err := c.anyReference(ctx, namespace, "", func(r reference) bool {
			if left.Has(r.session) {
				left.Delete(r.session)
				deleted = append(deleted, r.session)
			}
			if r.newer {
				unknown.Insert(r.namespace)
			}
			return false
		}); err != nil {
			return err
		}
	}
	if err := c.removeOf(ctx, unknown, left, commented); err != nil {
		return err
	}
	if len(deleted) == 0 {
		return nil
	}
	if err := c.forget(ctx, deleted...); err != nil {
		return fmt.Errorf("failed to forget what was learned in deleted sessions: %w", err)
	}
	return nil
}

// removeOf removes from a set the journals of some namespaces, and those that do not name their namespace. It does not
// ask for the namespaces of the UIDs in commented, because their Turns may have no journal.
func (c *Collector) removeOf(ctx context.Context, namespaces, left sets.Set[string], commented map[string]string) error {
	if namespaces.Len() == 0 {
		return nil
	}
	for uid := range left {
		namespace, known := commented[uid]
		if !known {
			bounded, cancel := context.WithTimeout(ctx, storeTimeout)
			var err error
			namespace, err = c.Namespace(bounded, uid)
			cancel()
			if err != nil {
				return fmt.Errorf("failed to get the namespace of a journal: %w", err)
			}
		}
		if namespace == "" || namespaces.Has(namespace) {
			left.Delete(uid)
		}
	}
	return nil
}

// isReferenced reports whether an object is a Session to whose history an unfinished Turn may refer.
func (c *Collector) isReferenced(ctx context.Context, d suspect) (bool, error) {
	if c.Turns == nil || d.object.kind.Kind != "Session" {
		return false, nil
	}
	return c.anyReference(ctx, d.object.key.Namespace, d.object.key.Name, func(r reference) bool {
		return r.session == "" || r.session == string(d.uid)
	})
}

// reference is a reference of an unfinished Turn to the history of a Session.
type reference struct {
	// namespace is that of the Turn.
	namespace string
	// session is the UID of the Session. It is empty if newer is true, and for a Turn that is bound and has no prompt
	// yet.
	session string
	// newer is true if only a newer version can read the reference.
	newer bool
}

// anyReference calls matches for each unfinished Turn of a namespace that refers to a Session with this name, or to any
// Session if name is empty. It stops at the first true result and reports whether there was one.
func (c *Collector) anyReference(ctx context.Context, namespace, name string, matches func(reference) bool) (bool, error) {
	var turns v1alpha1.TurnList
	if err := c.Turns.List(ctx, &turns, client.InNamespace(namespace), client.UnsafeDisableDeepCopy); err != nil {
		return false, fmt.Errorf("failed to list the unfinished turns: %w", err)
	}
	for i := range turns.Items {
		t := &turns.Items[i]
		if t.Spec.SessionRef == nil || t.Epoch() == 0 || t.IsFinished() || name != "" && t.Spec.SessionRef.Name != name {
			continue
		}
		bounded, cancel := context.WithTimeout(ctx, storeTimeout)
		session, err := c.Reference(bounded, string(t.UID))
		cancel()
		newer := errors.Is(err, journal.ErrNewer)
		if err != nil && !newer {
			return false, fmt.Errorf("failed to find the history to which the journal of a turn refers: %w", err)
		}
		if (session != "" || newer || t.BoundTo() != "") && matches(reference{t.Namespace, session, newer}) {
			return true, nil
		}
	}
	return false, nil
}

// removeExisting removes from a set the UIDs of all objects of a kind in a namespace.
func (c *Collector) removeExisting(ctx context.Context, kind, namespace string, left sets.Set[string]) error {
	for next := ""; left.Len() > 0; {
		page := &metav1.PartialObjectMetadataList{}
		page.SetGroupVersionKind(v1alpha1.GroupVersion.WithKind(kind))
		err := c.Reader.List(ctx, page, client.InNamespace(namespace), client.Limit(apiPage), client.Continue(next))
		if token := identities.RenewedToken(err); token != "" && token != next {
			next = token
			continue
		}
		if err != nil {
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
