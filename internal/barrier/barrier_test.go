package barrier_test

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/go-logr/logr/funcr"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/barrier"
	"github.com/capstan-dev/capstan/internal/redact"
)

const key = "sk-never-to-be-seen-0123456789"

func known() *redact.Set {
	s := redact.NewSet()
	s.Put("helpdesk", "ModelProvider/main", []string{key, "Failed", "support"})
	return s
}

// objectsWithKey returns objects whose texts contain the key. Their names and condition reasons happen to equal further
// credentials ("support", "Failed"), which must stay.
func objectsWithKey(namespace string) []client.Object {
	meta := metav1.ObjectMeta{Namespace: namespace, Name: "support"}
	conditions := []metav1.Condition{{
		Type: "Ready", Status: metav1.ConditionFalse, Reason: "Failed",
		Message: "it said " + key, LastTransitionTime: metav1.Now(),
	}}
	return []client.Object{
		&v1alpha1.Turn{ObjectMeta: meta, Status: v1alpha1.TurnStatus{
			Conditions: conditions, Result: &v1alpha1.TurnResult{
				Text: key, Preview: key, Data: &apiextensionsv1.JSON{Raw: []byte(`{"a":"` + key + `"}`)},
				Citations: &v1alpha1.Citations{Local: []string{key}},
			}, Executor: &v1alpha1.ExecutorBinding{Name: "support", Epoch: 1},
			Evaluations:   []v1alpha1.Evaluation{{Reason: key}},
			AwaitedBudget: &v1alpha1.AwaitedBudget{Name: "support", Message: key},
		}},
		&v1alpha1.ToolServer{ObjectMeta: meta, Status: v1alpha1.ToolServerStatus{
			Conditions: conditions, ServerName: key, ServerVersion: key, ProtocolVersion: key,
			Tools: []v1alpha1.DiscoveredTool{{Name: "support", Description: key, Unusable: key}},
		}},
		&v1alpha1.ModelProvider{ObjectMeta: meta, Status: v1alpha1.ModelProviderStatus{Conditions: conditions}},
		&v1alpha1.Agent{ObjectMeta: meta, Status: v1alpha1.AgentStatus{Conditions: conditions}},
		&v1alpha1.PromptProfile{ObjectMeta: meta, Status: v1alpha1.PromptProfileStatus{Conditions: conditions}},
		&v1alpha1.Session{ObjectMeta: meta, Status: v1alpha1.SessionStatus{Conditions: conditions}},
	}
}

// TestRedactedTextsKeepTheirLimits checks that a mark that is longer than the credential makes no text longer than the
// schema allows.
func TestRedactedTextsKeepTheirLimits(t *testing.T) {
	scheme := runtime.NewScheme()
	if err := v1alpha1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	s := redact.NewSet()
	s.Put("helpdesk", "ModelProvider/main", []string{"lm-studio"})
	const limit = 80
	full := strings.Repeat("ä", 40) + "lm-studio" + strings.Repeat("x", limit-49)
	o := &v1alpha1.Turn{
		ObjectMeta: metav1.ObjectMeta{Namespace: "helpdesk", Name: "support"},
		Status:     v1alpha1.TurnStatus{Result: &v1alpha1.TurnResult{Text: "lm-studio", Preview: full}},
	}
	c := fake.NewClientBuilder().WithScheme(scheme).WithObjects(o).WithStatusSubresource(o).Build()
	if err := barrier.Client(c, s).Status().Update(t.Context(), o); err != nil {
		t.Fatal(err)
	}
	want := strings.Repeat("ä", 40) + "[redacted]" + strings.Repeat("x", limit-51) + "…"
	if got := o.Status.Result; got.Preview != want || utf8.RuneCountInString(got.Preview) != limit || got.Text != "[redacted]" {
		t.Errorf("got %+v, want the preview %q of %d characters", got, want, limit)
	}
}

