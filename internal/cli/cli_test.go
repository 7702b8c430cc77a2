package cli_test

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/capstan-dev/capstan/internal/cli"
	"github.com/capstan-dev/capstan/internal/cli/exit"
	"github.com/capstan-dev/capstan/internal/cli/terminal"
)

// TestFullStandardOutput checks that a failed write is not reported as an error of usage, also for texts of cobra.
func TestFullStandardOutput(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{
		{"version"},
		{"--version"},
		{"completion", "bash"},
		{"prices"},
		{"--help"},
		{"help", "run"},
		{"run", "--help"},
		{"__complete", "ru"},
	} {
		r, w := io.Pipe()
		if err := r.CloseWithError(errors.New("the disk is full")); err != nil {
			t.Fatal(err)
		}
		var errOut strings.Builder
		code := cli.Execute(t.Context(), terminal.Environment{Version: "v1", Out: w, Err: &errOut}, args)
		if code != exit.Failed || errOut.String() != "capstan: failed to write to standard output: the disk is full\n" &&
			args[0] != "__complete" { // which also writes its directive to standard error
			t.Errorf("%s: exit code %d, and %q", args, code, errOut.String())
		}
	}
}

func TestUsageErrors(t *testing.T) {
	t.Parallel()
	dir := complete().written(t, nowhere)
	for name, tc := range map[string]struct {
		reason string
		args   []string
		want   []string
	}{
		"misspelt format": {
			"the error suggests the nearest format",
			[]string{"render", "-f", dir, "-o", "jsn"},
			[]string{`"jsn"`, "must be text, json or yaml: did you mean json?", "capstan render --help"},
		},
		"unknown format": {
			"no format is similar, so nothing is suggested",
			[]string{"run", "-f", dir, "-o", "wide"},
			[]string{"must be text, json or yaml\n"},
		},
		"misspelt flag": {
			"the error suggests the nearest flag",
			[]string{"run", "-f", dir, "--trun", "x"},
			[]string{"unknown flag: --trun: did you mean --turn?", "capstan run --help"},
		},
		"unknown flag":    {"the error names it", []string{"run", "--frobnicate"}, []string{"unknown flag: --frobnicate\n"}},
		"unknown command": {"the error names it", []string{"rum"}, []string{`unknown command "rum"`, "run", "capstan --help"}},
		"no manifests":    {"the error names the flag", []string{"render"}, []string{"with -f", "capstan render --help"}},
		"number": {
			"the error is not Go's", []string{"decisions", "--limit", "ten"}, []string{"--limit: \"ten\" must be a whole number\n"},
		},
		"large number": {
			"the error is not Go's",
			[]string{"decisions", "--limit", "99999999999999999999"},
			[]string{"--limit: \"99999999999999999999\" must be a smaller number\n"},
		},
		"switch": {"the error is not Go's", []string{"run", "--quiet=of"}, []string{"--quiet: \"of\" must be true or false\n"}},
		"path without a flag": {
			"the error says where -f belongs",
			[]string{"run", "turn.yaml"},
			[]string{`there are no manifests: put -f before "turn.yaml"` + "\n", "capstan run --help"},
		},
		"cases without a flag": {
			"a file is not a command",
			[]string{"eval", "cases.yaml"},
			[]string{`unexpected argument "cases.yaml": name the file of cases with -f` + "\n"},
		},
		"manifests of a backtest without a flag": {
			"a file is not a command",
			[]string{"backtest", "new.yaml"},
			[]string{`unexpected argument "new.yaml": name manifests with -f or --manifests, and the Agent with --agent` + "\n"},
		},
		"argument of usage": {
			"a Turn is not a command",
			[]string{"usage", "first"},
			[]string{`unexpected argument "first": select Turns with --agent, --session, --requester or --since` + "\n"},
		},
		"argument of decisions": {
			"a Turn is not a command",
			[]string{"decisions", "first"},
			[]string{
				`unexpected argument "first": select Turns with --agent, --session, --requester or --since; ` +
					"capstan decisions delete TURN deletes records\n",
			},
		},
		"argument of export": {
			"the error has the command",
			[]string{"export", "first"},
			[]string{`unexpected argument "first": to export a Turn: capstan export turn NAME` + "\n"},
		},
		"argument of memory": {
			"the error has the commands",
			[]string{"memory", "first"},
			[]string{`unexpected argument "first": use capstan memory list, show or delete` + "\n"},
		},
		"argument of memory list": {
			"a Turn is not a command",
			[]string{"memory", "list", "first"},
			[]string{`unexpected argument "first": select memories with --turn, --session, --requester, --agent or --scope` + "\n"},
		},
		"argument of version": {
			"a word is not a command", []string{"version", "x"}, []string{`unexpected argument "x": this command has no arguments` + "\n"},
		},
		"two Turns": {
			"the error names them",
			[]string{"logs", "first", "second"},
			[]string{`specify one Turn, as NAME or NAMESPACE/NAME, and not "first" "second"` + "\n"},
		},
		"two Turns to delete": {
			"the error says what to do",
			[]string{"decisions", "delete", "first", "second"},
			[]string{`unexpected argument "second": run the command once for each Turn` + "\n"},
		},
		"two memories to delete": {
			"the error says what to do",
			[]string{"memory", "delete", "a", "b"},
			[]string{`unexpected argument "b": run the command once for each memory` + "\n"},
		},
		"no such file": {"the error names it", []string{"run", "-f", "none.yaml"}, []string{"none.yaml: failed to find it"}},
		"argument that is no path": {
			"arguments are further paths", []string{"run", "-f", dir, "none.yaml"}, []string{"none.yaml: failed to find it"},
		},
		"empty call": {
			"approve -y must not approve another call",
			[]string{"approve", "first", "--call", "", "-y"},
			[]string{"--call must not be empty: give it a value, or leave it out\n", "capstan approve --help"},
		},
		"empty path": {
			"a variable of a script that is not set", []string{"render", "-f", dir, "-f", ""}, []string{"--filename must not be empty"},
		},
		"empty token": {
			"approve -y must not decide as the user of the kubeconfig",
			[]string{"approve", "first", "-y", "--token", ""},
			[]string{"--token must not be empty: give it a value, or leave it out\n", "capstan approve --help"},
		},
		"empty server": {
			"logs must not forward a port", []string{"logs", "first", "--server="}, []string{"--server must not be empty"},
		},
		"empty file of authorities": {
			"logs must not trust the authorities of the system",
			[]string{"logs", "first", "--server", "https://capstan.example", "--server-ca-file", ""},
			[]string{"--server-ca-file must not be empty"},
		},
		"empty namespace of the manager": {
			"logs must not search all namespaces",
			[]string{"logs", "first", "--manager-namespace", ""},
			[]string{"--manager-namespace must not be empty"},
		},
		"empty time": {
			"usage must not add up the usage of all times", []string{"usage", "--since", ""}, []string{"--since must not be empty"},
		},
		"empty file of skills": {
			"run must not leave out the skills",
			[]string{"run", "-f", dir, "--skills-file", ""},
			[]string{"--skills-file must not be empty"},
		},
		"empty directory": {
			"undo must not act in a cluster", []string{"undo", "first", "--data-dir", ""}, []string{"--data-dir must not be empty"},
		},
		"empty Turn": {"run must not take the only Turn", []string{"run", "-f", dir, "--turn="}, []string{"--turn must not be empty"}},
		"empty requester": {
			"delete must not delete the records of all requesters",
			[]string{"decisions", "delete", "--session", "s", "--requester", ""},
			[]string{"--requester must not be empty"},
		},
		"empty scope": {
			"delete must not delete the memories of all scopes",
			[]string{"memory", "delete", "--requester", "ada", "--scope", ""},
			[]string{"--scope must not be empty"},
		},
		"empty Agent": {
			"decisions must not show the records of all Agents",
			[]string{"decisions", "--agent", ""},
			[]string{"--agent must not be empty"},
		},
		"empty PromptProfile": {
			"the old prompt must not be tested",
			[]string{"eval", "-f", "cases.yaml", "--profile", ""},
			[]string{"--profile must not be empty"},
		},
		"empty model": {
			"the old model must not be tested", []string{"replay", "first", "-m", dir, "--model="}, []string{"--model must not be empty"},
		},
		"empty ID": {
			"show must not show all memories", []string{"memory", "show", ""}, []string{"an argument must not be empty"},
		},
		"bad time": {"the error has an example", []string{"run", "-f", dir, "--now", "monday"}, []string{"--now", "2026-04-09T10:00:00Z"}},
		"unknown turn": {
			"the error lists the existing Turns",
			[]string{"run", "-f", dir, "--turn", "second"},
			[]string{"--turn", `"second"`, "default/first"},
		},
		"source of a secret is missing": {
			"the error names the variable",
			[]string{"run", "-f", dir, "--env-secret", "model-key/apiKey=UNSET"},
			[]string{"--env-secret", "model-key/apiKey", `"UNSET"`},
		},
		"secret's value in place of a variable": {
			"the error must not contain a credential that was given by mistake",
			[]string{"run", "-f", dir, "--env-secret", "model-key/apiKey=" + key},
			[]string{"--env-secret", "must be the name of an environment variable"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got := capstan(t, tc.args...).mustEnd(t, exit.Usage)
			mustSay(t, got.err, append(tc.want, "capstan: ")...)
			if got.out != "" || strings.Contains(got.err, key) {
				t.Errorf("%s: want only an error, without the key, have:\n%s%s", tc.reason, got.out, got.err)
			}
		})
	}
}

