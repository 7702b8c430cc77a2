package executor

import (
	"context"
	"errors"
	"iter"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"go.uber.org/goleak"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/approvals"
	"github.com/capstan-dev/capstan/internal/providers"
	"github.com/capstan-dev/capstan/internal/runtime/journal"
	"github.com/capstan-dev/capstan/internal/runtime/journal/journaltest"
	"github.com/capstan-dev/capstan/internal/runtime/turn"
	"github.com/capstan-dev/capstan/internal/store"
	"github.com/capstan-dev/capstan/internal/translate"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const me = "capstan-0"

// now is the current time in these tests.
var now = time.Date(2026, 3, 4, 5, 6, 7, 0, time.UTC)

var (
	turnResource = schema.GroupResource{Group: "capstan.dev", Resource: "turns"}
	conflict     = apierrors.NewConflict(turnResource, "one", errors.New("changed"))
	notFound     = apierrors.NewNotFound(turnResource, "one")
	broken       = apierrors.NewInternalError(errors.New("etcd is away"))
	refusal      = apierrors.NewInvalid(schema.GroupKind{Group: "capstan.dev", Kind: "Turn"}, "one", nil)
)

// turnWith returns a Turn that is bound to this executor and asks no model.
func turnWith(change ...func(*v1alpha1.Turn)) *v1alpha1.Turn {
	start := metav1.NewMicroTime(now.Add(-time.Second))
	t := &v1alpha1.Turn{
		ObjectMeta: metav1.ObjectMeta{Namespace: "helpdesk", Name: "one", UID: "uid-one", Generation: 1},
		Spec: v1alpha1.TurnSpec{
			AgentRef: v1alpha1.SharedReference{Name: "support"}, Message: "Hello",
			Execution: v1alpha1.ExecutionPrepareOnly, DesiredState: v1alpha1.DesiredStateActive,
		},
		Status: v1alpha1.TurnStatus{
			StartTime: &start, Executor: &v1alpha1.ExecutorBinding{Name: me, Epoch: 1},
			Conditions: []metav1.Condition{{
				Type: v1alpha1.ConditionSucceeded, Status: metav1.ConditionUnknown, Reason: v1alpha1.TurnReasonRunning,
				LastTransitionTime: metav1.NewTime(now),
			}},
		},
	}
	for _, f := range change {
		f(t)
	}
	return t
}

func boundTo(name string, epoch int64) func(*v1alpha1.Turn) {
	return func(t *v1alpha1.Turn) { t.Status.Executor = &v1alpha1.ExecutorBinding{Name: name, Epoch: epoch} }
}

func desires(s v1alpha1.DesiredState) func(*v1alpha1.Turn) {
	return func(t *v1alpha1.Turn) { t.Spec.DesiredState = s }
}

func finished(t *v1alpha1.Turn) {
	t.Status.Conditions[0].Status, t.Status.Conditions[0].Reason = metav1.ConditionTrue, v1alpha1.TurnReasonCompleted
}

// surroundings returns the objects that a Turn needs for its preparation.
func surroundings() []client.Object {
	meta := func(name string) metav1.ObjectMeta { return metav1.ObjectMeta{Namespace: "helpdesk", Name: name} }
	ref := func(name string) v1alpha1.SharedReference { return v1alpha1.SharedReference{Name: name} }
	return []client.Object{
		&v1alpha1.Agent{ObjectMeta: meta("support"), Spec: v1alpha1.AgentSpec{
			PromptProfileRef: ref("house"), Models: []v1alpha1.ModelReference{{ProviderRef: ref("demo"), Model: "m"}},
		}},
		&v1alpha1.PromptProfile{ObjectMeta: meta("house"), Spec: v1alpha1.PromptProfileSpec{Instructions: "Be brief."}},
		&v1alpha1.ModelProvider{ObjectMeta: meta("demo"), Spec: v1alpha1.ModelProviderSpec{BaseURL: "http://127.0.0.1:1/v1"}},
	}
}

// memory is a journal whose methods can be made to fail.
type memory struct {
	journaltest.Store

	mu sync.Mutex
	// appendErrors are the errors that the next appends return, after they have added their entries.
	appendErrors []error
	// readError is the error that reads return while it is set.
	readError error
	// read is called before each read.
	read func()
}

func (m *memory) Read(ctx context.Context, uid string, after int64) iter.Seq2[journal.Entry, error] {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.read != nil {
		m.read()
	}
	if err := m.readError; err != nil {
		return func(yield func(journal.Entry, error) bool) { yield(journal.Entry{}, err) }
	}
	return m.Store.Read(ctx, uid, after)
}

func (m *memory) Append(ctx context.Context, uid string, entries ...journal.Entry) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.Store.Append(ctx, uid, entries...); err != nil {
		return err
	}
	if len(m.appendErrors) > 0 {
		err := m.appendErrors[0]
		m.appendErrors = m.appendErrors[1:]
		return err
	}
	return nil
}

