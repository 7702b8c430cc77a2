package gitops_test

import (
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// repository copies examples/gitops into a new Git repository, with one commit on the branch main.
func repository(t *testing.T) string {
	t.Helper()
	directory := t.TempDir()
	if err := os.CopyFS(filepath.Join(directory, "examples/gitops"), os.DirFS(filepath.Join(root, "examples/gitops"))); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{{"init", "-q", "-b", "main"}, {"add", "-A"}, {"commit", "-qm", "first"}} {
		cmd := exec.CommandContext(t.Context(), "git",
			append([]string{"-c", "user.name=test", "-c", "user.email=test@localhost", "-c", "commit.gpgsign=false"}, args...)...)
		cmd.Dir = directory
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("git %v: %v: %s", args, err, out)
		}
	}
	return filepath.Join(directory, "examples/gitops")
}

// check runs check.sh and returns its exit status and output.
func check(t *testing.T, directory string, args ...string) (status int, stdout, stderr string) {
	t.Helper()
	var out, errOut strings.Builder
	cmd := exec.CommandContext(t.Context(), filepath.Join(directory, "check.sh"), args...)
	cmd.Env = append(os.Environ(), "PATH="+filepath.Dir(capstan)+string(os.PathListSeparator)+os.Getenv("PATH"))
	cmd.Stdout, cmd.Stderr = &out, &errOut
	if err := cmd.Run(); err != nil {
		exit, ok := errors.AsType[*exec.ExitError](err)
		if !ok {
			t.Fatal(err)
		}
		status = exit.ExitCode()
	}
	return status, out.String(), errOut.String()
}

// edit replaces a text of a file. The file must contain the text.
func edit(t *testing.T, path, from, to string) {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(data), from) {
		t.Fatalf("%s does not contain %q", path, from)
	}
	if err := os.WriteFile(path, []byte(strings.ReplaceAll(string(data), from, to)), 0o600); err != nil {
		t.Fatal(err)
	}
}

// TestTheCheckShowsAChangedPrompt checks that examples/gitops/check.sh shows how a change of a PromptProfile
// affects the prompt.
func TestTheCheckShowsAChangedPrompt(t *testing.T) {
	directory := repository(t)
	if status, out, errOut := check(t, directory, "main"); status != 0 {
		t.Errorf("without a change: status %d, want 0: %s%s", status, out, errOut)
	}
	profile := filepath.Join(directory, "agents/promptprofile.yaml")
	edit(t, filepath.Join(directory, "agents/modelprovider.yaml"), "http://127.0.0.1:8089/v1", "http://127.0.0.1:8088/v1")
	if status, out, errOut := check(t, directory, "main"); status != 0 {
		t.Errorf("with another address of the model: status %d, want 0, because the prompt is the same: %s%s", status, out, errOut)
	}
	edit(t, profile, "at most three sentences", "exactly one sentence")
	status, out, errOut := check(t, directory, "main")
	if status != 2 || !strings.Contains(out, "three sentences") || !strings.Contains(out, "exactly one sentence") {
		t.Errorf("with another prompt: status %d, want 2 and both texts: %s%s", status, out, errOut)
	}
	status, out, errOut = check(t, directory, "main", "-o", "json")
	var difference map[string]any
	if err := json.Unmarshal([]byte(out), &difference); err != nil || status != 2 {
		t.Errorf("as JSON: status %d, %v, want 2 and JSON: %s%s", status, err, out, errOut)
	}
	for _, kind := range []string{"agents/agent", "agents/promptprofile", "checks/question"} {
		data, err := os.ReadFile(filepath.Join(directory, kind+".yaml"))
		if err != nil {
			t.Fatal(err)
		}
		added := strings.NewReplacer("gitops-support", "gitops-new", "gitops-question", "gitops-new").Replace(string(data))
		if err := os.WriteFile(filepath.Join(directory, kind+"-new.yaml"), []byte(added), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	status, out, errOut = check(t, directory, "main")
	if status != 2 || strings.Count(out, "exactly one sentence") != 2 || !strings.Contains(out, "three sentences") || errOut != "" {
		t.Errorf("with a new Agent: status %d, want 2, the new prompt and the difference of the other one: %s%s", status, out, errOut)
	}
	edit(t, profile, "exactly one sentence", "{{ .absent }}")
	status, out, errOut = check(t, directory, "main")
	if status != 1 || !strings.Contains(errOut, "absent") || !strings.Contains(out, "exactly one sentence") {
		t.Errorf("with a prompt that cannot be rendered: status %d, want 1, an error that names the variable, and the other prompt: %s%s",
			status, out, errOut)
	}
	if status, _, errOut := check(t, directory, "nowhere"); status != 1 ||
		!strings.Contains(errOut, "the revision nowhere has no folder agents") {
		t.Errorf("against an unknown revision: status %d, want 1 and an error that names the revision: %s", status, errOut)
	}
}
