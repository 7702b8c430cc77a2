package controller_test

import (
	"context"
	"fmt"
	"regexp"
	"strings"
	"sync"

	"github.com/go-logr/logr"
	"github.com/go-logr/logr/funcr"
	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/manager"
	"github.com/capstan-dev/capstan/test/fakemodel/server"
	"github.com/capstan-dev/capstan/test/harness/harnesstest"
)

// testEnv is a namespace with its own model server.
type testEnv struct {
	namespace string
	fake      *server.Server
	gate      *gate
	// baseURL is the URL of the model server, with the version in its path.
	baseURL string
	// host is the host and port of the model server.
	host string
}

// newTestEnv creates a namespace and a model server with these rules.
func newTestEnv(ctx context.Context, rules string) *testEnv {
	GinkgoHelper()
	return newTestEnvWith(ctx, config(rules))
}

func newTestEnvWith(ctx context.Context, cfg server.Config) *testEnv {
	GinkgoHelper()
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "test-"}}
	Expect(apiClient.Create(ctx, namespace)).To(Succeed())
	fake, err := server.New(cfg, server.WithKeptRequests(1000))
	Expect(err).NotTo(HaveOccurred(), "the rules of the model must be valid")
	gate := &gate{next: fake}
	url := harnesstest.Serve(GinkgoTB(), gate)
	DeferCleanup(fake.Close)
	return &testEnv{namespace: namespace.Name, fake: fake, gate: gate, baseURL: url + "/v1", host: strings.TrimPrefix(url, "http://")}
}

func config(rules string) server.Config {
	GinkgoHelper()
	cfg, err := server.ParseConfig([]byte(rules))
	Expect(err).NotTo(HaveOccurred(), "the rules of the model must be valid")
	return cfg
}

// runningManager is a manager in this process.
type runningManager struct {
	options manager.Options
	logs    *logs
	// earlierLogs is the length of libraryLogs before the manager was started.
	earlierLogs int
	// stop stops the manager and returns when it has stopped.
	stop func()
}

// options returns the options of a manager that watches only this namespace.
func (s *testEnv) options(change ...func(*manager.Options)) manager.Options {
	o := harnesstest.Options(GinkgoTB(), s.namespace)
	o.MaxConcurrentTurns, o.LogLevel = 1000, "debug"
	for _, f := range change {
		f(&o)
	}
	return o
}

// run starts a manager. The end of the spec stops it.
func (s *testEnv) run(change ...func(*manager.Options)) *runningManager {
	GinkgoHelper()
	return start(s.options(change...))
}

// start starts a manager. The end of the spec stops it.
func start(o manager.Options) *runningManager {
	GinkgoHelper()
	return startAs(apiConfig, o)
}

// startAs starts a manager with the permissions of this user. The end of the spec stops it.
func startAs(user *rest.Config, o manager.Options) *runningManager {
	GinkgoHelper()
	m := &runningManager{options: o, logs: &logs{}, earlierLogs: len(libraryLogs.String())}
	m.stop = harnesstest.RunManager(GinkgoTB(), user, o, m.logs.logger())
	return m
}

// servedAt returns the address of a server of the manager, "metrics" or "health probe". The manager must be the newest
// one of this process.
func (m *runningManager) servedAt(ctx context.Context, server string) (address string) {
	GinkgoHelper()
	line := regexp.MustCompile(`(?i)"starting server" "name"="` + server + `" "addr"="([^"]+)"`)
	Eventually(func() bool {
		found := line.FindStringSubmatch(libraryLogs.String()[m.earlierLogs:] + m.logs.String())
		if found != nil {
			address = found[1]
		}
		return found != nil
	}).WithContext(ctx).Should(BeTrue(), "the manager must serve %s", server)
	return address
}

// logs keeps all logged lines. It is safe for concurrent use.
type logs struct {
	mu   sync.Mutex
	text strings.Builder
}

func (l *logs) logger() logr.Logger {
	return funcr.New(func(prefix, args string) {
		line := fmt.Sprintf("%s %s\n", prefix, args)
		_, _ = GinkgoWriter.Write([]byte(line))
		l.mu.Lock()
		defer l.mu.Unlock()
		l.text.WriteString(line)
	}, funcr.Options{Verbosity: 4, LogTimestamp: true})
}

func (l *logs) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// create creates objects in the namespace of the test environment.
func (s *testEnv) create(ctx context.Context, objects ...client.Object) {
	GinkgoHelper()
	for _, o := range objects {
		o.SetNamespace(s.namespace)
		Expect(apiClient.Create(ctx, o)).To(Succeed(), "%T %s must be created", o, o.GetName())
	}
}

// key returns the key of an object in the namespace of the test environment.
func (s *testEnv) key(name string) client.ObjectKey {
	return client.ObjectKey{Namespace: s.namespace, Name: name}
}

