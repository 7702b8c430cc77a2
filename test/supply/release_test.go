package supply_test

import (
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"testing"
)

// released returns the version that the chart installs. This tree cannot be released as any other version.
func released(t *testing.T) string {
	t.Helper()
	data, err := os.ReadFile("../../charts/capstan/Chart.yaml")
	if err != nil {
		t.Fatal(err)
	}
	found := regexp.MustCompile(`(?m)^appVersion: *"(.*)"$`).FindSubmatch(data)
	if found == nil {
		t.Fatal("charts/capstan/Chart.yaml has no appVersion in quotes, which hack/release/check.sh reads")
	}
	return string(found[1])
}

// clone copies the current tree, with uncommitted changes, into a new repository with one commit at a fixed time.
func clone(t *testing.T) string {
	t.Helper()
	directory := filepath.Join(t.TempDir(), "capstan")
	if err := os.Mkdir(directory, 0o750); err != nil {
		t.Fatal(err)
	}
	script := `git ls-files -z --cached --others --exclude-standard | while IFS= read -r -d '' f; do ` +
		`if [ -e "$f" ]; then printf '%s\0' "$f"; fi; done |
		tar --null -cf - -T - | tar -xf - -C "$1"
	cd "$1" && git init -q . && git add -A && git -c user.name=test -c user.email=test@localhost -c commit.gpgsign=false commit -qm test`
	cmd := exec.CommandContext(t.Context(), "bash", "-eu", "-o", "pipefail", "-c", script, "clone", directory)
	cmd.Dir = "../.."
	cmd.Env = append(os.Environ(), "GIT_AUTHOR_DATE=2026-01-02T03:04:05Z", "GIT_COMMITTER_DATE=2026-01-02T03:04:05Z")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("failed to copy the tree: %v: %s", err, out)
	}
	return directory
}

