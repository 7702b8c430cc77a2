package failpoint

import (
	"context"
	"encoding/json"
	"errors"
	"iter"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/runtime/journal"
	"github.com/capstan-dev/capstan/internal/runtime/model"
	"github.com/capstan-dev/capstan/internal/runtime/tool"
)

func TestParse(t *testing.T) {
	for text, want := range map[string]string{
		"a/journal.append:after:tool.intended:2": "",
		"a/model.request:before::1":              "",
		"journal.append:after:tool.intended:2":   "must be of the form",
		"a-*/turn.create:before::1":              "",
		"a/journal.append:after:2":               "must be of the form",
		"a/disk.write:after:x:2":                 "the effect must be",
		"a/tool.call:during:x:2":                 "it must be before or after",
		"a/tool.call:after:x:0":                  "N must be a number from 1",
		"a/tool.call:after:x:last":               "N must be a number from 1",
	} {
		p, err := Parse(text)
		if want == "" && (err != nil || p.String() != text) {
			t.Errorf("Parse(%q) = %q, %v; want the same again", text, p, err)
		}
		if want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("Parse(%q): %v, want an error with %q", text, err, want)
		}
	}
}

// died is the panic value by which the process of a test dies.
type died struct{}

// world produces the effects of two Turns, one after another, until it dies. It returns the effects that happened.
func world(t *testing.T, point string, trace *strings.Builder) (done []string, dead bool) {
	t.Helper()
	p, err := Parse(point)
	if err != nil {
		t.Fatal(err)
	}
	l := &Line{Point: &p, Interrupt: func() { panic(died{}) }, Now: time.Now}
	if trace != nil {
		l.Trace = trace
	}
	defer func() {
		if r := recover(); r != nil {
			if _, ok := r.(died); !ok {
				panic(r)
			}
			dead = true
		}
	}()
	did := func(what string) { done = append(done, what) }
	scheme := runtime.NewScheme()
	utilruntime.Must(v1alpha1.AddToScheme(scheme))
	turns := []*v1alpha1.Turn{}
	for _, name := range []string{"other", "mine"} {
		turns = append(turns, &v1alpha1.Turn{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "n", UID: types.UID("uid-" + name)}})
	}
	api := l.Status(fake.NewClientBuilder().WithScheme(scheme).WithStatusSubresource(turns[0]).WithObjects(turns[0], turns[1]).Build())
	store := l.Journal(appends(func(kinds string) { did("append " + kinds) }))
	provider := l.Provider("p", generates(func() { did("request") }))
	count := l.Servers(serves(func(context.Context, tool.Call) (tool.Result, error) {
		did("call")
		return tool.Result{}, errors.New("out of order")
	})).Caller(&v1alpha1.ToolServer{}, "count")
	for _, turn := range turns {
		uid := string(turn.UID)
		turn.Status.Executor = &v1alpha1.ExecutorBinding{Name: "e", Epoch: 1}
		if err := api.Status().Update(t.Context(), turn); err != nil {
			t.Fatal(err)
		}
		did("bind")
		started, _ := json.Marshal(map[string]string{"name": turn.Name})
		_ = store.Append(t.Context(), uid, journal.Entry{Kind: journal.RunStarted, Payload: started}, journal.Entry{Kind: journal.Prepared})
		for range 2 {
			_, _ = provider.Generate(t.Context(), &model.Request{ID: uid + "/3"})
			_, _ = count.Call(t.Context(), tool.Call{IdempotencyKey: uid + "/1/c"})
			_ = store.Append(t.Context(), uid, journal.Entry{Kind: journal.ToolFinished})
		}
	}
	return done, false
}

type appends func(kinds string)

func (a appends) Append(_ context.Context, _ string, entries ...journal.Entry) error {
	var kinds []string
	for _, e := range entries {
		kinds = append(kinds, string(e.Kind))
	}
	a(strings.Join(kinds, "+"))
	return nil
}

func (a appends) Read(context.Context, string, int64) iter.Seq2[journal.Entry, error] { return nil }

func (a appends) Last(context.Context, string) (int64, error) { return 0, nil }

func (a appends) PayloadBytes(context.Context, string, int64, int64) (int64, error) { return 0, nil }

func (a appends) Artifact(context.Context, string, string) (journal.Artifact, error) {
	return journal.Artifact{}, nil
}

// serves is a ToolServer cache that calls the same function for every tool.
type serves tool.CallerFunc

// Current returns no tools.
func (serves) Current(context.Context, *v1alpha1.ToolServer) ([]tool.Tool, error) { return nil, nil }

func (s serves) Caller(*v1alpha1.ToolServer, string) tool.Caller { return tool.CallerFunc(s) }

func (s serves) Tools(context.Context, *v1alpha1.ToolServer) ([]tool.Tool, error) { return nil, nil }

type generates func()

func (g generates) Generate(context.Context, *model.Request) (*model.Reply, error) {
	g()
	return &model.Reply{}, nil
}

