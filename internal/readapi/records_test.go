package readapi_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/google/go-cmp/cmp"
	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	fakeclient "sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/access"
	"github.com/capstan-dev/capstan/internal/readapi"
	"github.com/capstan-dev/capstan/internal/redact"
	"github.com/capstan-dev/capstan/internal/runtime/journal"
	"github.com/capstan-dev/capstan/internal/runtime/journal/journaltest"
	"github.com/capstan-dev/capstan/internal/runtime/model"
	"github.com/capstan-dev/capstan/internal/runtime/turnrecord"
	"github.com/capstan-dev/capstan/internal/store"
	"github.com/capstan-dev/capstan/internal/usage"
)

// permissions returns an API server that grants permissions: "USER VERB NAMESPACE" is a permission on turns/records,
// turns/feedback or turns/log, and "USER VERB memories/NAMESPACE" a permission on turns/memories.
func permissions(granted ...string) *fake.Clientset {
	c := fake.NewClientset()
	c.PrependReactor("create", "tokenreviews", func(a clienttesting.Action) (bool, runtime.Object, error) {
		r := a.(clienttesting.CreateAction).GetObject().(*authenticationv1.TokenReview).DeepCopy()
		r.Status.Authenticated, r.Status.User.Username = true, r.Spec.Token
		return true, r, nil
	})
	c.PrependReactor("create", "subjectaccessreviews", func(a clienttesting.Action) (bool, runtime.Object, error) {
		r := a.(clienttesting.CreateAction).GetObject().(*authorizationv1.SubjectAccessReview).DeepCopy()
		attributes := r.Spec.ResourceAttributes
		where := attributes.Namespace
		if attributes.Subresource == "memories" {
			where = "memories/" + where
		}
		for _, g := range granted {
			r.Status.Allowed = r.Status.Allowed || g == fmt.Sprintf("%s %s %s", r.Spec.User, attributes.Verb, where) &&
				attributes.Resource == "turns" && attributes.Group == "capstan.dev" &&
				slices.Contains([]string{"feedback", "log"}, attributes.Subresource) == (attributes.Name != "")
		}
		return true, r, nil
	})
	return c
}

// bearer adds a token to requests.
type bearer string

func (b bearer) RoundTrip(r *http.Request) (*http.Response, error) {
	r.Header.Set("Authorization", "Bearer "+string(b))
	return http.DefaultTransport.RoundTrip(r)
}

// clusterObjects returns the objects of the cluster: Turn t0, whose Agent redacts numbers of invoices, Turn t2, whose
// Agent does not exist, and Turn daily, which has not ended.
func clusterObjects(t *testing.T) client.Reader {
	t.Helper()
	scheme := runtime.NewScheme()
	if err := v1alpha1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	metadata := func(name string) metav1.ObjectMeta {
		return metav1.ObjectMeta{Namespace: "helpdesk", Name: name, UID: types.UID(strings.Replace(name, "t", "helpdesk-0000", 1))}
	}
	turnOf := func(name, agent string) *v1alpha1.Turn {
		return &v1alpha1.Turn{ObjectMeta: metadata(name), Spec: v1alpha1.TurnSpec{AgentRef: v1alpha1.SharedReference{Name: agent}}}
	}
	turns := []client.Object{turnOf("t0", "desk"), turnOf("t2", "gone"), turnOf("daily", "desk")}
	return fakeclient.NewClientBuilder().WithScheme(scheme).WithObjects(turns...).WithObjects(&v1alpha1.Agent{
		ObjectMeta: metadata("desk"), Spec: v1alpha1.AgentSpec{Redaction: &v1alpha1.AgentRedaction{
			Patterns: []v1alpha1.RedactionPattern{{Name: "invoice", Pattern: "INV-[0-9]+"}},
		}},
	}).Build()
}

// credentials returns the credentials of two namespaces that the server uses.
func credentials() *redact.Set {
	all := redact.NewSet()
	all.Put("helpdesk", "provider", []string{"key-of-helpdesk"})
	all.Put("owner", "provider", []string{"key-of-owner"})
	return all
}