func TestInvalidManifestsNameFileObjectAndField(t *testing.T) {
	t.Parallel()
	f := complete().with(t, "agent.yaml", "models:", "modles:")
	dir := f.with(t, "turn.yaml", "What is up?", `" "`).written(t, nowhere)
	for _, command := range []string{"render", "run"} {
		got := capstan(t, command, "-f", dir).mustEnd(t, exit.Usage)
		mustSay(t, got.err, "the manifests have", "agent.yaml: Agent default/support: spec.modles: unknown field",
			"turn.yaml: Turn default/first: spec.message: ")
	}
}

func TestHelp(t *testing.T) {
	t.Parallel()
	mustSay(t, capstan(t, "--help").mustEnd(t, exit.OK).out, "exit codes: see the help of each command", "-f examples/quickstart")
	for _, args := range [][]string{{"render", "--help"}, {"run", "--help"}} {
		got := capstan(t, args...).mustEnd(t, exit.OK)
		mustSay(t, got.out, "Exit codes:", "  130  interrupted", "Examples:", "-f examples/quickstart")
	}
	mustSay(t, capstan(t, "render", "--help").out, "Exit codes with --diff:", "  2    the prompts differ", "--diff OTHER",
		"--skills-file PATH")
	deny := capstan(t, "deny", "--help").mustEnd(t, exit.OK).out
	mustSay(t, deny, "  0    the calls are denied", "a call is denied even if they cannot be read")
	if strings.Contains(deny, "approved") {
		t.Errorf("want no mention of approvals in the help of deny, have:\n%s", deny)
	}
	for _, program := range []string{"kubectl-capstan", "kubectl-capstan.exe"} {
		mustSay(t, call{program: program}.run(t.Context(), "run", "--help").out, "kubectl capstan run -f PATH")
	}
}

