package controller

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/translate"
)

// texts holds the data of ConfigMaps by name and key.
type texts map[string]map[string]string

func (m texts) in(string) translate.ConfigMaps {
	return func(_ context.Context, ref v1alpha1.ConfigMapKeyReference) (string, error) {
		if ref.Name == "unreadable" {
			return "", broken
		}
		return translate.ConfigMapValue(ref, m[ref.Name])
	}
}

func houseProfile(change ...func(*v1alpha1.PromptProfileSpec)) *v1alpha1.PromptProfile {
	p := &v1alpha1.PromptProfile{
		ObjectMeta: metav1.ObjectMeta{Namespace: "helpdesk", Name: "house", Generation: 1},
		Spec:       v1alpha1.PromptProfileSpec{ID: "house", Version: "1", Instructions: "Be brief."},
	}
	for _, f := range change {
		f(&p.Spec)
	}
	return p
}

func deskAgent(change ...func(*v1alpha1.AgentSpec)) *v1alpha1.Agent {
	a := &v1alpha1.Agent{ObjectMeta: metav1.ObjectMeta{Namespace: "helpdesk", Name: "desk", Generation: 1}}
	a.Spec.PromptProfileRef.Name = "house"
	a.Spec.Models = []v1alpha1.ModelReference{{Model: "m"}}
	for _, f := range change {
		f(&a.Spec)
	}
	return a
}

func inMemory(t *testing.T, objects ...client.Object) client.WithWatch {
	t.Helper()
	scheme := runtime.NewScheme()
	if err := errors.Join(clientgoscheme.AddToScheme(scheme), v1alpha1.AddToScheme(scheme)); err != nil {
		t.Fatal(err)
	}
	return fake.NewClientBuilder().WithScheme(scheme).WithObjects(objects...).
		WithStatusSubresource(&v1alpha1.PromptProfile{}, &v1alpha1.Agent{}, &v1alpha1.ModelProvider{}, &v1alpha1.ToolServer{}).Build()
}

// reconcileProfile reconciles a profile and returns it.
func reconcileProfile(t *testing.T, c client.Client, maps texts) (*v1alpha1.PromptProfile, error) {
	t.Helper()
	r := &PromptProfileReconciler{Client: c, Now: func() time.Time { return now }, ConfigMaps: maps.in}
	key := client.ObjectKey{Namespace: "helpdesk", Name: "house"}
	_, err := r.Reconcile(t.Context(), reconcile.Request{NamespacedName: key})
	var p v1alpha1.PromptProfile
	if err := c.Get(t.Context(), key, &p); err != nil {
		t.Fatal(err)
	}
	return &p, err
}

