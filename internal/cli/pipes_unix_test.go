//go:build unix

package cli_test

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/capstan-dev/capstan/internal/cli"
	"github.com/capstan-dev/capstan/internal/cli/exit"
	"github.com/capstan-dev/capstan/internal/cli/terminal"
)

// piped returns a path that gives a text to its first reader, and nothing to later ones, as <(...) of a shell does.
func piped(t *testing.T, text string) string {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = r.Close() })
	if _, err := io.WriteString(w, text); err != nil { // the buffer of a pipe holds it
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf("/dev/fd/%d", r.Fd())
}

// TestInputsFromPipes checks that each input file is read only once.
func TestInputsFromPipes(t *testing.T) {
	t.Parallel()
	_, url := fake(t, evalRules)
	var all []string
	f := evalFiles(t)
	f["turn.yaml"] = turnYAML
	for _, text := range f {
		all = append(all, strings.ReplaceAll(text, "BASEURL", url))
	}
	slices.Sort(all)
	manifests := strings.Join(all, "---\n")

	t.Run("manifests and cases of eval", func(t *testing.T) {
		t.Parallel()
		cases := piped(t, strings.Replace(passing, "manifests: [manifests]\n", "", 1))
		capstan(t, "eval", "-f", cases, "-m", piped(t, manifests)).mustEnd(t, exit.OK)
	})
	t.Run("an attachment of a comparison", func(t *testing.T) {
		t.Parallel()
		dir := attachedTo(t, "OpenAI", "rooms text/csv rooms.csv").written(t, nowhere)
		capstan(t, "render", "-f", dir, "--attach", "rooms="+piped(t, "room,size\n"), "--diff", dir).mustEnd(t, exit.OK)
	})
	t.Run("the kubeconfig", func(t *testing.T) {
		t.Parallel()
		mux := http.NewServeMux()
		for pattern, text := range map[string]string{
			"GET /api": `{"kind":"APIVersions","versions":["v1"]}`,
			"GET /apis": `{"kind":"APIGroupList","groups":[{"name":"capstan.dev",` +
				`"versions":[{"groupVersion":"capstan.dev/v1alpha1","version":"v1alpha1"}]}]}`,
			"GET /apis/capstan.dev/v1alpha1": `{"kind":"APIResourceList","groupVersion":"capstan.dev/v1alpha1","resources":[` +
				`{"name":"turns","namespaced":true,"kind":"Turn","verbs":["list"]}]}`,
			"GET /apis/capstan.dev/v1alpha1/namespaces/helpdesk/turns": `{"kind":"TurnList","apiVersion":"capstan.dev/v1alpha1"}`,
		} {
			mux.HandleFunc(pattern, func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Content-Type", "application/json")
				_, _ = io.WriteString(w, text)
			})
		}
		web := httptest.NewServer(mux)
		t.Cleanup(web.Close)
		kubeconfig := fmt.Sprintf(`{apiVersion: v1, kind: Config, current-context: x, users: [{name: u, user: {}}],
contexts: [{name: x, context: {cluster: c, user: u, namespace: helpdesk}}], clusters: [{name: c, cluster: {server: %q}}]}`, web.URL)
		got := capstan(t, "backtest", "--kubeconfig", piped(t, kubeconfig), "-m", piped(t, manifests), "--agent", "support")
		mustSay(t, got.mustEnd(t, exit.Usage).err, `there is no finished Turn of Agent "support" in namespace "helpdesk"`)
	})
}

// TestClosedPipes checks that a run goes on to its end if the reader of a stream has gone, as in capstan run 2>&1 |
// head, and that it leaves no temporary journal.
func TestClosedPipes(t *testing.T) {
	const variable = "CAPSTAN_TEST_CLOSED_PIPES"
	if dir := os.Getenv(variable); dir != "" { // the program whose streams are closed
		os.Exit(cli.Execute(t.Context(), terminal.Environment{
			In: strings.NewReader(""), Out: os.Stdout, Err: os.Stderr, LookupEnv: os.LookupEnv, Now: time.Now,
		}, []string{"run", "-f", dir}))
	}
	_, url := fake(t, answers)
	dir := complete().written(t, url)
	for stream, want := range map[string]int{"standard output": exit.Failed, "standard error": exit.OK} {
		t.Run(stream, func(t *testing.T) {
			r, w, err := os.Pipe()
			if err != nil {
				t.Fatal(err)
			}
			if err := r.Close(); err != nil {
				t.Fatal(err)
			}
			temporary := t.TempDir()
			program := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestClosedPipes$")
			program.Env = append(os.Environ(), variable+"="+dir, "TMPDIR="+temporary)
			var out strings.Builder
			if program.Stdout = w; stream == "standard error" {
				program.Stdout, program.Stderr = &out, w
			}
			_ = program.Run() // the exit code has the error
			_ = w.Close()
			if code := program.ProcessState.ExitCode(); code != want {
				t.Errorf("exit code %d, want %d: %s", code, want, program.ProcessState)
			}
			if want == exit.OK && out.String() == "" {
				t.Error("want the answer")
			}
			left, err := os.ReadDir(temporary)
			if err != nil || len(left) > 0 {
				t.Errorf("want no temporary journal, have %v, %v", left, err)
			}
		})
	}
}
