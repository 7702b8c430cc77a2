package objectbudget_test

import (
	"fmt"
	"runtime"
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/event"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/bytebudget"
	"github.com/capstan-dev/capstan/internal/objectbudget"
)

const kibibyte = 1 << 10

// budgets returns a budget for objects, and its pool of 1 MiB. One namespace can have 896 KiB of the pool, and half of
// that, 448 KiB, for objects.
func budgets() (*objectbudget.Budget, *bytebudget.Budget) {
	memory := bytebudget.New(1024*kibibyte, 8)
	return objectbudget.New(memory), memory
}

func put(t *testing.T, b *objectbudget.Budget, in any) any {
	t.Helper()
	out, err := b.Transform(func(in any) (any, error) { return in, nil })(in)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func profile(namespace, name string, kib int) *v1alpha1.PromptProfile {
	return &v1alpha1.PromptProfile{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, UID: types.UID(namespace + name), Generation: 1},
		Spec:       v1alpha1.PromptProfileSpec{Instructions: strings.Repeat("i", kib*kibibyte)},
	}
}

func isLeftOut(t *testing.T, o any) bool {
	t.Helper()
	switch o := o.(type) {
	case *v1alpha1.PromptProfile:
		return objectbudget.IsLeftOut(o)
	case *v1alpha1.Agent:
		return objectbudget.IsLeftOut(o)
	case *v1alpha1.ToolServer:
		return objectbudget.IsLeftOut(o)
	case *v1alpha1.ModelProvider:
		return objectbudget.IsLeftOut(o)
	}
	t.Fatalf("the cache got %T", o)
	return false
}

// TestAnObjectWithoutSpaceLosesItsContent checks which parts of an object are kept, and that objects of another
// namespace are still cached.
func TestAnObjectWithoutSpaceLosesItsContent(t *testing.T) {
	b, memory := budgets()
	var kept []any
	for i := range 4 {
		kept = append(kept, put(t, b, profile("mine", fmt.Sprint(i), 100)))
		if isLeftOut(t, kept[i]) {
			t.Fatalf("object %d is left out, want four of 100 KiB in 448 KiB", i)
		}
	}
	fifth, _ := put(t, b, profile("mine", "fifth", 100)).(*v1alpha1.PromptProfile)
	if !isLeftOut(t, fifth) || fifth.Spec.Instructions != "" || fifth.Name != "fifth" || fifth.UID != "minefifth" {
		t.Errorf("got %+v, want an object with its name and without its content", fifth.ObjectMeta)
	}
	c := fifth.Status.Conditions
	if len(c) != 1 || c[0].Status != metav1.ConditionFalse || c[0].Reason != v1alpha1.ReasonTooManyObjects ||
		c[0].Message != objectbudget.Message("mine") || c[0].ObservedGeneration != 1 {
		t.Errorf("conditions %+v, want Ready=False with the reason", c)
	}
	if again := put(t, b, fifth); again != any(fifth) {
		t.Error("a second call with the result has returned another object: the cache may make such a call")
	}
	if small := put(t, b, profile("mine", "small", 1)); isLeftOut(t, small) {
		t.Error("a small object is left out, which saves nothing")
	}
	if other := put(t, b, profile("theirs", "one", 100)); isLeftOut(t, other) {
		t.Error("the object of another namespace is left out, want space for it")
	}
	if held := memory.Use(bytebudget.Objects).Bytes; held < 490*kibibyte || held > 510*kibibyte {
		t.Errorf("%d bytes are counted, want 100 KiB less 2 KiB for each of the five objects", held)
	}
	runtime.KeepAlive(kept)
}

// TestSpaceReturns checks that an object whose content was dropped fits once other objects are garbage, and that a
// cached object may change.
func TestSpaceReturns(t *testing.T) {
	b, memory := budgets()
	first := put(t, b, profile("mine", "first", 400))
	second, _ := put(t, b, profile("mine", "second", 400)).(*v1alpha1.PromptProfile)
	if isLeftOut(t, first) || !isLeftOut(t, second) {
		t.Fatal("want the first object alone")
	}
	if b.Fits(second) {
		t.Error("the second object fits, want no space for it")
	}
	changed := profile("mine", "first", 402)
	if isLeftOut(t, put(t, b, changed)) {
		t.Error("an object that is cached and fits is left out")
	}
	runtime.KeepAlive(first) // its last use
	for t.Context().Err() == nil && !b.Fits(second) {
		runtime.GC() // the versions of the first object are garbage now
	}
	if isLeftOut(t, put(t, b, profile("mine", "second", 400))) {
		t.Error("the second object is left out, want it cached")
	}
	for t.Context().Err() == nil && memory.Use(bytebudget.Objects).Bytes > 0 {
		runtime.GC()
	}
}

// TestAStatusMayGrow checks that a cached object keeps its content if its status becomes longer, and loses it if its
// spec becomes too large.
func TestAStatusMayGrow(t *testing.T) {
	b, _ := budgets()
	cached := put(t, b, profile("mine", "one", 447))
	grown := profile("mine", "one", 447)
	grown.Status.Conditions = []metav1.Condition{{Type: v1alpha1.ConditionReady, Message: strings.Repeat("m", 3*kibibyte)}}
	if isLeftOut(t, put(t, b, grown)) {
		t.Error("an object with a longer message is left out, want it cached")
	}
	larger := profile("mine", "one", 450)
	larger.Generation = 2
	if !isLeftOut(t, put(t, b, larger)) {
		t.Error("an object with a larger spec is cached, want it left out")
	}
	runtime.KeepAlive(cached)
}