func TestProfilesThatDoNotRender(t *testing.T) {
	const broken = "Fine.\nNow {{ .nobody }}."
	overlay := []v1alpha1.Overlay{{ID: "fine", Text: "Fine."}, {ID: "broken", Text: broken}}
	for name, tc := range map[string]struct {
		change  func(*v1alpha1.PromptProfileSpec)
		maps    texts
		reason  string
		message string
		stalled bool
	}{
		"an overlay": {
			change: func(s *v1alpha1.PromptProfileSpec) { s.Overlays = overlay },
			reason: "RenderFailed", message: "PromptProfile spec.overlays[1].text:2:8: ", stalled: true,
		},
		"an overlay of the shaping": {
			change: func(s *v1alpha1.PromptProfileSpec) { s.Shaping = &v1alpha1.Shaping{Overlays: overlay} },
			reason: "RenderFailed", message: "PromptProfile spec.shaping.overlays[1].text:2:8: ", stalled: true,
		},
		"a guardrail": {
			change: func(s *v1alpha1.PromptProfileSpec) { s.Guardrails = []v1alpha1.Guardrail{{ID: "a", Rule: broken}} },
			reason: "RenderFailed", message: "PromptProfile spec.guardrails[0].rule:2:8: ", stalled: true,
		},
		"a skill": {
			change: func(s *v1alpha1.PromptProfileSpec) { s.Skills = []v1alpha1.Skill{{Key: "a", Content: new(broken)}} },
			reason: "RenderFailed", message: "PromptProfile spec.skills[0].content:2:8: ", stalled: true,
		},
		"a skill of a ConfigMap": {
			change: func(s *v1alpha1.PromptProfileSpec) { s.Skills = []v1alpha1.Skill{skillFrom("skills")} },
			maps:   texts{"skills": {"text": broken}},
			reason: "RenderFailed", message: `PromptProfile spec.skills[0].contentFrom, key "text" of ConfigMap "skills":2:8: `,
		},
		"a skill of a ConfigMap, and the suffix": {
			change: func(s *v1alpha1.PromptProfileSpec) {
				s.Skills, s.DynamicSuffix = []v1alpha1.Skill{skillFrom("skills")}, broken
			},
			maps:   texts{"skills": {"text": broken}},
			reason: "RenderFailed", message: "PromptProfile spec.dynamicSuffix:2:8: ", stalled: true,
		},
		"blank instructions of a ConfigMap": {
			change: func(s *v1alpha1.PromptProfileSpec) { s.Instructions, s.InstructionsFrom = "", textIn("notes") },
			maps:   texts{"notes": {"text": " "}},
			reason: "RenderFailed", message: "PromptProfile spec: at least one of identity.systemPrompt",
		},
		"the prefix": {
			change: func(s *v1alpha1.PromptProfileSpec) { s.StablePrefix = broken },
			reason: "RenderFailed", message: "PromptProfile spec.stablePrefix:2:8: ", stalled: true,
		},
		"the suffix": {
			change: func(s *v1alpha1.PromptProfileSpec) { s.DynamicSuffix = broken },
			reason: "RenderFailed", message: "PromptProfile spec.dynamicSuffix:2:8: ", stalled: true,
		},
		"an unknown section": {
			change: func(s *v1alpha1.PromptProfileSpec) { s.Sections = []string{"agent", "weather"} },
			reason: "RenderFailed", message: "PromptProfile spec.sections[1]: ", stalled: true,
		},
		"a missing ConfigMap": {
			change: func(s *v1alpha1.PromptProfileSpec) { s.Skills = []v1alpha1.Skill{skillFrom("skills")} },
			reason: "ConfigMapNotFound", message: `PromptProfile spec.skills[0].contentFrom.configMapKeyRef: ` +
				`ConfigMap "skills" does not exist`,
		},
		"a missing key": {
			change: func(s *v1alpha1.PromptProfileSpec) { s.Contributions = fromConfigMaps("notes") }, maps: texts{"notes": {}},
			reason: "ConfigMapNotFound", message: `PromptProfile spec.contributions[1].configMapKeyRef: ` +
				`ConfigMap "notes" has no key "text"`,
		},
		"a ConfigMap that is too long": {
			change: func(s *v1alpha1.PromptProfileSpec) { s.Contributions = fromConfigMaps("notes") },
			maps:   texts{"notes": {"text": strings.Repeat("x", 65537)}},
			reason: "RenderFailed", message: `key "text" of ConfigMap "notes" has 65537 characters but may have at most 65536`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			p, err := reconcileProfile(t, inMemory(t, houseProfile(tc.change)), tc.maps)
			if err != nil {
				t.Fatal(err)
			}
			c := meta.FindStatusCondition(p.Status.Conditions, v1alpha1.ConditionReady)
			if c.Status != metav1.ConditionFalse || c.Reason != tc.reason || !strings.Contains(c.Message, tc.message) {
				t.Errorf("Ready is %s, %s: %s\nwant %s: %s", c.Status, c.Reason, c.Message, tc.reason, tc.message)
			}
			if got := meta.IsStatusConditionTrue(p.Status.Conditions, v1alpha1.ConditionStalled); got != tc.stalled {
				t.Errorf("Stalled is %t, want %t", got, tc.stalled)
			}
		})
	}
}