// serverTime is the time of an API server whose clock is an hour behind that of this machine. So each test would fail
// if a deadline of a connection depended on it.
func serverTime() time.Time { return time.Now().Add(-time.Hour) }

// start starts a server with these records, and returns its URL.
func start(t *testing.T, s store.Records, granted ...string) string {
	t.Helper()
	return startLogged(t, logr.Discard(), s, granted...)
}

// startLogged starts a server with these records and this log, and returns its URL.
func startLogged(t *testing.T, log logr.Logger, s store.Records, granted ...string) string {
	t.Helper()
	learned, _ := s.(store.Memories)
	entries, _ := s.(journal.Journal)
	server, err := readapi.Listen(t.Context(), readapi.Options{
		Address: "127.0.0.1:0", Journal: entries, Records: s, Memories: learned, Turns: clusterObjects(t),
		Access: access.New(permissions(granted...), nil, time.Now), RolePrefix: "capstan", Now: serverTime,
		Credentials: credentials(), Log: log,
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- server.Start(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		http.DefaultTransport.(*http.Transport).CloseIdleConnections()
	})
	return server.URL()
}

// serve starts a server with these records, and returns a function that makes the client of a user.
func serve(t *testing.T, s store.Records, granted ...string) func(user string) *readapi.Client {
	t.Helper()
	url := start(t, s, granted...)
	return func(user string) *readapi.Client {
		c, err := readapi.NewClient(url, bearer(user))
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
}

// storeWith returns a store with n records in each of two namespaces.
func storeWith(t *testing.T, n int) *journaltest.Store {
	t.Helper()
	s := &journaltest.Store{}
	for i := range n {
		for _, namespace := range []string{"helpdesk", "sales"} {
			if _, err := s.AddRecords(t.Context(), turnrecord.Record{
				UID: fmt.Sprintf("%s-%05d", namespace, i), Namespace: namespace, Turn: fmt.Sprint("t", i), Agent: "desk", Session: "talk",
				Requester: "ada & eve", Completed: time.Unix(int64(i), 1000).UTC(), Reason: "Completed",
				Details: turnrecord.Details{Models: []turnrecord.Model{{Provider: "p", Model: "m", Usage: model.Usage{InputTokens: 1}}}},
			}); err != nil {
				t.Fatal(err)
			}
		}
	}
	return s
}

func TestRecordsAreServedInPages(t *testing.T) {
	client := serve(t, storeWith(t, store.MaxRecords+2), "ada list helpdesk", "root list ")
	for user, want := range map[string]struct {
		namespace string
		records   int
	}{"ada": {"helpdesk", store.MaxRecords + 2}, "root": {"", 2 * (store.MaxRecords + 2)}} {
		q := store.RecordQuery{RecordSelector: store.RecordSelector{Namespace: want.namespace, Requester: "ada & eve"}}
		seen := map[string]bool{}
		for {
			page, err := client(user).Records(t.Context(), q)
			if err != nil {
				t.Fatal(err)
			}
			for i := range page.Records {
				r := &page.Records[i]
				if seen[r.UID] || want.namespace != "" && r.Namespace != want.namespace {
					t.Fatalf("%s receives %+v, want each record of the namespace once", user, r)
				}
				seen[r.UID] = true
				q.After = store.PositionOf(r)
			}
			if page.Next == "" {
				break
			}
		}
		if len(seen) != want.records {
			t.Errorf("%s receives %d records, want %d", user, len(seen), want.records)
		}
		q.After = store.RecordPosition{}
		got, err := client(user).Usage(t.Context(), q, []usage.Dimension{usage.Model, usage.Requester})
		if err != nil || len(got.Groups) != 1 || got.Groups[0].TurnsOfUnknownCost != int64(want.records) || len(got.Groups[0].Costs) != 0 {
			t.Errorf("usage for %s: %+v, %v; want that of %d Turns of unknown cost", user, got, err, want.records)
		}
	}
}

// TestAnswersWithRecordsAreBounded checks that the answer has a limited size although people write long comments on
// many Turns, and that the next page follows.
func TestAnswersWithRecordsAreBounded(t *testing.T) {
	const turns = 100
	s := storeWith(t, turns)
	for i := range turns * turnrecord.MaxFeedback {
		f := turnrecord.Feedback{User: fmt.Sprint("user ", i), Score: "1", Comment: strings.Repeat("<", turnrecord.MaxComment)}
		if err := s.AddFeedback(t.Context(), "helpdesk", fmt.Sprint("t", i%turns), "", f); err != nil {
			t.Fatal(err)
		}
	}
	path := start(t, s, "ada list helpdesk") + "/v1/namespaces/helpdesk/records"
	seen := map[string]bool{}
	for after := "?"; after != ""; {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, path+after, http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		response, err := bearer("ada").RoundTrip(r)
		if err != nil {
			t.Fatal(err)
		}
		data, err := io.ReadAll(response.Body)
		if err := errors.Join(err, response.Body.Close()); err != nil {
			t.Fatal(err)
		}
		if len(data) > store.PageRecordBytes || strings.Contains(string(data), `\u003c`) {
			t.Errorf("an answer has %d bytes, want at most %d, without escapes that double its size", len(data), store.PageRecordBytes)
		}
		var page readapi.RecordPage
		if err := json.Unmarshal(data, &page); err != nil {
			t.Fatal(err)
		}
		for i := range page.Records {
			seen[page.Records[i].UID] = true
		}
		if after = page.Next; after != "" {
			after = "?after=" + after
		}
	}
	if len(seen) != turns {
		t.Errorf("the pages have %d records, want %d", len(seen), turns)
	}
}

// TestCommentsAreServedWithoutCredentials checks that the comments in a record have no credential of the namespaces of
// the Turn and of its Agent. The stored record stays as it is.
func TestCommentsAreServedWithoutCredentials(t *testing.T) {
	s := &journaltest.Store{}
	if _, err := s.AddRecords(t.Context(), turnrecord.Record{
		UID: "1", Namespace: "helpdesk", Turn: "t0", Agent: "owner/desk", Reason: "Completed", Completed: time.Unix(1, 0).UTC(),
	}); err != nil {
		t.Fatal(err)
	}
	const comment = "It said key-of-helpdesk and key-of-owner to sales."
	if err := s.AddFeedback(t.Context(), "helpdesk", "t0", "", turnrecord.Feedback{User: "ada", Score: "1", Comment: comment}); err != nil {
		t.Fatal(err)
	}
	q := store.RecordQuery{RecordSelector: store.RecordSelector{Namespace: "helpdesk"}}
	page, err := serve(t, s, "ada list helpdesk")("ada").Records(t.Context(), q)
	if err != nil || len(page.Records) != 1 || len(page.Records[0].Feedback) != 1 {
		t.Fatalf("got %+v, %v; want one record with a comment", page, err)
	}
	const want = "It said [redacted] and [redacted] to sales."
	if got := page.Records[0].Feedback[0].Comment; got != want {
		t.Errorf("the comment is %q, want %q", got, want)
	}
	if all, _, err := s.Records(t.Context(), q); err != nil || all[0].Feedback[0].Comment != comment {
		t.Errorf("the store has %+v, %v; want the comment as it was", all, err)
	}
}

// TestUsageSaysWhatItLacks checks that the usage since a time says whether retention has deleted records of Turns that
// ended since then.
func TestUsageSaysWhatItLacks(t *testing.T) {
	s := storeWith(t, 3)
	oldest, _, err := s.Records(t.Context(), store.RecordQuery{RecordSelector: store.RecordSelector{Namespace: "helpdesk"}})
	if err != nil {
		t.Fatal(err)
	}
	deleted := oldest[len(oldest)-1].Completed
	client := serve(t, s, "ada list helpdesk")("ada")
	until := func(since time.Time) *time.Time {
		t.Helper()
		q := store.RecordQuery{RecordSelector: store.RecordSelector{Namespace: "helpdesk"}, Since: since}
		got, err := client.Usage(t.Context(), q, []usage.Dimension{usage.Agent})
		if err != nil {
			t.Fatal(err)
		}
		return got.DeletedUntil
	}
	if got := until(time.Time{}); got != nil {
		t.Errorf("records are missing until %s, before any was deleted", got)
	}
	for {
		if n, err := s.TrimRecords(t.Context(), 2, 10); err != nil {
			t.Fatal(err)
		} else if n == 0 {
			break
		}
	}
	for since, want := range map[time.Time]bool{{}: true, deleted: true, deleted.Add(time.Microsecond): false} {
		if got := until(since); (got != nil) != want || want && !got.Equal(deleted) {
			t.Errorf("usage since %s: DeletedUntil is %v, want %s only if the selected time includes it", since, got, deleted)
		}
	}
}

func TestRecordsNeedPermissions(t *testing.T) {
	s := storeWith(t, 1)
	client := serve(t, s, "ada list helpdesk", "keeper delete helpdesk")
	for name, call := range map[string]struct {
		do   func() error
		want string
	}{
		"another namespace": {func() error {
			_, err := client("ada").Records(t.Context(), store.RecordQuery{RecordSelector: store.RecordSelector{Namespace: "sales"}})
			return err
		}, `user "ada" may not read records of Turns in namespace "sales"`},
		"all namespaces": {func() error {
			_, err := client("ada").Usage(t.Context(), store.RecordQuery{}, []usage.Dimension{usage.Agent})
			return err
		}, "in all namespaces: this requires a ClusterRole that is bound by a ClusterRoleBinding"},
		"the role": {func() error {
			_, err := client("eve").Records(t.Context(), store.RecordQuery{RecordSelector: store.RecordSelector{Namespace: "helpdesk"}})
			return err
		}, "the ClusterRole capstan-turn-reader"},
		"deletion": {func() error {
			_, err := client("ada").DeleteRecords(t.Context(), store.RecordSelector{Namespace: "helpdesk", Session: "talk"})
			return err
		}, "may not delete records"},
		"deletion of all": {func() error {
			_, err := client("keeper").DeleteRecords(t.Context(), store.RecordSelector{Namespace: "helpdesk"})
			return err
		}, "select the records to delete"},
	} {
		if err := call.do(); err == nil || !strings.Contains(err.Error(), call.want) {
			t.Errorf("%s: %v, want %q", name, err, call.want)
		}
	}
	out, err := client("keeper").DeleteRecords(t.Context(), store.RecordSelector{Namespace: "helpdesk", Requester: "ada & eve"})
	left, _, _ := s.Records(t.Context(), store.RecordQuery{})
	if err != nil || out.Deleted != 1 || out.More || len(left) != 1 || left[0].Namespace != "sales" {
		t.Errorf("DeleteRecords: %+v, %v; left: %v; want only the record of the other namespace left", out, err, left)
	}
}

// unreachable is a store whose records cannot be read.
type unreachable struct{ records }

// records is embedded under this name, because store.Records has a method Records.
type records = store.Records

func (unreachable) Records(context.Context, store.RecordQuery) ([]turnrecord.Record, bool, error) {
	return nil, false, errors.New("it is unreachable")
}

func TestRecordsOfUnreachableStore(t *testing.T) {
	client := serve(t, unreachable{&journaltest.Store{}}, "ada list helpdesk")
	q := store.RecordQuery{RecordSelector: store.RecordSelector{Namespace: "helpdesk"}}
	_, first := client("ada").Records(t.Context(), q)
	_, second := client("ada").Usage(t.Context(), q, []usage.Dimension{usage.Agent})
	for _, err := range []error{first, second} {
		if e, ok := errors.AsType[*readapi.Error](err); !ok || e.Status != http.StatusServiceUnavailable {
			t.Errorf("%v, want status 503, so that the client tries again", err)
		}
	}
}

// marked notes which calls serve lists.
type marked struct {
	records
	lists map[string]bool
}

func (m *marked) Records(ctx context.Context, _ store.RecordQuery) ([]turnrecord.Record, bool, error) {
	m.lists["Records"] = store.IsOfLists(ctx)
	return nil, false, nil
}

func (m *marked) DeletedUntil(ctx context.Context, _ string) (time.Time, error) {
	m.lists["DeletedUntil"] = store.IsOfLists(ctx)
	return time.Time{}, nil
}

func (m *marked) AddFeedback(ctx context.Context, _, _, _ string, _ turnrecord.Feedback) error {
	m.lists["AddFeedback"] = store.IsOfLists(ctx)
	return nil
}

// TestListsAreMarked checks that a store can limit the calls that serve lists, so that the feedback of another user
// does not wait for them.
func TestListsAreMarked(t *testing.T) {
	m := &marked{&journaltest.Store{}, map[string]bool{}}
	client := serve(t, m, "ada list helpdesk", "eve create helpdesk")
	q := store.RecordQuery{RecordSelector: store.RecordSelector{Namespace: "helpdesk"}}
	_, records := client("ada").Records(t.Context(), q)
	_, sums := client("ada").Usage(t.Context(), q, []usage.Dimension{usage.Agent})
	_, feedback := client("eve").AddFeedback(t.Context(), "helpdesk", "t0", "1", "")
	if err := errors.Join(records, sums, feedback); err != nil {
		t.Fatal(err)
	}
	want := map[string]bool{"Records": true, "DeletedUntil": true, "AddFeedback": false}
	if diff := cmp.Diff(want, m.lists); diff != "" {
		t.Errorf("the calls that are marked (-want +got):\n%s", diff)
	}
}

func TestParametersOfRecords(t *testing.T) {
	url := start(t, storeWith(t, 1), "ada list helpdesk") + "/v1/namespaces/helpdesk/"
	for path, want := range map[string]int{
		"records?since=yesterday": 400, "records?after=x": 400, "records?limit=0": 400, "records?limit=501": 400, "records?color=red": 400,
		"records?agent=%00": 400, "usage?requester=a%FF": 400, "records?after=1-%00": 400, "records?agent=%C3%A4": 200,
		"records?agent=a&agent=b": 400, "records?agent=" + strings.Repeat("a", 1025): 400, "usage?by=color": 400, "usage?by=agent": 200,
		"records?after=1-x": 200,
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

func TestFeedback(t *testing.T) {
	s := storeWith(t, 1)
	ada := serve(t, s, "ada create helpdesk")("ada")
	for _, score := range []string{"0.25", "1"} {
		if out, err := ada.AddFeedback(t.Context(), "helpdesk", "t0", score, "INV-4711 is \"so so\""); err != nil || out.TurnDeleted {
			t.Fatalf("%+v, %v", out, err)
		}
	}
	all, _, err := s.Records(t.Context(), store.RecordQuery{RecordSelector: store.RecordSelector{Namespace: "helpdesk"}})
	if err != nil || len(all[0].Feedback) != 1 || all[0].Feedback[0].User != "ada" || all[0].Feedback[0].Score != "1" ||
		all[0].Feedback[0].Comment != `[redacted:invoice] is "so so"` {
		t.Errorf("%+v, %v; want only the last feedback, redacted, in the name of the token's user", all, err)
	}
	for name, tc := range map[string]struct{ namespace, turn, score, comment, want string }{
		"no permission": {"sales", "t0", "1", "", "a RoleBinding to the ClusterRole capstan-turn-author"},
		"no record":     {"helpdesk", "t1", "1", "", "there is no record of Turn"},
		"too good":      {"helpdesk", "t0", "7.3", "", "must be a number from 0 to 1"},
		"too bad":       {"helpdesk", "t0", "-0.1", "", "must be a number from 0 to 1"},
		"no number":     {"helpdesk", "t0", "NaN", "", "must be a number from 0 to 1"},
		"an exponent":   {"helpdesk", "t0", "1e-999", "", "must be a number from 0 to 1"},
		"too long":      {"helpdesk", "t0", "1", strings.Repeat("x", 2049), "at most 2048 bytes"},
		"not UTF-8":     {"helpdesk", "t0", "1", "\xff", "must be UTF-8"},
		"no Turn":       {"helpdesk", "t1", "1", "x", "give a score without a comment"},
		"no Agent":      {"helpdesk", "t2", "1", "x", "does not exist anymore"},
		"invalid name":  {"helpdesk", "T 0", "1", "", "must be valid names"},
	} {
		if _, err := ada.AddFeedback(t.Context(), tc.namespace, tc.turn, tc.score, tc.comment); err == nil ||
			!strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: %v, want %q", name, err, tc.want)
		}
	}
}

// TestFeedbackThatGrows checks that a comment of a valid length is stored even if its redaction makes it too long. It
// is then cut between two characters.
func TestFeedbackThatGrows(t *testing.T) {
	s := storeWith(t, 1)
	ada := serve(t, s, "ada create helpdesk")("ada")
	for _, begin := range []string{"", "x"} { // the limit is after a character, and within one
		comment := begin + strings.Repeat("INV-1 ", 100) + strings.Repeat("é", 700)
		if _, err := ada.AddFeedback(t.Context(), "helpdesk", "t0", "1", comment); err != nil {
			t.Fatal(err)
		}
		redacted := begin + strings.Repeat("[redacted:invoice] ", 100)
		want := redacted + strings.Repeat("é", (turnrecord.MaxComment-len(redacted))/len("é"))
		all, _, err := s.Records(t.Context(), store.RecordQuery{RecordSelector: store.RecordSelector{Namespace: "helpdesk"}})
		if err != nil || len(all[0].Feedback) != 1 || all[0].Feedback[0].Comment != want {
			t.Errorf("%+v, %v; want the first %d bytes of the redacted comment", all, err, len(want))
		}
	}
}

// TestFeedbackIsAboutTheTurnThatExists checks that feedback to a Turn that has not ended is refused, instead of stored
// for an older Turn of the same name. The response to feedback about a deleted Turn must say that the Turn is deleted.
func TestFeedbackIsAboutTheTurnThatExists(t *testing.T) {
	s := &journaltest.Store{}
	for _, name := range []string{"daily", "weekly"} {
		if _, err := s.AddRecords(t.Context(), turnrecord.Record{
			UID: "old-" + name, Namespace: "helpdesk", Turn: name, Agent: "desk", Completed: time.Unix(1, 0).UTC(), Reason: "Completed",
		}); err != nil {
			t.Fatal(err)
		}
	}
	ada := serve(t, s, "ada create helpdesk")("ada")
	for _, comment := range []string{"", "Late."} {
		if _, err := ada.AddFeedback(t.Context(), "helpdesk", "daily", "0", comment); err == nil ||
			!strings.Contains(err.Error(), `the Turn "daily" in namespace "helpdesk" has not ended`) {
			t.Errorf("feedback with the comment %q: %v, want that the Turn has not ended", comment, err)
		}
	}
	out, err := ada.AddFeedback(t.Context(), "helpdesk", "weekly", "0", "")
	if err != nil || !out.TurnDeleted {
		t.Errorf("%+v, %v; want feedback about the deleted Turn", out, err)
	}
	all, _, err := s.Records(t.Context(), store.RecordQuery{})
	if err != nil || len(all) != 2 || len(all[0].Feedback) != 1 || len(all[1].Feedback) != 0 || all[0].Turn != "weekly" {
		t.Errorf("the records are %+v, %v; want one feedback, about the deleted Turn", all, err)
	}
}
