package readapi_test

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"path/filepath"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/access"
	"github.com/capstan-dev/capstan/internal/readapi"
	"github.com/capstan-dev/capstan/internal/runtime/journal"
	"github.com/capstan-dev/capstan/internal/store/sqlite"
	"github.com/capstan-dev/capstan/internal/turnstatus"
	"github.com/capstan-dev/capstan/test/harness/harnesstest"
)

// testEnv is a namespace with a read API server.
type testEnv struct {
	namespace string
	store     *sqlite.Store
	options   readapi.Options
	server    *serving
}

// serving is a running read API server.
type serving struct {
	url    string
	tls    string
	cancel context.CancelFunc
	done   chan struct{}
	err    error
}

// serverTime is the time of an API server whose clock is an hour behind that of this machine. So each test would fail
// if a deadline of a connection depended on it.
func serverTime() time.Time { return time.Now().Add(-time.Hour) }

func newTestEnv(ctx context.Context, change ...func(*readapi.Options)) *testEnv {
	GinkgoHelper()
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "test-"}}
	Expect(apiClient.Create(ctx, namespace)).To(Succeed())
	store, err := sqlite.Open(ctx, filepath.Join(GinkgoT().TempDir(), "journal.db"))
	Expect(err).NotTo(HaveOccurred())
	DeferCleanup(store.Close)
	s := &testEnv{namespace: namespace.Name, store: store, options: readapi.Options{
		Address: "127.0.0.1:0", Journal: store, Turns: apiClient, Access: access.New(clientset, nil, time.Now),
		RolePrefix: "team-capstan", Now: serverTime, Log: GinkgoLogr,
		Poll: polling, Recheck: 5 * polling,
	}}
	for _, f := range change {
		f(&s.options)
	}
	s.server = s.serve(ctx)
	return s
}

// serve starts a server. The end of the spec stops it.
func (s *testEnv) serve(ctx context.Context) *serving {
	GinkgoHelper()
	listening, err := readapi.Listen(ctx, s.options)
	Expect(err).NotTo(HaveOccurred())
	life, cancel := context.WithCancel(context.WithoutCancel(ctx))
	running := &serving{url: listening.URL(), tls: listening.TLSURL(), cancel: cancel, done: make(chan struct{})}
	go func() {
		defer close(running.done)
		running.err = listening.Start(life)
	}()
	DeferCleanup(running.stop)
	return running
}

func (s *serving) stop() {
	GinkgoHelper()
	s.cancel()
	Eventually(s.done).Should(BeClosed(), "the server must stop")
	Expect(s.err).NotTo(HaveOccurred())
}

// turn creates a Turn.
func (s *testEnv) turn(ctx context.Context, name string) *v1alpha1.Turn {
	GinkgoHelper()
	t := &v1alpha1.Turn{
		ObjectMeta: metav1.ObjectMeta{Namespace: s.namespace, Name: name},
		Spec:       v1alpha1.TurnSpec{AgentRef: v1alpha1.SharedReference{Name: "support"}, Message: "What is new?"},
	}
	Expect(apiClient.Create(ctx, t)).To(Succeed())
	return t
}

// end sets the status of a Turn that was cancelled before it ran.
func end(ctx context.Context, t *v1alpha1.Turn) {
	GinkgoHelper()
	turnstatus.End(t, v1alpha1.TurnReasonCancelled, "the turn was cancelled", time.Now())
	Expect(apiClient.Status().Update(ctx, t)).To(Succeed())
}

// entry returns an entry of a journal.
func entry(seq int64, kind journal.Kind, payload string) journal.Entry {
	return journal.Entry{
		Seq: seq, Epoch: 1, Kind: kind, Version: 1, Time: time.Date(2026, 4, 9, 12, 0, int(seq%60), 0, time.UTC),
		Payload: json.RawMessage(payload),
	}
}