// TestAConfigMapThatCannotBeRead checks that the condition reports an unreadable ConfigMap for the newest generation,
// and that the object is retried.
func TestAConfigMapThatCannotBeRead(t *testing.T) {
	unreadable := func(list *[]v1alpha1.Contribution) { *list = fromConfigMaps("unreadable") }
	checkCondition := func(t *testing.T, conditions []metav1.Condition, err error, kind, field string) {
		t.Helper()
		want := metav1.Condition{
			Type: kind, Status: metav1.ConditionFalse, Reason: v1alpha1.ReasonConfigMapUnreadable, ObservedGeneration: 2,
			Message: field + `.contributions[1].configMapKeyRef: ConfigMap "unreadable" cannot be read: the API ` +
				`server answered 500 InternalError`,
		}
		got := meta.FindStatusCondition(conditions, kind)
		if diff := cmp.Diff(&want, got, cmpopts.IgnoreFields(metav1.Condition{}, "LastTransitionTime")); diff != "" {
			t.Errorf("condition (-want +got):\n%s", diff)
		}
		if !apierrors.IsInternalError(err) {
			t.Errorf("got %v, want the error, which requeues the object", err)
		}
		if meta.IsStatusConditionTrue(conditions, v1alpha1.ConditionStalled) {
			t.Error("the object must not be stalled, because it is retried")
		}
	}
	t.Run("of a profile", func(t *testing.T) {
		c := inMemory(t, houseProfile())
		p, err := reconcileProfile(t, c, nil)
		if err != nil || !meta.IsStatusConditionTrue(p.Status.Conditions, v1alpha1.ConditionReady) {
			t.Fatalf("got %v, %+v; want a profile that is ready", err, p.Status)
		}
		p.Generation = 2
		unreadable(&p.Spec.Contributions)
		if err := c.Update(t.Context(), p); err != nil {
			t.Fatal(err)
		}
		p, err = reconcileProfile(t, c, nil)
		checkCondition(t, p.Status.Conditions, err, v1alpha1.ConditionReady, "PromptProfile spec")
		version := p.ResourceVersion
		if p, _ = reconcileProfile(t, c, nil); p.ResourceVersion != version {
			t.Error("a second reconciliation with the same error must write nothing")
		}
	})
	t.Run("of an agent", func(t *testing.T) {
		a := deskAgent(func(s *v1alpha1.AgentSpec) { unreadable(&s.Contributions) })
		a.Generation = 2
		c := inMemory(t, houseProfile(), a)
		if _, err := reconcileProfile(t, c, nil); err != nil {
			t.Fatal(err)
		}
		r := &AgentReconciler{Client: c, Now: func() time.Time { return now }, ConfigMaps: texts{}.in}
		_, err := r.Reconcile(t.Context(), reconcile.Request{NamespacedName: client.ObjectKeyFromObject(a)})
		if err := c.Get(t.Context(), client.ObjectKeyFromObject(a), a); err != nil {
			t.Fatal(err)
		}
		checkCondition(t, a.Status.Conditions, err, v1alpha1.ConditionProfileResolved, "Agent spec")
	})
}

// TestObjectsAreRecheckedWithoutEvents checks that objects are reconciled at intervals where ConfigMaps may
// not be watched.
func TestObjectsAreRecheckedWithoutEvents(t *testing.T) {
	c := inMemory(t, houseProfile(), deskAgent())
	clock := func() time.Time { return now }
	profiles := &PromptProfileReconciler{Client: c, Now: clock, ConfigMaps: texts{}.in, Recheck: time.Minute}
	agents := &AgentReconciler{Client: c, Now: clock, ConfigMaps: texts{}.in, Recheck: time.Minute}
	for range 2 { // the second time changes nothing
		for name, r := range map[string]reconcile.Reconciler{"house": profiles, "desk": agents} {
			result, err := r.Reconcile(t.Context(), reconcile.Request{NamespacedName: client.ObjectKey{Namespace: "helpdesk", Name: name}})
			if err != nil || result.RequeueAfter != time.Minute {
				t.Errorf("%s: got %v, %v; want a requeue after a minute", name, result, err)
			}
		}
	}
}