func TestUnreadableKubeconfigIsAUsageError(t *testing.T) {
	t.Parallel()
	for _, command := range []string{"cancel", "deny", "logs"} {
		got := capstan(t, command, "first", "--kubeconfig", filepath.Join(t.TempDir(), "absent")).mustEnd(t, exit.Usage)
		mustSay(t, got.err, "failed to read the kubeconfig", "absent")
		mustSay(t, capstan(t, command, "--help").out, "  2    the flags are invalid, or the kubeconfig cannot be read")
	}
}

func TestVersion(t *testing.T) {
	t.Parallel()
	for _, arg := range []string{"version", "--version"} {
		if got := capstan(t, arg).mustEnd(t, exit.OK); got.out != "capstan v1.2.3\n" {
			t.Errorf("%s: want the version, have %q", arg, got.out)
		}
	}
}

func TestCompletion(t *testing.T) {
	t.Parallel()
	second := strings.Replace(turnYAML, "name: first", "name: second", 1)
	elsewhere := strings.Replace(turnYAML, "name: first", "name: first, namespace: other", 1)
	two := files{"a.yaml": turnYAML, "b.yaml": second}.written(t, nowhere)
	twins := files{"a.yaml": turnYAML, "b.yaml": elsewhere}.written(t, nowhere)
	broken := files{"a.yaml": "kind: Turn"}.written(t, nowhere)
	for name, tc := range map[string]struct {
		args []string
		want string
	}{
		"formats":          {[]string{"run", "-o", ""}, "text\njson\nyaml\n:4\n"},
		"turns":            {[]string{"run", "-f", two, "--turn", ""}, "first\tWhat is up?\nsecond\tWhat is up?\n:4\n"},
		"turns by path":    {[]string{"render", "-f", two + "/a.yaml", "--turn", ""}, "first\tWhat is up?\n:4\n"},
		"same name twice":  {[]string{"run", "-f", twins, "--turn", ""}, "default/first\tWhat is up?\nother/first\tWhat is up?\n:4\n"},
		"broken manifests": {[]string{"run", "-f", broken, "--turn", ""}, ":4\n"},
		"standard input":   {[]string{"run", "-f", "-", "--turn", ""}, ":4\n"},
		"old states":       {[]string{"render", "--diff", ""}, "yaml\nyml\njson\n:8\n"},
		"skills":           {[]string{"run", "--skills-file", ""}, "yaml\nyml\n:8\n"},
		"directories":      {[]string{"run", "--data-dir", ""}, ":16\n"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if got := capstan(t, append([]string{"__complete"}, tc.args...)...); got.out != tc.want {
				t.Errorf("want %q, have %q", tc.want, got.out)
			}
		})
	}
	mustSay(t, capstan(t, "completion", "bash").mustEnd(t, exit.OK).out, "__start_capstan")
}

