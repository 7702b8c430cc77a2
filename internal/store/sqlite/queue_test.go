package sqlite

import (
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// batches takes all waiting appends, and returns the UIDs of each batch.
func batches(q *queue) (all [][]string) {
	for {
		batch := q.take()
		if len(batch) == 0 {
			return all
		}
		var names []string
		for _, call := range batch {
			names = append(names, call.uid)
		}
		all = append(all, names)
	}
}

func TestAppendsOfNamespacesTakeTurns(t *testing.T) {
	const long = maxBatchBytes
	for name, tc := range map[string]struct {
		reason string
		added  []appendCall
		want   [][]string
	}{
		"short appends of one namespace": {
			"they share a transaction, in their order",
			[]appendCall{
				{uid: "a1", namespace: "a", bytes: 200},
				{uid: "a2", namespace: "a", bytes: 200},
				{uid: "a3", namespace: "a", bytes: 200},
			},
			[][]string{{"a1", "a2", "a3"}},
		},
		"long appends of one namespace and short ones of another": {
			"each long append has its own transaction, and the short ones wait for only one of them",
			[]appendCall{
				{uid: "a1", namespace: "a", bytes: 2 * long},
				{uid: "a2", namespace: "a", bytes: 2 * long},
				{uid: "v1", namespace: "v", bytes: 200},
				{uid: "v2", namespace: "v", bytes: 200},
			},
			[][]string{{"a1"}, {"v1", "v2"}, {"a2"}},
		},
		"many short appends of one namespace and one of another": {
			"the single append does not wait for the many",
			slices.Concat(many("a", 600, long/256), []appendCall{{uid: "v", namespace: "v", bytes: 200}}),
			[][]string{
				slices.Concat([]string{"a", "v"}, slices.Repeat([]string{"a"}, 254)), slices.Repeat([]string{"a"}, 256),
				slices.Repeat([]string{"a"}, 89),
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			q := newQueue()
			for i := range tc.added {
				q.add(&tc.added[i])
			}
			if diff := cmp.Diff(tc.want, batches(q)); diff != "" {
				t.Errorf("%s (-want +got):\n%s", tc.reason, diff)
			}
			if len(q.ends) != 0 {
				t.Errorf("the empty queue has the ends %v, want none: otherwise it would grow with the number of namespaces", q.ends)
			}
		})
	}
}

func many(namespace string, n int, bytes int64) (all []appendCall) {
	for range n {
		all = append(all, appendCall{uid: namespace, namespace: namespace, bytes: bytes})
	}
	return all
}

func TestRemoveTakesOnlyWaitingAppends(t *testing.T) {
	q := newQueue()
	first, second := &appendCall{uid: "1", bytes: 200}, &appendCall{uid: "2", bytes: 200}
	q.add(first)
	q.add(second)
	if !q.remove(first) || q.remove(first) {
		t.Error("want a waiting append to be removed exactly once")
	}
	if diff := cmp.Diff([][]string{{"2"}}, batches(q)); diff != "" {
		t.Errorf("batches after the removal (-want +got):\n%s", diff)
	}
	if q.remove(second) {
		t.Error("an append that the writer has taken was removed, want false")
	}
	select {
	case <-q.ready:
	default:
		t.Error("the channel ready is empty, want an item for the waiting appends")
	}
}