func TestLineInterruptsAtItsPoint(t *testing.T) {
	round := []string{"request", "call", "append tool.finished"}
	other := slices.Concat([]string{"bind", "append run.started+prepared"}, round, round)
	for name, tc := range map[string]struct {
		reason, point string
		mine          []string // the effects on the Turn that the point names
		lives         bool
	}{
		"BeforeBind":    {"nothing is done", "mine/status.write:before:bind:1", nil, false},
		"BeforeAppend":  {"a kind is found among those of one append", "mine/journal.append:before:prepared:1", other[:1], false},
		"AfterAppend":   {"the append is done", "mine/journal.append:after:run.started:1", other[:2], false},
		"BeforeRequest": {"an empty detail means all", "mine/model.request:before::1", other[:2], false},
		"AfterSecond":   {"the first request passes", "mine/model.request:after::2", other[:6], false},
		"AfterFailure":  {"a call that failed was made", "mine/tool.call:after::1", other[:4], false},
		"BeforeCall":    {"a tool is found by its name", "mine/tool.call:before:count:1", other[:3], false},
		"OtherTool":     {"a call of another tool kills no process", "mine/tool.call:before:look:1", other, true},
		"AnyTurn":       {"the effects on all Turns count", "*/tool.call:after::3", other[:4], false},
		"Beginning":     {"the beginning of a name is enough", "mi*/tool.call:after::1", other[:4], false},
		"NoSuchDetail":  {"a missing effect kills no process", "mine/journal.append:after:finalized:1", other, true},
		"NotSoOften":    {"an effect that happens only twice kills no process", "mine/tool.call:after::3", other, true},
	} {
		t.Run(name, func(t *testing.T) {
			done, dead := world(t, tc.point, nil)
			if want := append(slices.Clone(other), tc.mine...); dead == tc.lives || !slices.Equal(done, want) {
				t.Errorf("%s: dead %t after\n%q, want\n%q", tc.reason, dead, done, want)
			}
		})
	}
}

func TestInterruptThatReturnsIsCalledOnce(t *testing.T) {
	for _, when := range []When{Before, After} {
		var said []string
		l := &Line{Point: &Point{Turn: AnyTurn, Effect: Call, When: when, Nth: 1}, Interrupt: func() { said = append(said, "interrupt") }}
		call := l.Servers(serves(func(context.Context, tool.Call) (tool.Result, error) {
			said = append(said, "call")
			return tool.Result{}, nil
		})).Caller(&v1alpha1.ToolServer{}, "count")
		for range 2 {
			_, _ = call.Call(t.Context(), tool.Call{IdempotencyKey: "uid/1/c"})
		}
		want := map[When][]string{Before: {"interrupt", "call", "call"}, After: {"call", "interrupt", "call"}}[when]
		if !slices.Equal(said, want) {
			t.Errorf("%s: %q, want %q", when, said, want)
		}
	}
}

func TestTraceRecordsEachEffect(t *testing.T) {
	var trace strings.Builder
	world(t, "none/tool.call:after::1", &trace)
	lines := strings.Split(strings.TrimSpace(trace.String()), "\n")
	if len(lines) != 16 {
		t.Fatalf("%d steps, want 8 of each Turn: %s", len(lines), &trace)
	}
	var s Step
	if err := json.Unmarshal([]byte(lines[3]), &s); err != nil {
		t.Fatal(err)
	}
	if s.Effect != Call || s.Turn != "uid-other" || s.Error != "out of order" || s.End.Before(s.Begin) {
		t.Errorf("the trace says %+v", s)
	}
}

func TestDetailOfAStatus(t *testing.T) {
	bound := func(name string, epoch int64) v1alpha1.TurnStatus {
		return v1alpha1.TurnStatus{Executor: &v1alpha1.ExecutorBinding{Name: name, Epoch: epoch}}
	}
	ended := bound("e", 2)
	ended.Conditions = []metav1.Condition{{Type: v1alpha1.ConditionSucceeded, Status: metav1.ConditionTrue}}
	asks, waits := bound("", 1), bound("", 1)
	asks.PendingApprovals = []v1alpha1.PendingApproval{{CallID: "a"}}
	waits.AwaitedTurns = []string{"child"}
	for want, all := range map[string][]v1alpha1.TurnStatus{
		DetailBind: {bound("e", 1)}, DetailClaim: {bound("e", 2)}, DetailPark: {asks, waits}, DetailOther: {bound("", 2)},
		DetailEnd: {ended},
	} {
		for _, status := range all {
			if got := detailOf(&v1alpha1.Turn{Status: status}); got != want {
				t.Errorf("got %q, want %q", got, want)
			}
		}
	}
}

// TestTurnOfASubAgentIsAnEffectOnItsParent checks that the creation of a Turn of a sub-agent is an effect on its
// parent; the creation of other objects is not.
func TestTurnOfASubAgentIsAnEffectOnItsParent(t *testing.T) {
	scheme := runtime.NewScheme()
	utilruntime.Must(v1alpha1.AddToScheme(scheme))
	interrupts := 0
	l := &Line{Point: &Point{Turn: "parent", Effect: Create, When: After, Nth: 1}, Interrupt: func() { interrupts++ }}
	l.learn("uid-parent", "parent")
	api := l.Status(fake.NewClientBuilder().WithScheme(scheme).Build())
	owned := metav1.ObjectMeta{
		Name: "child", Namespace: "n",
		OwnerReferences: []metav1.OwnerReference{{Kind: "Turn", Name: "parent", UID: "uid-parent", Controller: new(true)}},
	}
	for i, object := range []client.Object{
		&v1alpha1.Turn{ObjectMeta: metav1.ObjectMeta{Name: "root", Namespace: "n"}}, &v1alpha1.Session{ObjectMeta: owned},
		&v1alpha1.Turn{ObjectMeta: owned},
	} {
		if err := api.Create(t.Context(), object); err != nil {
			t.Fatal(err)
		}
		if want := i / 2; interrupts != want {
			t.Errorf("%T %q: %d interrupts, want %d", object, object.GetName(), interrupts, want)
		}
	}
}
