package journalgc

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capstan-dev/capstan/internal/runtime/turnrecord"
	"github.com/capstan-dev/capstan/internal/store"
)

// forbidding is a reader that may not list the objects of a namespace.
type forbidding struct {
	client.Reader
	namespace string
}

// List lists objects.
func (f forbidding) List(ctx context.Context, l client.ObjectList, opts ...client.ListOption) error {
	if (&client.ListOptions{}).ApplyOptions(opts).Namespace == f.namespace {
		return apierrors.NewForbidden(schema.GroupResource{Group: "capstan.dev"}, "", errors.New("no Role"))
	}
	return f.Reader.List(ctx, l, opts...)
}

// TestCommentIsDeletedWithTurnThatNeverRan checks that the comment on a deleted Turn without a journal is deleted, even
// if no watch has seen the deletion. The comments on other Turns are kept: the Turn exists, or is of a namespace of
// another installation.
func TestCommentIsDeletedWithTurnThatNeverRan(t *testing.T) {
	for name, tc := range map[string]struct {
		namespaces []string
		forbidden  string
		find       func(*testing.T, *chargeEnv)
		want       []string
	}{
		"seen by the watch": {
			nil, "", func(t *testing.T, o *chargeEnv) { o.Deleted(turnOf("a")); o.followUp(t.Context()) }, []string{"uid-kept", "uid-sold"},
		},
		"found by a sweep": {
			nil, "", func(t *testing.T, o *chargeEnv) { o.report("sweep", o.sweep(t.Context())) }, []string{"uid-kept"},
		},
		"found by a sweep of its namespace": {
			[]string{"helpdesk"},
			"",
			func(t *testing.T, o *chargeEnv) { o.report("sweep", o.sweep(t.Context())) },
			[]string{"uid-kept", "uid-sold"},
		},
		"found by a sweep that may not list another namespace": {
			[]string{"helpdesk", "sales"},
			"sales",
			func(t *testing.T, o *chargeEnv) { o.report("sweep", o.sweep(t.Context())) },
			[]string{"uid-kept", "uid-sold"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			o := newChargeEnv(t, turnOf("kept"))
			o.Namespaces, o.Namespace = tc.namespaces, o.engine.Namespace
			if tc.forbidden != "" {
				o.Reader = forbidding{o.Reader, tc.forbidden}
			}
			for uid, namespace := range map[string]string{"uid-a": "helpdesk", "uid-kept": "helpdesk", "uid-sold": "sales"} {
				if _, err := o.store.AddRecords(t.Context(), turnrecord.Record{
					UID: uid, Namespace: namespace, Turn: uid, Agent: "helper", Reason: "QueueFull", Completed: time.Unix(1000, 0),
				}); err != nil {
					t.Fatal(err)
				}
				if err := o.store.AddFeedback(t.Context(), namespace, uid, uid,
					turnrecord.Feedback{User: "ada", Score: "0", Comment: "it never ran"}); err != nil {
					t.Fatal(err)
				}
			}
			tc.find(t, o)
			var commented, scored []string
			for r, err := range store.AllRecords(t.Context(), o.store, store.RecordQuery{}) {
				if err != nil {
					t.Fatal(err)
				}
				for _, f := range r.Feedback {
					if scored = append(scored, r.UID); f.Comment != "" {
						commented = append(commented, r.UID)
					}
				}
			}
			if slices.Sort(commented); !slices.Equal(commented, tc.want) || len(scored) != 3 {
				t.Errorf("there are comments on %v and scores of %v, want comments on %v, and all scores", commented, scored, tc.want)
			}
		})
	}
}
