package main

import (
	"encoding/json"
	"io"
	"math/rand/v2"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/hack/chaos/failpoint"
	"github.com/capstan-dev/capstan/internal/model/endpoint"
	"github.com/capstan-dev/capstan/internal/model/openai"
	"github.com/capstan-dev/capstan/internal/netpolicy"
	"github.com/capstan-dev/capstan/internal/runtime/model"
	"github.com/capstan-dev/capstan/internal/runtime/tool"
	"github.com/capstan-dev/capstan/internal/toolservers"
	"github.com/capstan-dev/capstan/test/fakemodel/server"
)

func TestParse(t *testing.T) {
	for name, tc := range map[string]struct {
		args []string
		want string // part of the error; empty for none
	}{
		"Defaults":    {nil, ""},
		"OnePhase":    {[]string{"--only", "points", "--store", "sqlite", "--points", "after"}, ""},
		"NoTurns":     {[]string{"--turns", "0"}, "--turns and --kills must be at least 1"},
		"NoKills":     {[]string{"--kills", "0"}, "--turns and --kills must be at least 1"},
		"OneTurn":     {[]string{"--executor-turns", "1"}, "--executor-turns at least 2"},
		"OtherStore":  {[]string{"--store", "mysql"}, "--store must be postgres or sqlite"},
		"OtherPhase":  {[]string{"--only", "dance"}, "--only must be one of"},
		"OtherPoints": {[]string{"--points", "some"}, "--points must be all or after"},
		"OtherOutput": {[]string{"-o", "yaml"}, "-o must be text or json"},
		"Rest":        {[]string{"now"}, `unknown argument "now"`},
	} {
		t.Run(name, func(t *testing.T) {
			o, err := parse(tc.args, io.Discard)
			switch {
			case tc.want == "" && err != nil:
				t.Error(err)
			case tc.want == "" && o.seed == 0:
				t.Error("the seed is 0, want a random seed")
			case tc.want != "" && (err == nil || !strings.Contains(err.Error(), tc.want)):
				t.Errorf("got %v, want an error with %q", err, tc.want)
			}
		})
	}
}

// TestPointsSurroundEachEffect checks that there is a point before and after each effect, and that the
// manager accepts each of them.
func TestPointsSurroundEachEffect(t *testing.T) {
	all := options{points: pointsAll}.scenarios()
	names := map[string]bool{}
	for _, s := range all {
		if names[s.name] {
			t.Errorf("two Turns have the name %q", s.name)
		}
		names[s.name] = true
		for _, p := range s.points {
			if again, err := failpoint.Parse(p.String()); err != nil || again != p || p.Turn != s.name && p.Turn != s.name+childOf {
				t.Errorf("point %+v of Turn %q comes back as %+v: %v", p, s.name, again, err)
			}
		}
	}
	// Bind, expose and prepare; three replies and three calls of three effects each; the end in the journal and in
	// the status.
	const short = 3 + 3*3 + 3*3 + 2
	// A wave, an approved call, a denied call, a call of a sub-agent and two effects of the child, a compaction,
	// identical calls, calls with hostile IDs, and a Turn of a Session.
	const others = 6 + 8 + 2 + 7 + 2 + 5 + 4 + 6 + 5
	// single is the number of Turns with one crash point, and double the number of Turns with two crash points.
	const single, double = short + others, 4
	if got := len(all); got != 2*(single+double) {
		t.Errorf("%d points, want %d", got, 2*(single+double))
	}
	if got := len(options{points: pointsAfter}.scenarios()); got != single+double {
		t.Errorf("%d points after an effect, want %d", got, single+double)
	}
}

func TestFakeModelAcceptsTheRules(t *testing.T) {
	if _, err := server.New(server.Config{Rules: rules(rand.New(rand.NewPCG(1, 1)))}); err != nil {
		t.Fatal(err)
	}
}

func TestCallsOfATurnDiffer(t *testing.T) {
	for _, p := range plans {
		if p.same {
			continue
		}
		seen := map[string]bool{}
		for i := range p.steps {
			for _, c := range p.calls(i+1, 0) {
				if call := c.Name + *c.Arguments; seen[call] {
					t.Errorf("%s makes the call %s twice", p.name, call)
				} else {
					seen[call] = true
				}
			}
		}
	}
}

// TestFakeModelFollowsThePlans checks that the fake model follows the plans even if all calls are denied, and if only
// the newest messages are left, as after a compaction.
func TestFakeModelFollowsThePlans(t *testing.T) {
	fake, err := server.New(server.Config{Rules: rules(rand.New(rand.NewPCG(1, 1)))})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(fake.Close)
	web := httptest.NewServer(fake)
	t.Cleanup(web.Close)
	provider := openai.New(openai.Config{Config: endpoint.Config{
		BaseURL: web.URL + "/v1", Policy: netpolicy.NewLocalPolicy(),
		ConnectTimeout: time.Minute, IdleTimeout: time.Minute,
	}})
	t.Cleanup(provider.Close)
	var offered []model.Tool
	for _, name := range []string{toolCount, toolLook, toolWipe, toolHelper} {
		offered = append(offered, model.Tool{Name: name, Parameters: []byte(`{"type": "object"}`)})
	}
	for _, p := range []plan{short, shortWave, shortWide, shortNested, shortSiblings, shortHostile, talk} {
		user := model.Message{Role: model.RoleUser, Content: p.message(3)}
		newest := []model.Message{user}
		for _, want := range append(slices.Clone(p.steps), nil) {
			reply, err := provider.Generate(t.Context(), &model.Request{Model: modelName, Messages: newest, Tools: offered})
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			newest = []model.Message{user, {Role: model.RoleAssistant, Content: reply.Text, ToolCalls: reply.ToolCalls}}
			for _, c := range reply.ToolCalls {
				got = append(got, c.Name)
				newest = append(newest, model.Message{Role: model.RoleTool, ToolCallID: c.ID, Content: "error (denied): no"})
			}
			if !slices.Equal(got, want) {
				t.Errorf("%s asks for %q, want %q", p.name, got, want)
			}
		}
	}
}

