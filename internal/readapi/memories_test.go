package readapi_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/capstan-dev/capstan/internal/runtime/journal"
	"github.com/capstan-dev/capstan/internal/runtime/journal/journaltest"
	"github.com/capstan-dev/capstan/internal/runtime/memories"
	"github.com/capstan-dev/capstan/internal/runtime/task"
	"github.com/capstan-dev/capstan/internal/store"
)

// learned returns a store with n memories of Ada and one of Bob in each of two namespaces.
func learned(t *testing.T, n int) *journaltest.Store {
	t.Helper()
	s := &journaltest.Store{}
	now := time.Unix(1000, 0).UTC()
	for _, namespace := range []string{"helpdesk", "sales"} {
		var all []memories.Memory
		for i := range n + 1 {
			m := memories.Memory{
				Namespace: namespace, Agent: "desk", Scope: memories.User, Text: fmt.Sprint("fact ", i), Requester: "ada & eve",
				Learned: now.Add(time.Duration(i) * time.Microsecond),
			}
			if i == n {
				m.Requester = "bob"
			}
			all = append(all, m)
		}
		learn(t, s, namespace, now, all...)
	}
	return s
}

// learn adds memories of a Turn to a store.
func learn(t *testing.T, s *journaltest.Store, namespace string, now time.Time, all ...memories.Memory) {
	t.Helper()
	uid := "uid-" + namespace
	if err := s.Append(t.Context(), uid, journal.Entry{
		Seq: 1, Epoch: 1, Kind: journal.Finalized, Payload: json.RawMessage("{}"),
		Tasks: []task.Task{{UID: uid, Kind: task.Learn, Namespace: namespace, Turn: "t", Agent: all[0].Agent, Created: now}},
	}); err != nil {
		t.Fatal(err)
	}
	k, err := s.ClaimTask(t.Context(), task.Search{Now: now, Until: now.Add(time.Hour)})
	if err != nil {
		t.Fatal(err)
	}
	for i := range all {
		all[i].Turn, all[i].TurnUID, all[i].Expires = "t", uid, now.Add(time.Hour)
		all[i].Identify()
	}
	if err := s.FinishTask(t.Context(), k.Held(), task.Result{Learned: &task.Learned{MaxItems: 10_000, Memories: all}}, 0); err != nil {
		t.Fatal(err)
	}
}

// TestMemoriesAreServedWithoutCredentials checks that a memory has no credential of the namespaces of its Turn and of
// its Agent. The stored memory stays as it is.
func TestMemoriesAreServedWithoutCredentials(t *testing.T) {
	s := &journaltest.Store{}
	const fact = "It said key-of-helpdesk and key-of-owner to sales."
	now := time.Unix(1000, 0).UTC()
	learn(t, s, "helpdesk", now, memories.Memory{
		Namespace: "helpdesk", Agent: "owner/desk", Scope: memories.User, Text: fact, Requester: "ada", Learned: now,
	})
	q := store.MemoryQuery{MemorySelector: store.MemorySelector{Namespace: "helpdesk"}}
	page, err := serve(t, s, "ada list memories/helpdesk")("ada").Memories(t.Context(), q)
	if err != nil || len(page.Memories) != 1 {
		t.Fatalf("got %+v, %v; want one memory", page, err)
	}
	if got, want := page.Memories[0].Text, "It said [redacted] and [redacted] to sales."; got != want {
		t.Errorf("the memory is %q, want %q", got, want)
	}
	if all, err := s.ListMemories(t.Context(), q); err != nil || all[0].Text != fact {
		t.Errorf("the store has %+v, %v; want the memory as it was", all, err)
	}
}