func TestClientRedactsStatus(t *testing.T) {
	scheme := runtime.NewScheme()
	if err := v1alpha1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	for _, namespace := range []string{"helpdesk", "sales"} {
		for _, o := range objectsWithKey(namespace) {
			c := fake.NewClientBuilder().WithScheme(scheme).WithObjects(o).WithStatusSubresource(o).Build()
			if err := barrier.Client(c, known()).Status().Update(t.Context(), o); err != nil {
				t.Fatal(err)
			}
			text := written(t, c, o)
			if namespace == "sales" {
				if !strings.Contains(text, key) || strings.Contains(text, "[redacted]") {
					t.Errorf("%T of a namespace without the credential was changed: %s", o, text)
				}
				continue
			}
			if strings.Contains(text, key) || !strings.Contains(text, "it said [redacted]") {
				t.Errorf("%T contains the credential: %s", o, text)
			}
			if !strings.Contains(text, `"reason":"Failed"`) || !strings.Contains(text, `"name":"support"`) {
				t.Errorf("%T has lost a name or a reason: %s", o, text)
			}
		}
	}
}

// TestClientRedactsNumbers checks that a credential that is a number of a structured answer becomes a text.
func TestClientRedactsNumbers(t *testing.T) {
	scheme := runtime.NewScheme()
	if err := v1alpha1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	all := redact.NewSet()
	all.Put("helpdesk", "ToolServer/door", []string{"4815162342"})
	o := &v1alpha1.Turn{
		ObjectMeta: metav1.ObjectMeta{Namespace: "helpdesk", Name: "first"},
		Status: v1alpha1.TurnStatus{Result: &v1alpha1.TurnResult{
			Data: &apiextensionsv1.JSON{Raw: []byte(`{"pin":4815162342,"size":1}`)},
		}},
	}
	c := fake.NewClientBuilder().WithScheme(scheme).WithObjects(o).WithStatusSubresource(o).Build()
	if err := barrier.Client(c, all).Status().Update(t.Context(), o); err != nil {
		t.Fatal(err)
	}
	if got := string(o.Status.Result.Data.Raw); got != `{"pin":"[redacted]","size":1}` {
		t.Errorf("the answer is %s, want the number redacted", got)
	}
}

