package executor

import (
	"context"
	"errors"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/capstan-dev/capstan/api/v1alpha1"
)

// shelf is a store with the journals of many Turns.
type shelf struct {
	uids    []string
	deleted []string
	// listing is called before the journals are listed.
	listing   func()
	listError error
}

func (s *shelf) TurnUIDs(context.Context) ([]string, error) {
	if s.listing != nil {
		s.listing()
	}
	return slices.Clone(s.uids), s.listError
}

func (s *shelf) Delete(_ context.Context, uid string) error {
	s.deleted = append(s.deleted, uid)
	return nil
}

// elsewhere is a Turn that another executor runs.
func elsewhere(name string) *v1alpha1.Turn {
	return turnWith(boundTo("capstan-1", 1), func(t *v1alpha1.Turn) { t.Name, t.UID = name, types.UID("uid-"+name) })
}

// start takes up Turns and waits until the store was swept.
func start(t *testing.T, e *Executor) {
	t.Helper()
	if err := e.adopt(t.Context(), t.Context()); err != nil {
		t.Fatalf("adopt: %v", err)
	}
	e.all.Wait()
}

func TestSweepKeepsAJournalThatAnotherExecutorBegins(t *testing.T) {
	e, _ := newExecutor(t, interceptor.Funcs{})
	s := &shelf{uids: []string{"uid-gone"}}
	s.listing = func() { // a Turn is made, and begun by another process, just before the journals are listed
		if err := e.Client.Create(t.Context(), elsewhere("new")); err != nil {
			t.Fatal(err)
		}
		s.uids = append(s.uids, "uid-new")
	}
	e.Store, e.SweepStore = s, true
	start(t, e)
	if diff := cmp.Diff([]string{"uid-gone"}, s.deleted); diff != "" {
		t.Errorf("only the journal of the turn that is gone may be deleted (-want +got):\n%s", diff)
	}
}

func TestSweepAsksTheAPIServerBeforeItDeletes(t *testing.T) {
	away := errors.New("the API server is away")
	for name, tc := range map[string]struct {
		reason string
		uids   []string
		list   func(page int, l *metav1.PartialObjectMetadataList) error
		want   []string
		pages  int
	}{
		"Behind": {
			reason: "a turn that the cache does not know yet keeps its journal", uids: []string{"uid-one", "uid-new", "uid-gone"}, pages: 1,
			list: func(_ int, l *metav1.PartialObjectMetadataList) error { add(l, "uid-new"); return nil },
			want: []string{"uid-gone"},
		},
		"Pages": {
			reason: "the turns of all pages count", uids: []string{"uid-a", "uid-b", "uid-gone"}, pages: 2,
			list: func(page int, l *metav1.PartialObjectMetadataList) error {
				if page == 1 {
					l.Continue = "more"
					add(l, "uid-a")
				} else {
					add(l, "uid-b")
				}
				return nil
			},
			want: []string{"uid-gone"},
		},
		"Half": {
			reason: "half a list says nothing about the other half", uids: []string{"uid-a", "uid-b"}, pages: 2,
			list: func(page int, l *metav1.PartialObjectMetadataList) error {
				if page == 2 {
					return away
				}
				l.Continue = "more"
				add(l, "uid-a")
				return nil
			},
		},
		"AllFound": {
			reason: "the rest of a long list is not asked for", uids: []string{"uid-a"}, pages: 1,
			list: func(_ int, l *metav1.PartialObjectMetadataList) error {
				l.Continue = "more"
				add(l, "uid-a")
				return nil
			},
		},
		"AllCached": {reason: "the API server is asked only if there is a doubt", uids: []string{"uid-one"}},
	} {
		t.Run(name, func(t *testing.T) {
			pages := 0
			e, _ := newExecutor(t, interceptor.Funcs{
				List: func(ctx context.Context, c client.WithWatch, l client.ObjectList, opts ...client.ListOption) error {
					page, ok := l.(*metav1.PartialObjectMetadataList)
					if !ok {
						return c.List(ctx, l, opts...)
					}
					pages++
					if o := (&client.ListOptions{}).ApplyOptions(opts); o.Limit != sweepPage || (o.Continue == "more") != (pages > 1) {
						t.Errorf("page %d was asked for with limit %d and continue %q", pages, o.Limit, o.Continue)
					}
					return tc.list(pages, page)
				},
			}, elsewhere("one"))
			s := &shelf{uids: tc.uids}
			e.Store, e.SweepStore = s, true
			start(t, e)
			if diff := cmp.Diff(tc.want, s.deleted); diff != "" || pages != tc.pages {
				t.Errorf("%s: %d pages, want %d; deleted (-want +got):\n%s", tc.reason, pages, tc.pages, diff)
			}
		})
	}
}

// add adds what a list says of a Turn.
func add(l *metav1.PartialObjectMetadataList, uid types.UID) {
	l.Items = append(l.Items, metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{UID: uid}})
}

func TestSweepLeavesAStoreAloneThatDoesNotAnswer(t *testing.T) {
	e, _ := newExecutor(t, interceptor.Funcs{})
	s := &shelf{uids: []string{"uid-gone"}, listError: errors.New("PostgreSQL is away")}
	e.Store, e.SweepStore = s, true
	start(t, e)
	if len(s.deleted) > 0 {
		t.Errorf("%v were deleted after a list that failed", s.deleted)
	}
}
