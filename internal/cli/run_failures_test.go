package cli_test

import (
	"strings"
	"testing"

	"github.com/capstan-dev/capstan/internal/cli/exit"
)

func TestRunFailures(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		reason string
		rules  string
		want   []string
		out    string
	}{
		"the server refuses the key and repeats it": {
			"there is no answer",
			"rules: [{fault: {echoAuthorization: true}}]",
			[]string{"Turn default/first: ModelFailed: ", `"model-key"`},
			"",
		},
		"unknown model": {"there is no answer", "models: [large]", []string{"ModelFailed", "small"}, ""},
		"cut off": {
			"the beginning of the answer is printed", "rules: [{reply: {text: half an ans, finishReason: length}}]",
			[]string{"OutputInvalid", "maxOutputTokens"},
			"half an ans\n",
		},
		"filtered": {
			"a filtered answer is not printed", "rules: [{reply: {text: x, finishReason: content_filter}}]",
			[]string{"PolicyViolated"},
			"",
		},
		"HTML instead of JSON": {"there is no answer", "rules: [{fault: {rubbish: HTML}}]", []string{"ModelFailed"}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, url := fake(t, tc.rules)
			dir := complete().written(t, url)
			got := capstan(t, "run", "-f", dir).mustEnd(t, exit.Failed)
			mustSay(t, got.err, tc.want...)
			if got.out != tc.out {
				t.Errorf("standard output is %q, want %q: %s", got.out, tc.out, tc.reason)
			}
			turn := capstan(t, "run", "-f", dir, "-o", "json").mustEnd(t, exit.Failed)
			mustSay(t, turn.out, `"type": "Stalled"`)
			if strings.Contains(got.out+got.err+turn.out+turn.err, key) {
				t.Errorf("want no key in any output, have:\n%s\n%s", got.err, turn.out)
			}
		})
	}
}

func TestRunDeadline(t *testing.T) {
	t.Parallel()
	_, url := fake(t, "rules: [{fault: {hang: AfterHeaders}}]")
	dir := complete().with(t, "agent.yaml", "timeoutSeconds: 30", "timeoutSeconds: 1").written(t, url)
	got := capstan(t, "run", "-f", dir, "--now", noon).mustEnd(t, exit.Failed)
	mustSay(t, got.err, "Turn default/first: DeadlineExceeded: ", "limits.timeoutSeconds")
}

func TestRunWithMissingObjects(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		remove string
		want   string
	}{
		"no Secret": {"secret.yaml", `provider.yaml: ModelProvider default/demo: Secret "model-key" does not ` +
			`exist in namespace "default": ` +
			`create it with key "apiKey" (Secrets in the manifests: none), or pass the value with --env-secret model-key/apiKey=ENVVAR`},
		"no ModelProvider": {"provider.yaml", `agent.yaml: Agent default/support: spec.models[0].providerRef.name: ` +
			`ModelProvider "default/demo" is not in the manifests, which contain none: correct the name, or add its file with -f`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := complete()
			delete(f, tc.remove)
			got := capstan(t, "run", "-f", f.written(t, nowhere)).mustEnd(t, exit.Failed)
			mustSay(t, got.err, tc.want)
		})
	}
}

// TestRunWithSharedObjects checks runs whose ModelProvider or PromptProfile is in another namespace.
func TestRunWithSharedObjects(t *testing.T) {
	t.Parallel()
	_, url := fake(t, "{apiKeys: ["+key+"], rules: [{reply: {text: The shared model answers.}}]}")
	shared := func(allowed string) files {
		return complete().with(t, "agent.yaml", "name: demo", "name: demo, namespace: platform").
			with(t, "secret.yaml", "name: model-key", "name: model-key, namespace: platform").
			with(t, "provider.yaml", "name: demo", "name: demo, namespace: platform").
			with(t, "provider.yaml", "spec:", "spec:\n"+allowed)
	}
	for _, allowed := range []string{"{from: All}", "{from: Selector, selector: {matchLabels: {team: a}}}"} {
		got := capstan(t, "run", "-f", shared("  allowedNamespaces: "+allowed).written(t, url), "-o", "json").mustEnd(t, exit.OK)
		mustSay(t, got.out, "The shared model answers.", `"provider": "platform/demo"`)
	}
	for _, allowed := range []string{"", "  allowedNamespaces: {from: Same}"} {
		got := capstan(t, "run", "-f", shared(allowed).written(t, url)).mustEnd(t, exit.Failed)
		mustSay(t, got.err, `agent.yaml: Agent default/support: spec.models[0].providerRef.name: ModelProvider "platform/demo" does not `+
			`allow namespace "default": allow it in spec.allowedNamespaces of the ModelProvider, or refer to another ModelProvider, `+
			`in namespace "default"`)
	}
	profile := complete().
		with(t, "agent.yaml", "promptProfileRef: {name: support", "promptProfileRef: {name: support, namespace: platform").
		with(t, "profile.yaml", "name: support", "name: support, namespace: platform")
	got := capstan(t, "run", "-f", profile.written(t, url)).mustEnd(t, exit.Failed)
	mustSay(t, got.err, `agent.yaml: Agent default/support: spec.promptProfileRef.name: PromptProfile "platform/support" does not allow `+
		`namespace "default"`)
	capstan(t, "run", "-f", profile.with(t, "profile.yaml", "spec:", "spec:\n  allowedNamespaces: {from: All}").written(t, url)).
		mustEnd(t, exit.OK)
	absent := shared("  allowedNamespaces: {from: All}")
	delete(absent, "secret.yaml")
	got = capstan(t, "run", "-f", absent.written(t, url)).mustEnd(t, exit.Failed)
	mustSay(t, got.err, `Secret "model-key" does not exist in namespace "platform"`, "--env-secret platform/model-key/apiKey=ENVVAR")
}