// story returns the entries of a Turn that has ended.
func story() []journal.Entry {
	return []journal.Entry{
		entry(1, journal.RunStarted, `{"executor":"capstan-0","namespace":"helpdesk","name":"first"}`),
		entry(2, journal.ModelReplied, `{"step":1,"provider":"demo","model":"small","reply":{"text":"a secret `+
			`word","finishReason":"stop"}}`),
		entry(3, journal.Finalized, `{"stop":"Completed","message":"the model answered","text":"a secret word"}`),
	}
}

func (s *testEnv) append(ctx context.Context, t *v1alpha1.Turn, entries ...journal.Entry) {
	GinkgoHelper()
	Expect(s.store.Append(ctx, string(t.UID), entries...)).To(Succeed())
}

// user creates a ServiceAccount with these permissions in the namespace of the test environment, and returns a token.
func (s *testEnv) user(ctx context.Context, name string, rules ...rbacv1.PolicyRule) (token string) {
	GinkgoHelper()
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: s.namespace, Name: name}}
	Expect(apiClient.Create(ctx, account)).To(Succeed())
	if len(rules) > 0 {
		s.allow(ctx, name, rules...)
	}
	request, err := clientset.CoreV1().ServiceAccounts(s.namespace).CreateToken(ctx, name,
		&authenticationv1.TokenRequest{}, metav1.CreateOptions{})
	Expect(err).NotTo(HaveOccurred())
	return request.Status.Token
}

// allow gives a ServiceAccount permissions in the namespace of the test environment, and waits until the API server
// applies them, because the read API keeps a refusal for a while.
func (s *testEnv) allow(ctx context.Context, name string, rules ...rbacv1.PolicyRule) {
	GinkgoHelper()
	meta := metav1.ObjectMeta{Namespace: s.namespace, Name: name}
	Expect(apiClient.Create(ctx, &rbacv1.Role{ObjectMeta: meta, Rules: rules})).To(Succeed())
	Expect(apiClient.Create(ctx, &rbacv1.RoleBinding{
		ObjectMeta: meta, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: name},
		Subjects: []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: s.namespace, Name: name}},
	})).To(Succeed())
	harnesstest.AwaitAccess(ctx, GinkgoTB(), clientset, s.namespace, "system:serviceaccount:"+s.namespace+":"+name, rules...)
}

// logRule is the permission to read journals.
var logRule = rbacv1.PolicyRule{APIGroups: []string{"capstan.dev"}, Resources: []string{"turns/log"}, Verbs: []string{"get"}}

// answer is a response of the server.
type answer struct {
	status int
	header http.Header
	body   string
}

// get requests a path from the server of the test environment.
func (s *testEnv) get(ctx context.Context, token, path string) answer {
	GinkgoHelper()
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, s.server.url+path, http.NoBody)
	Expect(err).NotTo(HaveOccurred())
	if token != "" {
		r.Header.Set("Authorization", "Bearer "+token)
	}
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	response, err := client.Do(r)
	Expect(err).NotTo(HaveOccurred())
	defer response.Body.Close() //nolint:errcheck // because it was only read
	body, err := io.ReadAll(response.Body)
	Expect(err).NotTo(HaveOccurred())
	return answer{response.StatusCode, response.Header, string(body)}
}

func (s *testEnv) path(turn, what string) string {
	return "/v1/namespaces/" + s.namespace + "/turns/" + turn + "/" + what
}

// refusal checks the status of a refusal and returns its message.
func (a answer) refusal(status int) string {
	GinkgoHelper()
	Expect(a.status).To(Equal(status), "the answer was %s", a.body)
	Expect(a.header.Get("Content-Type")).To(Equal("application/json"))
	var e readapi.Error
	Expect(json.Unmarshal([]byte(a.body), &e)).To(Succeed())
	Expect(e.Status).To(Equal(status))
	return e.Message
}

// lines returns the entries of an answer.
func (a answer) lines() []map[string]any {
	GinkgoHelper()
	Expect(a.status).To(Equal(http.StatusOK), "the answer was %s", a.body)
	var all []map[string]any
	for line := range strings.Lines(a.body) {
		if strings.TrimSpace(line) == "" {
			continue
		}
		var one map[string]any
		Expect(json.Unmarshal([]byte(line), &one)).To(Succeed())
		all = append(all, one)
	}
	return all
}