// release runs make release in a directory, for this machine's platform only.
func release(t *testing.T, directory, version string) (string, error) {
	t.Helper()
	platform := "linux/" + runtime.GOARCH
	cmd := exec.CommandContext(t.Context(), "make", "-s", "release", "VERSION="+version, "IMAGE_PLATFORMS="+platform,
		"CLI_PLATFORMS="+platform)
	cmd.Dir = directory
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// TestAReleaseIsReproducible checks that two builds of the same commit, in different directories and at different
// times, produce the same bytes. make release verifies each of them.
func TestAReleaseIsReproducible(t *testing.T) {
	version := released(t)
	first := clone(t)
	second := filepath.Join(t.TempDir(), "another", "place")
	if out, err := exec.CommandContext(t.Context(), "git", "clone", "-q", first, second).CombinedOutput(); err != nil {
		t.Fatalf("failed to clone the copy: %v: %s", err, out)
	}
	var dists []map[string]string
	for _, directory := range []string{first, second} {
		if out, err := release(t, directory, "v"+version); err != nil {
			t.Fatalf("make release: %v: %s", err, out)
		}
		files := map[string]string{}
		err := fs.WalkDir(os.DirFS(filepath.Join(directory, "dist")), ".", func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() {
				return err
			}
			data, err := os.ReadFile(filepath.Join(directory, "dist", path))
			files[path] = string(data)
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		dists = append(dists, files)
	}
	for name, data := range dists[0] {
		if dists[1][name] != data {
			t.Errorf("%s differs in the second build", name)
		}
	}
	if len(dists[0]) != len(dists[1]) {
		t.Errorf("the builds have %d and %d files, want the same number", len(dists[0]), len(dists[1]))
	}
	for _, want := range []string{
		"capstan_" + version + "_image.tar", "capstan_" + version + "_image_linux_" + runtime.GOARCH + ".docker.tar",
		"capstan_" + version + "_linux_" + runtime.GOARCH + ".tar.gz", "krew.yaml", "provenance.json", "checksums.txt",
	} {
		if dists[0][want] == "" {
			t.Errorf("the release lacks %s", want)
		}
	}
}

// TestTheReleaseToolIsBuiltLikeThePrograms checks that the Go that packs a release is the Go that builds the programs:
// another version can compress the archives differently.
func TestTheReleaseToolIsBuiltLikeThePrograms(t *testing.T) {
	var toolchains []string
	for _, path := range []string{"../../go.mod", "../../hack/release/go.mod"} {
		data, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		toolchains = append(toolchains, regexp.MustCompile(`(?m)^toolchain .*$`).FindString(string(data)))
	}
	if toolchains[0] == "" || toolchains[0] != toolchains[1] {
		t.Errorf("go.mod and hack/release/go.mod have the lines %q, want the same toolchain", toolchains)
	}
}

// TestAReleaseIsOneCommitOfItsVersion checks that make release refuses a version that contradicts the tag, the
// chart or the commit, before it builds anything.
func TestAReleaseIsOneCommitOfItsVersion(t *testing.T) {
	version := released(t)
	git := func(t *testing.T, directory string, args ...string) {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), "git",
			append([]string{"-c", "user.name=test", "-c", "user.email=test@localhost", "-c", "commit.gpgsign=false"}, args...)...)
		cmd.Dir = directory
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("git %v: %v: %s", args, err, out)
		}
	}
	for name, tc := range map[string]struct {
		version string
		prepare func(t *testing.T, directory string)
		want    string
	}{
		"no version":      {"main", func(*testing.T, string) {}, "is not a semantic version"},
		"another version": {"v9.9.9", func(*testing.T, string) {}, "the appVersion of charts/capstan/Chart.yaml is " + version},
		"a changed tree": {"v" + version, func(t *testing.T, directory string) {
			t.Helper()
			if err := os.WriteFile(filepath.Join(directory, "new.go"), []byte("package new\n"), 0o600); err != nil {
				t.Fatal(err)
			}
		}, "the tree differs from its commit"},
		"examples of another version": {"v" + version, func(t *testing.T, directory string) {
			t.Helper()
			manifest := filepath.Join(directory, "examples/cluster/servers/tickets.yaml")
			data, err := os.ReadFile(manifest)
			if err != nil {
				t.Fatal(err)
			}
			old := strings.ReplaceAll(string(data), "capstan-examples:"+version, "capstan-examples:9.9.9")
			if err := os.WriteFile(manifest, []byte(old), 0o600); err != nil {
				t.Fatal(err)
			}
			git(t, directory, "commit", "-aqm", "an image of another version")
		}, "examples/cluster/servers/tickets.yaml names the image capstan-dev/capstan-examples:9.9.9"},
		"a manifest of a release candidate": {"v" + version, func(t *testing.T, directory string) {
			t.Helper()
			manifest := filepath.Join(directory, "config/manager/deployment.yaml")
			data, err := os.ReadFile(manifest)
			if err != nil {
				t.Fatal(err)
			}
			candidate := strings.ReplaceAll(string(data), "capstan:"+version, "capstan:"+version+"-rc.1")
			if err := os.WriteFile(manifest, []byte(candidate), 0o600); err != nil {
				t.Fatal(err)
			}
			git(t, directory, "commit", "-aqm", "an image of a release candidate")
		}, "config/manager/deployment.yaml names the image capstan-dev/capstan:" + version + "-rc.1"},
		"a tag of another commit": {"v" + version, func(t *testing.T, directory string) {
			t.Helper()
			git(t, directory, "tag", "v"+version)
			git(t, directory, "commit", "--allow-empty", "-qm", "later")
		}, "the tag v" + version + " is on the commit"},
	} {
		t.Run(name, func(t *testing.T) {
			directory := clone(t)
			tc.prepare(t, directory)
			out, err := release(t, directory, tc.version)
			if err == nil || !strings.Contains(out, tc.want) {
				t.Errorf("make release: %v, %s; want %q", err, out, tc.want)
			}
			if _, err := os.Stat(filepath.Join(directory, "bin")); err == nil {
				t.Error("make release has built programs, want none")
			}
		})
	}
}

// TestWorkflowsRunTargets checks that the workflows run only make targets, .ci/run and gh, and that they name actions
// by commit.
func TestWorkflowsRunTargets(t *testing.T) {
	workflows, err := filepath.Glob("../../.github/workflows/*.yml")
	if err != nil || len(workflows) == 0 {
		t.Fatalf("there are no workflows, %v", err)
	}
	makefile, err := os.ReadFile("../../Makefile")
	if err != nil {
		t.Fatal(err)
	}
	uses := regexp.MustCompile(`uses: (\S+)(.*)`)
	pinned := regexp.MustCompile(`^[\w.-]+/[\w.-]+@[0-9a-f]{40}$`)
	run := regexp.MustCompile(`(?m)^\s*-? *run: (?:sudo env "PATH=\$PATH" )?(\S+)(?: (\S+))?`)
	for _, path := range workflows {
		data, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range uses.FindAllStringSubmatch(string(data), -1) {
			if !pinned.MatchString(m[1]) || !strings.HasPrefix(m[2], " # v") {
				t.Errorf("%s: uses: %s%s: a tag can be moved; name the commit, and the version in a comment", path, m[1], m[2])
			}
		}
		for _, m := range run.FindAllStringSubmatch(string(data), -1) {
			switch m[1] {
			case ".ci/run", "gh":
			case "make":
				if !strings.Contains(string(makefile), "\n"+m[2]+":") {
					t.Errorf("%s: the Makefile has no target %s", path, m[2])
				}
			default:
				t.Errorf("%s: run: %s: want a target of the Makefile", path, m[1])
			}
		}
	}
}