func TestMemoriesAreServedInPages(t *testing.T) {
	const n = store.MaxMemories + 3
	client := serve(t, learned(t, n), "ada list memories/helpdesk", "root list memories/")
	for user, want := range map[string]struct {
		namespace string
		memories  int
	}{"ada": {"helpdesk", n}, "root": {"", 2 * n}} {
		q := store.MemoryQuery{MemorySelector: store.MemorySelector{
			Namespace: want.namespace, Requester: "ada & eve", Scope: memories.User,
		}}
		seen := map[string]bool{}
		for {
			page, err := client(user).Memories(t.Context(), q)
			if err != nil {
				t.Fatal(err)
			}
			for i := range page.Memories {
				m := &page.Memories[i]
				if seen[m.ID] || want.namespace != "" && m.Namespace != want.namespace || m.Requester != "ada & eve" {
					t.Fatalf("%s receives %+v, want each selected memory of the namespace once", user, m)
				}
				seen[m.ID] = true
				q.After = store.MemoryPositionOf(m)
			}
			if page.Next == "" {
				break
			}
		}
		if len(seen) != want.memories {
			t.Errorf("%s receives %d memories, want %d", user, len(seen), want.memories)
		}
	}
}

func TestMemoriesNeedPermissions(t *testing.T) {
	s := learned(t, 2)
	client := serve(t, s, "ada list memories/helpdesk", "ada list helpdesk", "ada delete helpdesk", "eve list helpdesk",
		"keeper delete memories/helpdesk")
	inNamespace := func(namespace string) store.MemorySelector { return store.MemorySelector{Namespace: namespace} }
	ofAda := store.MemorySelector{Namespace: "helpdesk", Requester: "ada & eve"}
	for name, call := range map[string]struct {
		do   func() error
		want string
	}{
		"another namespace": {func() error {
			_, err := client("ada").Memories(t.Context(), store.MemoryQuery{MemorySelector: inNamespace("sales")})
			return err
		}, `user "ada" may not read memories learned from Turns in namespace "sales"`},
		"permission on records": {func() error {
			_, err := client("eve").Memories(t.Context(), store.MemoryQuery{MemorySelector: inNamespace("helpdesk")})
			return err
		}, "resources [turns/memories] and verbs [list], such as the ClusterRole capstan-turn-reader"},
		"deletion": {func() error {
			_, err := client("ada").DeleteMemories(t.Context(), ofAda)
			return err
		}, "may not delete memories"},
		"deletion of all": {func() error {
			_, err := client("keeper").DeleteMemories(t.Context(), inNamespace("helpdesk"))
			return err
		}, "select the memories to delete"},
	} {
		if err := call.do(); err == nil || !strings.Contains(err.Error(), call.want) {
			t.Errorf("%s: %v, want %q", name, err, call.want)
		}
	}
	out, err := client("keeper").DeleteMemories(t.Context(), ofAda)
	left, _ := s.ListMemories(t.Context(), store.MemoryQuery{MemorySelector: inNamespace("helpdesk")})
	if err != nil || out.Deleted != 2 || out.More || len(left) != 1 || left[0].Requester != "bob" {
		t.Errorf("DeleteMemories: %+v, %v; left: %v; want only the memory of Bob left", out, err, left)
	}
	if all, _ := s.ListMemories(t.Context(), store.MemoryQuery{MemorySelector: inNamespace("sales")}); len(all) != 3 {
		t.Errorf("%d memories in the other namespace, want 3", len(all))
	}
}

func TestParametersOfMemories(t *testing.T) {
	url := start(t, learned(t, 1), "ada list memories/helpdesk") + "/v1/namespaces/helpdesk/"
	for path, want := range map[string]int{
		"memories?scope=Agent": 400, "memories?after=x": 400, "memories?limit=501": 400, "memories?color=red": 400,
		"memories?id=%00": 400, "memories?turn=a%FF": 400,
		"memories?id=a&id=b": 400, "memories?requester=" + strings.Repeat("a", 1025): 400,
		"memories?scope=User&id=%27%20OR%201=1": 200, "memories?after=1-x": 200,
	} {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url+path, http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		response, err := bearer("ada").RoundTrip(r)
		if err != nil {
			t.Fatal(err)
		}
		_ = response.Body.Close()
		if response.StatusCode != want {
			t.Errorf("GET %.60s: status %d, want %d", path, response.StatusCode, want)
		}
	}
}