// TestToolServerCountsCallsByKey calls the tool server as the manager does.
func TestToolServerCountsCallsByKey(t *testing.T) {
	s := newToolServer(time.Millisecond)
	web := httptest.NewServer(s)
	t.Cleanup(web.Close)
	servers := toolservers.NewCache(nil, netpolicy.NewLocalPolicy(), time.Now, logr.Discard())
	t.Cleanup(servers.Close)
	object := &v1alpha1.ToolServer{
		ObjectMeta: metav1.ObjectMeta{Name: objectName, Namespace: "n", UID: "uid"},
		Spec: v1alpha1.ToolServerSpec{
			Type: v1alpha1.ToolServerTypeMCP, MCP: &v1alpha1.MCPEndpoint{URL: web.URL},
			Tools: declarations(),
		},
	}
	tools, err := servers.Tools(t.Context(), object)
	if err != nil {
		t.Fatal(err)
	}
	effects := map[string]tool.Effect{}
	for _, offered := range tools {
		effects[offered.Name] = offered.Effect
	}
	if diff := cmp.Diff(map[string]tool.Effect{toolCount: tool.Destructive, toolWipe: tool.Destructive, toolLook: tool.ReadOnly},
		effects); diff != "" {
		t.Errorf("tools (-want +got):\n%s", diff)
	}
	for _, key := range []string{"a", "b", "a", ""} {
		if _, err := servers.Caller(object, toolCount).Call(t.Context(),
			tool.Call{IdempotencyKey: key, Arguments: []byte(`{"step": 1, "place": 1}`)}); err != nil {
			t.Errorf("call %q: %v", key, err)
		}
	}
	result, err := servers.Caller(object, toolLook).Call(t.Context(),
		tool.Call{IdempotencyKey: "c", Arguments: []byte(`{"step": 1, "place": 1, "chars": 600}`)})
	if err != nil || len(result.Content) < 600 || len(result.Content) > 700 {
		t.Errorf("a long look gives %d bytes, want 600 to 700: %v", len(result.Content), err)
	}
	want := map[string]called{"a": {toolCount, 2}, "b": {toolCount, 1}, "": {toolCount, 1}, "c": {toolLook, 1}}
	if diff := cmp.Diff(want, s.calls()); diff != "" {
		t.Errorf("calls (-want +got):\n%s", diff)
	}
	if s.reset(); len(s.calls()) > 0 {
		t.Error("the server still has calls after a reset")
	}
}

func TestReportListsViolations(t *testing.T) {
	good := newPhaseReport(story())
	good.Name = "good"
	e := story()
	e.Called[keyOf(uid, "/2/c")] = called{Tool: toolCount, Times: 2}
	bad := newPhaseReport(e)
	bad.Name = "bad"
	var text strings.Builder
	r := &report{Seed: 7, Store: storeSQLite, Phases: []*phaseReport{good}}
	if err := r.failure(); err != nil {
		t.Errorf("failure of a report without violations: %v", err)
	}
	r.Phases = append(r.Phases, bad)
	if err := r.failure(); err == nil || !strings.Contains(err.Error(), "bad: "+string(calledOnce)) ||
		strings.Contains(err.Error(), "good") {
		t.Errorf("the failure is %v", err)
	}
	if err := r.write(&text, outputText); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"seed 7, store sqlite", "== good", "== bad", "BROKEN, 1 times", "was made 2 times"} {
		if !strings.Contains(text.String(), want) {
			t.Errorf("the text lacks %q:\n%s", want, &text)
		}
	}
	text.Reset()
	if err := r.write(&text, outputJSON); err != nil {
		t.Fatal(err)
	}
	var back report
	if err := json.Unmarshal([]byte(text.String()), &back); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(*r, back); diff != "" {
		t.Errorf("JSON loses something (-want +got):\n%s", diff)
	}
}

func TestTruncatedTraceIsReadUpToItsLastWholeLine(t *testing.T) {
	path := filepath.Join(t.TempDir(), "trace")
	text := `{"Effect":"tool.call","Turn":"a"}` + "\n" + `{"Effect":"journal.append","Turn":"b","Error":"no"}` + "\n" + `{"Eff`
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	steps, err := readTrace(path)
	if err != nil || len(steps) != 2 || steps[1].Error != "no" {
		t.Errorf("got %+v, %v", steps, err)
	}
}