// written returns the JSON of an object in the API server.
func written(t *testing.T, c client.Client, o client.Object) string {
	t.Helper()
	if err := c.Get(t.Context(), client.ObjectKeyFromObject(o), o); err != nil {
		t.Fatal(err)
	}
	fields, err := runtime.DefaultUnstructuredConverter.ToUnstructured(o)
	if err != nil {
		t.Fatal(err)
	}
	text, err := json.Marshal(fields)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func TestEventsRedactsNotes(t *testing.T) {
	to := events.NewFakeRecorder(2)
	recorder := barrier.Events(to, known())
	for _, namespace := range []string{"helpdesk", "sales"} {
		recorder.Eventf(&v1alpha1.Turn{ObjectMeta: metav1.ObjectMeta{Namespace: namespace}}, nil, "Warning", "Failed",
			"Run", "%s: 100%%", key)
	}
	if got := <-to.Events; got != "Warning Failed [redacted]: 100%" {
		t.Errorf("the Event is %q", got)
	}
	if got := <-to.Events; got != "Warning Failed "+key+": 100%" {
		t.Errorf("the Event of another namespace is %q", got)
	}
}

// TestLongNotesAreRedactedWhole checks that a note is shortened to what the API server accepts only after its
// credentials have been removed: the replacements may be longer, and the cut must not leave the beginning of a
// credential.
func TestLongNotesAreRedactedWhole(t *testing.T) {
	short := "lm-studio"
	secrets := redact.NewSet()
	secrets.Put("helpdesk", "provider", []string{key, short})
	for name, tc := range map[string]struct{ note, want string }{
		"many credentials": {strings.Repeat(short+" ", 99), strings.Repeat("[redacted] ", 90) + "[redacted]..."},
		"a credential at the end": {
			strings.Repeat("x", 995) + key + strings.Repeat("y", 100), strings.Repeat("x", 995) + "[reda...",
		},
		"characters of two bytes": {strings.Repeat("\u00e9", 1000), strings.Repeat("\u00e9", 500) + "..."},
		"a character at the end":  {"x" + strings.Repeat("\u00e9", 1000), "x" + strings.Repeat("\u00e9", 499) + "..."},
		"short":                   {"the turn waits", "the turn waits"},
	} {
		t.Run(name, func(t *testing.T) {
			to := events.NewFakeRecorder(1)
			turn := &v1alpha1.Turn{ObjectMeta: metav1.ObjectMeta{Namespace: "helpdesk"}}
			barrier.Events(to, secrets).Eventf(turn, nil, "Warning", "Failed", "Run", "%s", tc.note)
			if got := <-to.Events; got != "Warning Failed "+tc.want {
				t.Errorf("the Event is %q, want %q", got, tc.want)
			}
		})
	}
}

func TestLogRedactsLinesOfTheNamespace(t *testing.T) {
	var line string
	log := barrier.Log(funcr.New(func(_, args string) { line = args }, funcr.Options{}), known())
	failure := errors.New("it said " + key)
	for name, tc := range map[string]struct {
		write  func()
		hidden bool
	}{
		"an error about a turn": {
			func() { log.Error(failure, "Failed", "turn", types.NamespacedName{Namespace: "helpdesk", Name: "one"}) },
			true,
		},
		"a value":             {func() { log.Info("Failed", "turn", types.NamespacedName{Namespace: "helpdesk"}, "cause", key) }, true},
		"an error as a value": {func() { log.Info("Failed", "namespace", "helpdesk", "cause", failure) }, true},
		"values of the logger": {
			func() { log.WithName("x").WithValues("toolServer", "helpdesk/desk").Info("Failed", "cause", key) },
			true,
		},
		"an object": {func() {
			log.Error(failure, "Failed", "object", &v1alpha1.Turn{ObjectMeta: metav1.ObjectMeta{Namespace: "helpdesk"}})
		}, true},
		"another namespace":     {func() { log.Error(failure, "Failed", "namespace", "sales") }, false},
		"no namespace":          {func() { log.Error(failure, "Failed") }, false},
		"a namespace in a text": {func() { log.Info("Failed", "cause", key+"/helpdesk") }, false},
	} {
		tc.write()
		if got := !strings.Contains(line, "it said "+key) && !strings.Contains(line, `"cause"="`+key); got != tc.hidden {
			t.Errorf("%s: hidden is %t: %s", name, got, line)
		}
		if !strings.Contains(line, `"msg"="Failed"`) {
			t.Errorf("%s: the message was changed: %s", name, line)
		}
	}
}

// TestTurnsOfForeignAgents checks that texts about a Turn of a shared Agent do not contain credentials of the Agent's
// namespace.
func TestTurnsOfForeignAgents(t *testing.T) {
	turnOf := func(agentNamespace string) *v1alpha1.Turn {
		turn := objectsWithKey("sales")[0].(*v1alpha1.Turn)
		turn.Spec.AgentRef = v1alpha1.SharedReference{Namespace: agentNamespace, Name: "support"}
		return turn
	}
	scheme := runtime.NewScheme()
	if err := v1alpha1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	for agentNamespace, hidden := range map[string]bool{"helpdesk": true, "third": false, "": false} {
		turn := turnOf(agentNamespace)
		c := fake.NewClientBuilder().WithScheme(scheme).WithObjects(turnOf(agentNamespace)).WithStatusSubresource(turn).Build()
		err := c.Get(t.Context(), client.ObjectKeyFromObject(turn), turn)
		if err == nil {
			err = barrier.Client(c, known()).Status().Update(t.Context(), turn)
		}
		if err != nil {
			t.Fatal(err)
		}
		status, err := json.Marshal(turn.Status)
		if err != nil {
			t.Fatal(err)
		}
		to := events.NewFakeRecorder(1)
		barrier.Events(to, known()).Eventf(turn, nil, "Warning", "Failed", "Run", "%s", key)
		for what, text := range map[string]string{"status": string(status), "Event": <-to.Events} {
			if strings.Contains(text, key) == hidden {
				t.Errorf("the %s of a Turn whose Agent is in namespace %q: %s, want the key hidden: %t", what, agentNamespace, text, hidden)
			}
		}
	}
}
