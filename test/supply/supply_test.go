// Package supply_test checks the tools that build and check Capstan against the statements in SECURITY.md.
package supply_test

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// database writes a vulnerability database and returns its URL. If findings is true, the function net/url.Parse is
// vulnerable. Otherwise the database is empty.
func database(t *testing.T, findings bool) string {
	t.Helper()
	dir := t.TempDir()
	write := func(name, text string) {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o750); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	const when = `"2026-01-01T00:00:00Z"`
	write("index/db.json", `{"modified":`+when+`}`)
	if !findings {
		write("index/modules.json", `[]`)
		write("index/vulns.json", `[]`)
		return "file://" + dir
	}
	write("index/modules.json", `[{"path":"stdlib","vulns":[{"id":"GO-2026-0001","modified":`+when+`}]}]`)
	write("index/vulns.json", `[{"id":"GO-2026-0001","modified":`+when+`}]`)
	write("ID/GO-2026-0001.json", `{"schema_version":"1.3.1","id":"GO-2026-0001","modified":`+when+`,"published":`+when+
		`,"details":"for a test",
		"affected":[{"package":{"name":"stdlib","ecosystem":"Go"},"ranges":[{"type":"SEMVER","events":[{"introduced":"0"}]}],
		"ecosystem_specific":{"imports":[{"path":"net/url","symbols":["Parse"]}]}}],
		"database_specific":{"url":"https://pkg.go.dev/vuln/GO-2026-0001","review_status":"REVIEWED"}}`)
	return "file://" + dir
}

// TestVulncheck checks that findings fail the check, and that the check reports when it could not run.
func TestVulncheck(t *testing.T) {
	program := t.TempDir()
	for name, text := range map[string]string{
		"go.mod":  "module example.com/program\n\ngo 1.26.0\n",
		"main.go": "package main\n\nimport \"net/url\"\n\nfunc main() { _, _ = url.Parse(\"a\") }\n",
	} {
		if err := os.WriteFile(filepath.Join(program, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	broken := t.TempDir()
	tool := exec.CommandContext(t.Context(), "go", "tool", "-modfile=../../hack/tools/vuln/go.mod", "-n", "govulncheck")
	if out, err := tool.CombinedOutput(); err != nil { // before the test cases disable the network
		t.Fatalf("failed to build govulncheck: %v: %s", err, out)
	}
	for name, tc := range map[string]struct {
		database, program string
		status            int
		want              string
	}{
		"no findings": {database(t, false), program, 0, "no known vulnerabilities are called"},
		"findings":    {database(t, true), program, 1, "the findings above are called"},
		"no mirror":   {"http://127.0.0.1:1", program, 0, "NOT CHECKED: the database http://127.0.0.1:1 cannot be reached"},
		"no network":  {"", program, 0, "NOT CHECKED: the database https://vuln.go.dev cannot be reached"},
		"no code":     {database(t, false), broken, 1, "no go.mod"},
	} {
		t.Run(name, func(t *testing.T) {
			cmd := exec.CommandContext(t.Context(), "bash", "../../hack/vulncheck.sh", "-C", tc.program, "./...")
			cmd.Env = append(os.Environ(), "VULNDB="+tc.database, "HTTPS_PROXY=http://127.0.0.1:1")
			out, err := cmd.CombinedOutput()
			status := 0
			if exit, ok := errors.AsType[*exec.ExitError](err); ok {
				status = exit.ExitCode()
			} else if err != nil {
				t.Fatal(err)
			}
			if status != tc.status || !strings.Contains(string(out), tc.want) {
				t.Errorf("status %d and %q, want %d and %q", status, out, tc.status, tc.want)
			}
		})
	}
}