// TestCompletionOfTurns checks that Turns are listed with the credentials with which the command itself gets the Turn:
// with --token if the user of the token decides or cancels, and otherwise with those of the kubeconfig.
func TestCompletionOfTurns(t *testing.T) {
	t.Parallel()
	path := turnsCluster(t, map[string]string{
		"GET /apis/capstan.dev/v1alpha1/namespaces/helpdesk/turns": `{"kind":"TurnList","apiVersion":"capstan.dev/v1alpha1","items":[` +
			`{"metadata":{"name":"of-USER"},"status":{"pendingApprovals":[{"callID":"c1"}]}}]}`,
	})
	for command, user := range map[string]string{
		"approve": "given", "deny": "given", "cancel": "given", "logs": "own", "export turn": "own", "undo": "own", "replay": "own",
	} {
		args := append([]string{"__complete"}, strings.Fields(command)...)
		args = append(args, "--kubeconfig", path)
		if got := capstan(t, append(args, "")...); got.out != "of-own\n:4\n" {
			t.Errorf("%s: want the Turn of the user of the kubeconfig, have %q", command, got.out)
		}
		if got := capstan(t, append(args, "--token", "given", "")...); got.out != "of-"+user+"\n:4\n" {
			t.Errorf("%s with --token: want the Turn of %q, have %q", command, user, got.out)
		}
	}
}

// turnsCluster serves the part of an API server that the kind Turn needs, with further answers by the patterns of their
// requests. USER in an answer stands for the bearer token, or for own if there is none. turnsCluster returns the path
// of a kubeconfig of namespace helpdesk, without credentials.
func turnsCluster(t *testing.T, answers map[string]string) (path string) {
	t.Helper()
	mux := http.NewServeMux()
	answer := func(pattern, format string) {
		mux.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			user, byToken := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
			if !byToken {
				user = "own"
			}
			_, _ = io.WriteString(w, strings.ReplaceAll(format, "USER", user))
		})
	}
	answer("GET /api", `{"kind":"APIVersions","versions":["v1"]}`)
	answer("GET /apis", `{"kind":"APIGroupList","groups":[{"name":"capstan.dev",`+
		`"versions":[{"groupVersion":"capstan.dev/v1alpha1","version":"v1alpha1"}]}]}`)
	answer("GET /apis/capstan.dev/v1alpha1", `{"kind":"APIResourceList","groupVersion":"capstan.dev/v1alpha1","resources":[`+
		`{"name":"turns","namespaced":true,"kind":"Turn","verbs":["get","list","patch"]}]}`)
	for pattern, format := range answers {
		answer(pattern, format)
	}
	web := httptest.NewServer(mux)
	t.Cleanup(web.Close)
	path = filepath.Join(t.TempDir(), "kubeconfig")
	config := fmt.Sprintf(`{apiVersion: v1, kind: Config, current-context: x, users: [{name: u, user: {}}],
contexts: [{name: x, context: {cluster: c, user: u, namespace: helpdesk}}], clusters: [{name: c, cluster: {server: %q}}]}`, web.URL)
	if err := os.WriteFile(path, []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// TestCancelOfATurnThatEndsMeanwhile checks that a Turn is not reported as cancelled if it ends between the two
// requests of the command. The API server accepts the patch.
func TestCancelOfATurnThatEndsMeanwhile(t *testing.T) {
	t.Parallel()
	const (
		first = "/apis/capstan.dev/v1alpha1/namespaces/helpdesk/turns/first"
		turn  = `{"kind":"Turn","apiVersion":"capstan.dev/v1alpha1","metadata":{"name":"first","namespace":"helpdesk","uid":"u"},` +
			`"status":{"conditions":[{"type":"Succeeded","status":%q,"reason":%q}]}}`
	)
	running, completed := fmt.Sprintf(turn, "Unknown", "Running"), fmt.Sprintf(turn, "True", "Completed")
	for name, tc := range map[string]struct {
		patched  string
		code     int
		out, err string
	}{
		"it continues": {running, exit.OK, "Turn helpdesk/first is cancelled; its state was Running\n", ""},
		"it has ended": {
			completed, exit.Failed, "", "Turn helpdesk/first has ended already (Completed): there is nothing to cancel",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			path := turnsCluster(t, map[string]string{"GET " + first: running, "PATCH " + first: tc.patched})
			got := capstan(t, "cancel", "first", "--kubeconfig", path).mustEnd(t, tc.code)
			mustSay(t, got.err, tc.err)
			if got.out != tc.out {
				t.Errorf("printed %q, want %q", got.out, tc.out)
			}
		})
	}
}