// entries returns the entries of the Turn.
func (m *memory) entries(t *testing.T) []journal.Entry {
	t.Helper()
	all, err := journal.Collect(t.Context(), &m.Store, "uid-one")
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// newExecutor returns an executor with an API server in memory.
func newExecutor(t *testing.T, funcs interceptor.Funcs, objects ...client.Object) (*Executor, *memory) {
	t.Helper()
	scheme := runtime.NewScheme()
	if err := v1alpha1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	c := fake.NewClientBuilder().WithScheme(scheme).WithObjects(objects...).
		WithStatusSubresource(&v1alpha1.Turn{}, &v1alpha1.Session{}).WithInterceptorFuncs(funcs).
		WithIndex(&v1alpha1.ToolApproval{}, fieldApprovalTurn, func(o client.Object) []string {
			return []string{o.(*v1alpha1.ToolApproval).Spec.TurnRef.Name}
		}).Build()
	clock := func() time.Time { return now }
	journals := &memory{}
	return &Executor{
		Name: me, Capacity: 10, Client: c, Reader: c, Events: events.NewFakeRecorder(10),
		Engine: &turn.Engine{Journal: journals, Now: clock}, Store: store.NewTracker(journals, store.TrackerOptions{}),
		Provider: providers.NewCache(nil, clock, nil, nil).Lazy, Now: clock, Log: logr.Discard(),
		ConfigMaps: func(string) translate.ConfigMaps { return noConfigMaps }, Approvals: approvals.AcceptAll,
		runs: map[types.UID]*run{}, done: map[types.UID]endedRun{}, stuck: map[types.UID]stuckTurn{},
	}, journals
}

// noConfigMaps reads ConfigMaps in a namespace that has none.
func noConfigMaps(_ context.Context, ref v1alpha1.ConfigMapKeyReference) (string, error) {
	return translate.ConfigMapValue(ref, nil)
}

// failing makes writes of the status fail: the n-th write returns the n-th error, and later writes succeed. A nil
// error means success.
func failing(failures ...error) interceptor.Funcs {
	n := 0
	return interceptor.Funcs{SubResourceUpdate: func(ctx context.Context, c client.Client, sub string, o client.Object,
		opts ...client.SubResourceUpdateOption,
	) error {
		n++
		if n <= len(failures) && failures[n-1] != nil {
			return failures[n-1]
		}
		return c.SubResource(sub).Update(ctx, o, opts...)
	}}
}

// stored reads the Turn.
func stored(t *testing.T, e *Executor) *v1alpha1.Turn {
	t.Helper()
	var got v1alpha1.Turn
	if err := e.Reader.Get(t.Context(), client.ObjectKey{Namespace: "helpdesk", Name: "one"}, &got); err != nil {
		t.Fatal(err)
	}
	return &got
}
