package gitops_test

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/fluxcd/cli-utils/pkg/kstatus/status"
	lua "github.com/yuin/gopher-lua"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	luajson "layeh.com/gopher-json"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"
)

// The health states, with Argo CD's names.
const (
	healthy     = "Healthy"
	progressing = "Progressing"
	suspended   = "Suspended"
	degraded    = "Degraded"
)

// fluxHealth returns the health of an object, computed by the code that Flux uses.
func fluxHealth(t *testing.T, o *unstructured.Unstructured) status.Status {
	t.Helper()
	result, err := status.Compute(o)
	if err != nil {
		t.Fatal(err)
	}
	return result.Status
}

// script returns the health check for Argo CD in examples/gitops, which covers all kinds.
func script(t *testing.T) string {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(root, "examples/gitops/argocd/health.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	var configMap struct {
		Data map[string]string `json:"data"`
	}
	if err := yaml.Unmarshal(data, &configMap); err != nil {
		t.Fatal(err)
	}
	var overrides map[string]struct {
		Health string `json:"health.lua"`
	}
	if err := yaml.UnmarshalStrict([]byte(configMap.Data["resource.customizations"]), &overrides); err != nil {
		t.Fatal(err)
	}
	text := overrides["capstan.dev/*"].Health
	if text == "" {
		t.Fatal("health.yaml has no health.lua for capstan.dev/*")
	}
	return text
}

// argoHealth runs the script as Argo CD does: in a Lua state with only the libraries base and table, and with the
// object as the global variable obj.
func argoHealth(t *testing.T, o *unstructured.Unstructured) (health, message string) {
	t.Helper()
	l := lua.NewState(lua.Options{SkipOpenLibs: true})
	defer l.Close()
	for name, open := range map[string]lua.LGFunction{lua.BaseLibName: lua.OpenBase, lua.TabLibName: lua.OpenTable} {
		if err := l.CallByParam(lua.P{Fn: l.NewFunction(open), Protect: true}, lua.LString(name)); err != nil {
			t.Fatal(err)
		}
	}
	data, err := o.MarshalJSON()
	if err != nil {
		t.Fatal(err)
	}
	obj, err := luajson.Decode(l, data)
	if err != nil {
		t.Fatal(err)
	}
	l.SetGlobal("obj", obj)
	if err := l.DoString(script(t)); err != nil {
		t.Fatalf("%s %s: %v", o.GetKind(), o.GetName(), err)
	}
	table, ok := l.Get(-1).(*lua.LTable)
	if !ok {
		t.Fatalf("the script returns %s, want a table", l.Get(-1).Type())
	}
	return table.RawGetString("status").String(), table.RawGetString("message").String()
}

// objects returns the objects of the manifests, with the addresses and the namespace of the test environment.
func (s *testEnv) objects(files ...string) []*unstructured.Unstructured {
	s.t.Helper()
	var all []*unstructured.Unstructured
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			s.t.Fatal(err)
		}
		for text := range strings.SplitSeq(string(data), "\n---\n") {
			o := &unstructured.Unstructured{}
			if err := yaml.Unmarshal([]byte(text), &o.Object); err != nil {
				s.t.Fatalf("%s: %v", file, err)
			}
			if len(o.Object) == 0 || o.GetKind() == "Kustomization" {
				continue
			}
			o.SetNamespace(s.namespace)
			s.replace(o, "http://127.0.0.1:8089/v1", s.modelURL, "spec", "baseURL")
			s.replace(o, "http://127.0.0.1:8090/mcp", s.mcpURL, "spec", "mcp", "url")
			all = append(all, o)
		}
	}
	return all
}

func (s *testEnv) replace(o *unstructured.Unstructured, from, to string, path ...string) {
	s.t.Helper()
	if have, _, _ := unstructured.NestedString(o.Object, path...); have != from {
		return
	}
	if err := unstructured.SetNestedField(o.Object, to, path...); err != nil {
		s.t.Fatal(err)
	}
}

