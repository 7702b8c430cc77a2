package main

import (
	"bytes"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
)

func verified(t *testing.T, dist string) (string, error) {
	t.Helper()
	return command(t, "verify", "-version", version, "-revision", revision, "-dist", dist,
		"-platforms", "linux/amd64 linux/arm64", "-cli-platforms", host.String()+" windows/amd64")
}

func TestVerifyFindsEachFault(t *testing.T) {
	manager, cli := build(t, "manager", both...), build(t, "capstan", host, platform{"windows", "amd64"})
	whole := t.TempDir()
	makeRelease(t, whole, manager, cli)
	if out, err := verified(t, whole); err != nil || strings.Contains(out, "FAILED") {
		t.Fatalf("a whole release: %v\n%s", err, out)
	}
	hostArchive := cliArchive(version, host)
	for name, tc := range map[string]struct {
		change func(t *testing.T, dist string)
		// again recomputes the checksums, so that they hide the change.
		again bool
		want  []string
	}{
		"a changed archive": {func(t *testing.T, dist string) {
			t.Helper()
			change(t, filepath.Join(dist, hostArchive), func(data []byte) []byte { return append(data, 0) })
		}, false, []string{"checksums: " + hostArchive + " has the sum", "krew manifest: " + hostArchive, "provenance: " + hostArchive}},
		"a missing archive": {func(t *testing.T, dist string) {
			t.Helper()
			if err := os.Remove(filepath.Join(dist, hostArchive)); err != nil {
				t.Fatal(err)
			}
		}, false, []string{hostArchive + " is listed but does not exist"}},
		"a surplus file": {func(t *testing.T, dist string) {
			t.Helper()
			write(t, filepath.Join(dist, "more"), "x")
		}, false, []string{"more is not listed"}},
		"an archive without a license": {func(t *testing.T, dist string) {
			t.Helper()
			entries, err := unpack(filepath.Join(dist, hostArchive))
			if err != nil {
				t.Fatal(err)
			}
			repacked, err := packTar([]entry{{name: "capstan", mode: 0o755, data: find(entries, "capstan")}})
			if err != nil {
				t.Fatal(err)
			}
			write(t, filepath.Join(dist, hostArchive), string(repacked))
		}, true, []string{"archive " + host.String() + ": " + hostArchive + " lacks LICENSE", "krew manifest: " + hostArchive}},
		"a chart of another version": {func(t *testing.T, dist string) {
			t.Helper()
			chart, err := packTar([]entry{{
				name: "capstan/Chart.yaml", mode: 0o644,
				data: []byte("name: capstan\nversion: 0.9.0\nappVersion: 1.2.2\n"),
			}})
			if err != nil {
				t.Fatal(err)
			}
			write(t, filepath.Join(dist, "capstan-0.9.0.tgz"), string(chart))
		}, true, []string{"chart: its appVersion is 1.2.2, want " + version}},
		"an image of one platform": {func(t *testing.T, dist string) {
			t.Helper()
			makeImage(t, dist, manager[:2])
		}, true, []string{"image: it has 1 platforms, want 2"}},
		"an image of another program for docker load": {func(t *testing.T, dist string) {
			t.Helper()
			tag, err := name.NewTag("capstan-dev/capstan:" + version)
			if err != nil {
				t.Fatal(err)
			}
			other := filepath.Join(dist, dockerArchive("capstan", version, both[0]))
			img, err := tarball.ImageFromPath(filepath.Join(dist, dockerArchive("capstan", version, both[1])), nil)
			if err != nil {
				t.Fatal(err)
			}
			data := filepath.Join(t.TempDir(), "image.tar")
			if err := tarball.WriteToFile(data, tag, img); err != nil {
				t.Fatal(err)
			}
			if err := os.Rename(data, other); err != nil {
				t.Fatal(err)
			}
		}, true, []string{"holds the image"}},
		"a provenance of another commit": {func(t *testing.T, dist string) {
			t.Helper()
			change(t, filepath.Join(dist, provenanceFile), func(data []byte) []byte {
				return bytes.ReplaceAll(data, []byte(revision), []byte(strings.Repeat("0", 40)))
			})
		}, false, []string{"checksums: provenance.json", "provenance: it does not name the commit"}},
		"a provenance of another Go": {func(t *testing.T, dist string) {
			t.Helper()
			change(t, filepath.Join(dist, provenanceFile), func(data []byte) []byte {
				return bytes.ReplaceAll(data, []byte(runtime.Version()), []byte(otherGo()))
			})
		}, false, []string{"provenance: it names the Go version " + otherGo()}},
		"an image of another Go": {func(t *testing.T, dist string) {
			t.Helper()
			makeImage(t, dist, builtWith(t, otherGo(), manager))
		}, true, []string{"archive " + host.String() + ": the programs are built with " + otherGo()}},
		"an SBOM of another version": {func(t *testing.T, dist string) {
			t.Helper()
			change(t, filepath.Join(dist, hostArchive+sbomSuffix), func(data []byte) []byte {
				return bytes.ReplaceAll(data, []byte(version), []byte("1.2.2"))
			})
		}, true, []string{"the SBOM is CycloneDX of version 1.2.2, want CycloneDX of version " + version}},
		"a program of another version": {func(t *testing.T, dist string) {
			t.Helper()
			replaceProgram(t, filepath.Join(dist, hostArchive), func(data []byte) []byte {
				return bytes.ReplaceAll(data, []byte("version "+version), []byte("version 1.2.2"))
			})
		}, true, []string{`prints "capstan version 1.2.2", want the version ` + version}},
		"a program for another platform": {func(t *testing.T, dist string) {
			t.Helper()
			replaceProgram(t, filepath.Join(dist, hostArchive), func([]byte) []byte { return programOf(t, cli[3]) })
		}, true, []string{"archive " + host.String() + ": the program of " + host.String() + " is built with GO"}},
		"a krew manifest of another archive": {func(t *testing.T, dist string) {
			t.Helper()
			change(t, filepath.Join(dist, krewFile), func(data []byte) []byte {
				return bytes.ReplaceAll(data, []byte("windows_amd64.zip"), []byte("windows_arm64.zip"))
			})
		}, true, []string{"krew manifest: the platform windows/amd64 has the URI"}},
	} {
		t.Run(name, func(t *testing.T) {
			dist := t.TempDir()
			if err := os.CopyFS(dist, os.DirFS(whole)); err != nil {
				t.Fatal(err)
			}
			tc.change(t, dist)
			if tc.again {
				must(t, append([]string{"finish"}, common(dist)...)...)
			}
			_, err := verified(t, dist)
			for _, want := range tc.want {
				if err == nil || !strings.Contains(err.Error(), want) {
					t.Errorf("verify returns %v, want %q", err, want)
				}
			}
		})
	}
}

func change(t *testing.T, path string, to func([]byte) []byte) {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	write(t, path, string(to(data)))
}

// replaceProgram replaces the program in an archive of the command line.
func replaceProgram(t *testing.T, archive string, to func([]byte) []byte) {
	t.Helper()
	entries, err := unpack(archive)
	if err != nil {
		t.Fatal(err)
	}
	for i := range entries {
		if entries[i].name == "capstan" {
			entries[i].data = to(entries[i].data)
		}
	}
	packed, err := packTar(entries)
	if err != nil {
		t.Fatal(err)
	}
	write(t, archive, string(packed))
}

// programOf returns the program that an argument of build names, as OS/ARCHITECTURE=PATH.
func programOf(t *testing.T, argument string) []byte {
	t.Helper()
	_, path, _ := strings.Cut(argument, "=")
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return data
}