func TestAgentsThatDoNotRender(t *testing.T) {
	skills := func(s *v1alpha1.PromptProfileSpec) {
		s.Skills = []v1alpha1.Skill{{Key: "refunds", Content: new("Ask first.")}}
	}
	maps := texts{"notes": {"text": "{{ .Agent.Nobody }}"}, "long": {"text": strings.Repeat("x", 65537)}}
	for name, tc := range map[string]struct {
		change          func(*v1alpha1.AgentSpec)
		reason, message string
		stalled         bool
	}{
		"an unknown loaded skill": {
			change: func(s *v1alpha1.AgentSpec) { s.Skills = &v1alpha1.AgentSkills{Loaded: []string{"refunds", "rebates"}} },
			reason: "SkillNotFound", message: `Agent spec.skills.loaded[1]: "rebates" is not a skill of ` +
				`PromptProfile "house", which has: refunds`,
		},
		"an unknown available skill": {
			change: func(s *v1alpha1.AgentSpec) { s.Skills = &v1alpha1.AgentSkills{Available: []string{"rebates"}} },
			reason: "SkillNotFound", message: `Agent spec.skills.available[0]: "rebates"`,
		},
		"a missing ConfigMap": {
			change: func(s *v1alpha1.AgentSpec) { s.Contributions = fromConfigMaps("absent") },
			reason: "ConfigMapNotFound", message: `Agent spec.contributions[1].configMapKeyRef: ConfigMap "absent" does not exist`,
		},
		"its instructions": {
			change: func(s *v1alpha1.AgentSpec) { s.Instructions = "Fine.\n{{ .Agent.Nobody }}" },
			reason: "InvalidInstructions", message: "Agent spec.instructions:2:4: ", stalled: true,
		},
		"a variable that the profile may declare": {
			change: func(s *v1alpha1.AgentSpec) { s.Instructions = "Fine.\n{{ .nobody }}" },
			reason: "InvalidInstructions", message: "Agent spec.instructions:2:4: ",
		},
		"instructions of a ConfigMap": {
			change: func(s *v1alpha1.AgentSpec) { s.InstructionsFrom = textIn("notes") },
			reason: "InvalidInstructions", message: `Agent spec.instructionsFrom, key "text" of ConfigMap "notes":1:4: `,
		},
		"a contribution of a ConfigMap that is too long": {
			change: func(s *v1alpha1.AgentSpec) { s.Contributions = fromConfigMaps("long") },
			reason: "InvalidInstructions", message: `key "text" of ConfigMap "long" has 65537 characters but may have at most 65536`,
		},
		"its time zone": {
			change: func(s *v1alpha1.AgentSpec) { s.TimeZone = "Europe/Nowhere" },
			reason: "InvalidTimeZone", message: "Agent spec.timeZone: ", stalled: true,
		},
	} {
		t.Run(name, func(t *testing.T) {
			a := deskAgent(tc.change)
			c := inMemory(t, houseProfile(skills), a)
			if _, err := reconcileProfile(t, c, nil); err != nil {
				t.Fatal(err)
			}
			f := profileFinding(t, c, maps)
			if f.holds || f.reason != tc.reason || !strings.Contains(f.message, tc.message) {
				t.Errorf("got %+v\nwant %s: %s", f, tc.reason, tc.message)
			}
			r := &AgentReconciler{Client: c, Now: func() time.Time { return now }, ConfigMaps: maps.in}
			key := client.ObjectKeyFromObject(a)
			if _, err := r.Reconcile(t.Context(), reconcile.Request{NamespacedName: key}); err != nil {
				t.Fatal(err)
			}
			if err := c.Get(t.Context(), key, a); err != nil {
				t.Fatal(err)
			}
			stalled := meta.FindStatusCondition(a.Status.Conditions, v1alpha1.ConditionStalled)
			if (stalled != nil) != tc.stalled || stalled != nil && stalled.Reason != tc.reason {
				t.Errorf("Stalled is %+v, want it True, with the reason of Ready: %t", stalled, tc.stalled)
			}
		})
	}
}

// profileFinding returns the finding about the Agent's profile.
func profileFinding(t *testing.T, c client.Client, maps texts) finding {
	t.Helper()
	r := &AgentReconciler{Client: c, Now: func() time.Time { return now }, ConfigMaps: maps.in}
	var a v1alpha1.Agent
	if err := c.Get(t.Context(), client.ObjectKey{Namespace: "helpdesk", Name: "desk"}, &a); err != nil {
		t.Fatal(err)
	}
	f, _, err := r.resolveProfile(t.Context(), &a)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// TestAProfileThatLostItsConfigMap checks an Agent that is reconciled after the ConfigMap of its profile was deleted,
// and before its profile is reconciled again.
func TestAProfileThatLostItsConfigMap(t *testing.T) {
	c := inMemory(t, houseProfile(func(s *v1alpha1.PromptProfileSpec) { s.Skills = []v1alpha1.Skill{skillFrom("skills")} }), deskAgent())
	if _, err := reconcileProfile(t, c, texts{"skills": {"text": "Ask first."}}); err != nil {
		t.Fatal(err)
	}
	got := profileFinding(t, c, nil)
	want := finding{
		reason: v1alpha1.ReasonConfigMapNotFound,
		message: `PromptProfile spec.skills[0].contentFrom.configMapKeyRef: ConfigMap "skills" does not exist: ` +
			`create it, or correct the name`,
	}
	if diff := cmp.Diff(want, got, cmp.AllowUnexported(finding{})); diff != "" {
		t.Errorf("finding (-want +got):\n%s", diff)
	}
}