// TestKindsThatAreCounted checks each kind, and that the subject of a Session is not kept.
func TestKindsThatAreCounted(t *testing.T) {
	b, _ := budgets()
	meta, long := metav1.ObjectMeta{Namespace: "mine", Name: "one", Generation: 3}, strings.Repeat("x", 500*kibibyte)
	limits := &v1alpha1.Limits{MaxSteps: new(int32(7))}
	agent := &v1alpha1.Agent{
		ObjectMeta: meta,
		Spec:       v1alpha1.AgentSpec{Instructions: long, Limits: limits, MaxParallelTurns: new(int32(2))},
	}
	server := &v1alpha1.ToolServer{
		ObjectMeta: meta,
		Status:     v1alpha1.ToolServerStatus{Tools: []v1alpha1.DiscoveredTool{{Description: long}}},
	}
	provider := &v1alpha1.ModelProvider{ObjectMeta: meta, Spec: v1alpha1.ModelProviderSpec{BaseURL: long}}
	for _, o := range []any{agent, server, provider, profile("mine", "one", 500)} {
		if !isLeftOut(t, put(t, b, o)) {
			t.Errorf("%T of 500 KiB is cached, want it left out", o)
		}
	}
	if a, _ := put(t, b, agent).(*v1alpha1.Agent); a.Spec.Limits != limits || *a.Spec.MaxParallelTurns != 2 {
		t.Error("an Agent lost its limits, which its running Turns need")
	}
	session := &v1alpha1.Session{ObjectMeta: meta, Spec: v1alpha1.SessionSpec{Subject: long}}
	if s, _ := put(t, b, session).(*v1alpha1.Session); s.Spec.Subject != "" {
		t.Error("the subject of a Session is cached")
	}
}

// TestConsentIsKept checks that an object without its content keeps its spec.allowedNamespaces, unless it is long.
func TestConsentIsKept(t *testing.T) {
	b, _ := budgets()
	meta, long := metav1.ObjectMeta{Namespace: "mine", Name: "one", Generation: 3}, strings.Repeat("x", 500*kibibyte)
	for names, kept := range map[int]bool{16: true, 64: false} {
		allowed := &v1alpha1.AllowedNamespaces{
			From: v1alpha1.NamespacesFromSelector,
			Selector: &v1alpha1.LabelSelector{MatchExpressions: []v1alpha1.LabelRequirement{{
				Key: "kubernetes.io/metadata.name", Operator: metav1.LabelSelectorOpIn,
				Values: slices.Repeat([]v1alpha1.LabelValue{"the-name-of-a-namespace"}, names),
			}}},
		}
		for _, o := range []any{
			&v1alpha1.Agent{ObjectMeta: meta, Spec: v1alpha1.AgentSpec{Instructions: long, AllowedNamespaces: allowed}},
			&v1alpha1.PromptProfile{ObjectMeta: meta, Spec: v1alpha1.PromptProfileSpec{Instructions: long, AllowedNamespaces: allowed}},
			&v1alpha1.ModelProvider{ObjectMeta: meta, Spec: v1alpha1.ModelProviderSpec{BaseURL: long, AllowedNamespaces: allowed}},
			&v1alpha1.ToolServer{
				ObjectMeta: meta, Spec: v1alpha1.ToolServerSpec{AllowedNamespaces: allowed},
				Status: v1alpha1.ToolServerStatus{Tools: []v1alpha1.DiscoveredTool{{Description: long}}},
			},
		} {
			out := put(t, b, o)
			if !isLeftOut(t, out) {
				t.Fatalf("%T of 500 KiB is cached, want it left out", o)
			}
			if got := allowedNamespaces(out); (got != nil) != kept || kept && got != allowed {
				t.Errorf("%T with %d names of namespaces keeps %+v, want them kept: %t", o, names, got, kept)
			}
		}
	}
}

func allowedNamespaces(o any) *v1alpha1.AllowedNamespaces {
	switch o := o.(type) {
	case *v1alpha1.Agent:
		return o.Spec.AllowedNamespaces
	case *v1alpha1.PromptProfile:
		return o.Spec.AllowedNamespaces
	case *v1alpha1.ModelProvider:
		return o.Spec.AllowedNamespaces
	case *v1alpha1.ToolServer:
		return o.Spec.AllowedNamespaces
	}
	return nil
}

// TestReported checks IsReported, and which updates of a cached object must be reconciled.
func TestReported(t *testing.T) {
	b, _ := budgets()
	o := profile("mine", "one", 500)
	unreported, _ := put(t, b, o.DeepCopy()).(*v1alpha1.PromptProfile)
	o.Status.Conditions = []metav1.Condition{{
		Type: v1alpha1.ConditionReady, Message: objectbudget.Message("mine"), ObservedGeneration: 1,
	}}
	reported, _ := put(t, b, o).(*v1alpha1.PromptProfile)
	if objectbudget.IsReported(unreported) || !objectbudget.IsReported(reported) {
		t.Errorf("IsReported = %t and %t, want it true only for the object whose status has the message",
			objectbudget.IsReported(unreported), objectbudget.IsReported(reported))
	}
	whole := profile("mine", "one", 1)
	changed := objectbudget.Changed()
	update := func(before, after *v1alpha1.PromptProfile) bool {
		return changed.Update(event.UpdateEvent{ObjectOld: before, ObjectNew: after})
	}
	if !update(whole, reported) || !update(reported, whole) {
		t.Error("an object that loses its content or gets it back must be reconciled")
	}
	if update(unreported, reported) || update(whole, whole) {
		t.Error("another update must not cause a reconcile")
	}
}