// TestHealthOfEveryKindInEveryState checks that Flux's own code and the script for Argo CD read the manager's
// statuses correctly.
func TestHealthOfEveryKindInEveryState(t *testing.T) {
	s := newTestEnv(t)
	for _, o := range s.objects("testdata/states.yaml") {
		if err := apiClient.Create(t.Context(), o, client.FieldValidation("Strict")); err != nil {
			t.Fatalf("%s %s: %v", o.GetKind(), o.GetName(), err)
		}
	}
	states := []struct {
		kind, name, reason string
		flux               status.Status
		argo               string
	}{
		{"ModelProvider", "good", "Ready", status.CurrentStatus, healthy},
		{"ModelProvider", "no-secret", "SecretNotFound", status.InProgressStatus, progressing},
		{"ModelProvider", "wrong-key", "CredentialsRejected", status.InProgressStatus, degraded},
		{"ModelProvider", "away", "EndpointUnreachable", status.InProgressStatus, degraded},
		{"ToolServer", "good", "Ready", status.CurrentStatus, healthy},
		{"ToolServer", "away", "EndpointUnreachable", status.InProgressStatus, degraded},
		{"ToolServer", "broken", "InvalidCompensation", status.FailedStatus, degraded},
		{"PromptProfile", "good", "Ready", status.CurrentStatus, healthy},
		{"PromptProfile", "broken", "RenderFailed", status.FailedStatus, degraded},
		{"PromptProfile", "broken-configmap", "RenderFailed", status.InProgressStatus, degraded},
		{"PromptProfile", "no-configmap", "ConfigMapNotFound", status.InProgressStatus, progressing},
		{"Agent", "good", "Ready", status.CurrentStatus, healthy},
		{"Agent", "no-profile", "ProfileNotFound", status.InProgressStatus, progressing},
		{"Agent", "broken-profile", "ProfileNotReady", status.InProgressStatus, progressing},
		{"Agent", "no-provider", "ProviderNotFound", status.InProgressStatus, progressing},
		{"Agent", "no-server", "ToolServerNotFound", status.InProgressStatus, progressing},
		{"Agent", "no-zone", "InvalidTimeZone", status.FailedStatus, degraded},
		{"Agent", "broken", "InvalidInstructions", status.FailedStatus, degraded},
		{"Agent", "no-variable", "InvalidInstructions", status.InProgressStatus, degraded},
		{"Budget", "good", "Ready", status.CurrentStatus, healthy},
		{"Budget", "no-zone", "InvalidBudget", status.FailedStatus, degraded},
		{"Session", "open", "Open", status.CurrentStatus, healthy},
		{"Session", "used-up", "BudgetUsed", status.FailedStatus, degraded},
		{"Turn", "answered", "Completed", status.CurrentStatus, healthy},
		{"Turn", "prepared", "Prepared", status.CurrentStatus, healthy},
		{"Turn", "uses-up", "Completed", status.CurrentStatus, healthy},
		{"Turn", "no-answer", "ModelFailed", status.FailedStatus, degraded},
		{"Turn", "waits-for-agent", "WaitingForAgent", status.InProgressStatus, progressing},
		{"Turn", "asks", "AwaitingApproval", status.InProgressStatus, suspended},
		{"Turn", "stopped", "Suspended", status.CurrentStatus, suspended},
		{"Turn", "cancelled", "Cancelled", status.FailedStatus, degraded},
	}
	for _, want := range states {
		checkHealth(t, s.get(want.kind, want.name), "before a manager runs", status.InProgressStatus, progressing)
	}
	stop := s.runManager()
	for _, want := range states {
		o := s.waitForState(want.kind, want.name, want.reason)
		checkHealth(t, o, want.reason, want.flux, want.argo)
	}
	stop()
	for _, o := range []*unstructured.Unstructured{
		s.get("PromptProfile", "good"), s.get("Agent", "good"),
		s.get("ModelProvider", "good"), s.get("ToolServer", "good"),
	} {
		path, value := []string{"spec", "description"}, "changed"
		switch o.GetKind() {
		case "PromptProfile":
			path = []string{"spec", "instructions"}
		case "ModelProvider":
			path, value = []string{"spec", "baseURL"}, s.modelURL+"/changed"
		case "ToolServer":
			path, value = []string{"spec", "mcp", "url"}, s.mcpURL+"/changed"
		}
		if err := unstructured.SetNestedField(o.Object, value, path...); err != nil {
			t.Fatal(err)
		}
		if err := apiClient.Update(t.Context(), o); err != nil {
			t.Fatal(err)
		}
		checkHealth(t, o, "with a spec that the manager has not seen", status.InProgressStatus, progressing)
	}
}

// checkHealth checks the health of an object for Flux and for Argo CD. state describes the object in failures.
func checkHealth(t *testing.T, o *unstructured.Unstructured, state string, wantFlux status.Status, wantArgo string) {
	t.Helper()
	if got := fluxHealth(t, o); got != wantFlux {
		t.Errorf("%s %s, %s: Flux reports %s, want %s: %v", o.GetKind(), o.GetName(), state, got, wantFlux, o.Object["status"])
	}
	got, message := argoHealth(t, o)
	if got != wantArgo {
		t.Errorf("%s %s, %s: Argo CD reports %s (%s), want %s", o.GetKind(), o.GetName(), state, got, message, wantArgo)
	}
	if message == "" || message == "nil" {
		t.Errorf("%s %s, %s: Argo CD has no message", o.GetKind(), o.GetName(), state)
	}
}

// TestAnApprovalIsHealthy checks an object without a status.
func TestAnApprovalIsHealthy(t *testing.T) {
	o := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "capstan.dev/v1alpha1", "kind": "ToolApproval",
		"metadata": map[string]any{"generation": int64(1), "name": "decision"},
	}}
	checkHealth(t, o, "recorded", status.CurrentStatus, healthy)
}

// TestHealthScriptNamesTheReasons checks that all reasons in the script belong to the API, and that the script
// contains all reasons for a missing or unready object.
func TestHealthScriptNamesTheReasons(t *testing.T) {
	text := script(t)
	source, err := os.ReadFile(filepath.Join(root, "api/v1alpha1/conditions.go"))
	if err != nil {
		t.Fatal(err)
	}
	known := map[string]bool{}
	for _, m := range regexp.MustCompile(`(?m)^\t\w*Reason\w* += "(\w+)"`).FindAllStringSubmatch(string(source), -1) {
		known[m[1]] = true
		waits := regexp.MustCompile(`(NotFound|NotReady|NotRendered|Unreadable)$`).MatchString(m[1])
		if named := strings.Contains(text, m[1]+" = true"); waits && !named {
			t.Errorf("the script does not name %s", m[1])
		}
	}
	for _, m := range regexp.MustCompile(`(\w+) = true`).FindAllStringSubmatch(text, -1) {
		if !known[m[1]] {
			t.Errorf("the script names %s, which is not a reason of the API", m[1])
		}
	}
}