// turn reads a Turn.
func (s *testEnv) turn(ctx context.Context, name string) *v1alpha1.Turn {
	GinkgoHelper()
	var t v1alpha1.Turn
	Expect(apiClient.Get(ctx, s.key(name), &t)).To(Succeed())
	return &t
}

// awaitState waits until a Turn has a state, which is the reason of its main condition, and returns the Turn.
func (s *testEnv) awaitState(ctx context.Context, name, state string) *v1alpha1.Turn {
	GinkgoHelper()
	var t v1alpha1.Turn
	Eventually(func(g Gomega) {
		g.Expect(apiClient.Get(ctx, s.key(name), &t)).To(Succeed())
		if t.IsFinished() && t.StateReason() != state {
			StopTrying(fmt.Sprintf("turn %s ended as %s: %s", name, t.StateReason(), message(&t))).Now()
		}
		g.Expect(t.StateReason()).To(Equal(state), "turn %s: %s", name, message(&t))
	}).WithContext(ctx).Should(Succeed())
	return &t
}

// awaitAll waits until the test environment has this number of Turns, all in one state, and returns the Turns.
func (s *testEnv) awaitAll(ctx context.Context, count int, state string) []v1alpha1.Turn {
	GinkgoHelper()
	return s.awaitStates(ctx, map[string]int{state: count})
}

// awaitStates waits until the Turns of the test environment have these states, and returns the Turns. want maps a state
// to the number of Turns in this state.
func (s *testEnv) awaitStates(ctx context.Context, want map[string]int) []v1alpha1.Turn {
	GinkgoHelper()
	var turns v1alpha1.TurnList
	Eventually(func(g Gomega) {
		g.Expect(apiClient.List(ctx, &turns, client.InNamespace(s.namespace))).To(Succeed())
		states := map[string]int{}
		for i := range turns.Items {
			states[turns.Items[i].StateReason()]++
		}
		g.Expect(states).To(Equal(want))
	}).WithContext(ctx).Should(Succeed())
	return turns.Items
}

// awaitInFlight waits until the model serves this many requests at the same time.
func (s *testEnv) awaitInFlight(ctx context.Context, count int64) {
	GinkgoHelper()
	Eventually(func() int64 { return s.fake.Stats().InFlight }).WithContext(ctx).Should(Equal(count), "requests in flight")
}

// awaitReceived waits until the model has received this many requests.
func (s *testEnv) awaitReceived(ctx context.Context, count int64) {
	GinkgoHelper()
	Eventually(func() int64 { return s.fake.Stats().Requests }).WithContext(ctx).Should(Equal(count), "requests received")
}

// conditionsOfProvider and conditionsOfAgent are for awaitChecked.
func conditionsOfProvider(p *v1alpha1.ModelProvider) []metav1.Condition { return p.Status.Conditions }

func conditionsOfAgent(a *v1alpha1.Agent) []metav1.Condition { return a.Status.Conditions }

// awaitChecked waits until the manager has checked the newest spec of an object, so that the next Turn runs with it.
func awaitChecked[T client.Object](ctx context.Context, s *testEnv, object T, name string, conditions func(T) []metav1.Condition) {
	GinkgoHelper()
	Eventually(func(g Gomega) {
		g.Expect(apiClient.Get(ctx, s.key(name), object)).To(Succeed())
		c := meta.FindStatusCondition(conditions(object), v1alpha1.ConditionReady)
		g.Expect(c).NotTo(BeNil())
		g.Expect(c.ObservedGeneration).To(Equal(object.GetGeneration()))
	}).WithContext(ctx).Should(Succeed())
}

// change updates an object and retries on conflicts.
func change[T client.Object](ctx context.Context, s *testEnv, name string, object T, how func(T)) {
	GinkgoHelper()
	Eventually(func(g Gomega) { // the update fails if the manager has changed the object since it was read
		g.Expect(apiClient.Get(ctx, s.key(name), object)).To(Succeed())
		how(object)
		g.Expect(apiClient.Update(ctx, object)).To(Succeed())
	}).WithContext(ctx).Should(Succeed())
}

// desire sets a Turn's desiredState.
func (s *testEnv) desire(ctx context.Context, name string, state v1alpha1.DesiredState) {
	GinkgoHelper()
	change(ctx, s, name, &v1alpha1.Turn{}, func(t *v1alpha1.Turn) { t.Spec.DesiredState = state })
}

// awaitText waits until the text that extract returns for an object satisfies a matcher.
func awaitText[T client.Object](ctx context.Context, s *testEnv, object T, name string, extract func(T) string, matcher OmegaMatcher) {
	GinkgoHelper()
	Eventually(func(g Gomega) {
		g.Expect(apiClient.Get(ctx, s.key(name), object)).To(Succeed())
		g.Expect(extract(object)).To(matcher)
	}).WithContext(ctx).Should(Succeed())
}
