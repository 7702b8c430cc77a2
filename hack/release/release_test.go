package main

import (
	"bytes"
	"crypto/x509"
	"io"
	"log"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/validate"
)

const (
	version  = "1.2.3"
	revision = "0123456789abcdef0123456789abcdef01234567"
	epoch    = "1700000000"
)

// host is the platform of this machine. The tests run on Linux, like an image.
var host = platform{"linux", runtime.GOARCH}

// build compiles a program that prints its version, with an SBOM, for each platform. It returns the programs as
// command-line arguments.
func build(t *testing.T, name string, platforms ...platform) []string {
	t.Helper()
	directory := t.TempDir()
	for file, text := range map[string]string{
		"go.mod":  "module example.com/" + name + "\n\ngo 1.26.0\n",
		"main.go": "package main\n\nimport \"os\"\n\nfunc main() { os.Stdout.WriteString(\"" + name + " version " + version + "\\n\") }\n",
	} {
		write(t, filepath.Join(directory, file), text)
	}
	var args []string
	for _, p := range platforms {
		path := filepath.Join(directory, p.fileName(), name)
		cmd := exec.CommandContext(t.Context(), "go", "build", "-trimpath", "-o", path, ".")
		cmd.Dir, cmd.Env = directory, append(os.Environ(), "GOOS="+p.os, "GOARCH="+p.arch, "CGO_ENABLED=0")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("failed to build: %v: %s", err, out)
		}
		write(t, path+sbomSuffix, `{"bomFormat": "CycloneDX", "metadata": {"component": {"version": "`+version+`"}}, "components": []}`)
		args = append(args, "-program", p.String()+"="+path)
	}
	return args
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o750); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// command runs the program and returns its output and its error.
func command(t *testing.T, args ...string) (string, error) {
	t.Helper()
	var out bytes.Buffer
	err := run(t.Context(), args, &out)
	return out.String(), err
}

func must(t *testing.T, args ...string) string {
	t.Helper()
	out, err := command(t, args...)
	if err != nil {
		t.Fatalf("release %s: %v", strings.Join(args, " "), err)
	}
	return out
}

func common(dist string) []string {
	return []string{"-version", version, "-revision", revision, "-epoch", epoch, "-dist", dist}
}

func makeImage(t *testing.T, dist string, programs []string) {
	t.Helper()
	must(t, append(append([]string{"image", "-reference", "capstan-dev/capstan:" + version}, common(dist)...), programs...)...)
}

func opened(t *testing.T, dist string) *archived {
	t.Helper()
	a, err := openArchive(filepath.Join(dist, imageArchive("capstan", version)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := a.Close(); err != nil {
			t.Error(err)
		}
	})
	return a
}

// both are the platforms of the test images.
var both = []platform{{"linux", "amd64"}, {"linux", "arm64"}}

func TestAnImageHoldsTheProgramOfEachPlatform(t *testing.T) {
	dist := t.TempDir()
	makeImage(t, dist, build(t, "manager", both...))
	a := opened(t, dist)
	if want := "docker.io/capstan-dev/capstan:" + version; a.name != want {
		t.Errorf("the name is %s, want %s: containerd gives it to the image", a.name, want)
	}
	if err := validate.Index(a.index); err != nil {
		t.Error(err)
	}
	manifest, err := a.index.IndexManifest()
	if err != nil {
		t.Fatal(err)
	}
	var bases []v1.Hash
	for at, p := range both {
		d := manifest.Manifests[at]
		if !d.Platform.Equals(*p.image()) {
			t.Errorf("platform %d is %s, want %s", at, d.Platform, p)
		}
		img, err := a.index.Image(d.Digest)
		if err != nil {
			t.Fatal(err)
		}
		config, err := img.ConfigFile()
		if err != nil {
			t.Fatal(err)
		}
		if config.Config.User != "65532:65532" || config.Config.Entrypoint[0] != "/manager" ||
			config.Architecture != p.arch || config.Created.Unix() != 1700000000 {
			t.Errorf("%s: config = %+v of %s, made at %s; want /manager as 65532, at the time of the commit", p,
				config.Config, config.Architecture, config.Created)
		}
		if got := config.Config.Labels["org.opencontainers.image.revision"]; got != revision {
			t.Errorf("%s: the revision is %q, want %s", p, got, revision)
		}
		layers, err := img.Layers()
		if err != nil {
			t.Fatal(err)
		}
		base, err := layers[0].Digest()
		if err != nil {
			t.Fatal(err)
		}
		bases = append(bases, base)
		files := entriesOf(t, img)
		for _, want := range []struct {
			name  string
			mode  int64
			owner int
		}{
			{"manager", 0o755, 0},
			{"etc/passwd", 0o644, 0},
			{"etc/ssl/certs/ca-certificates.crt", 0o644, 0},
			{"tmp", 0o1777, 0},
			{"var/lib/capstan", 0o750, 65532},
		} {
			e, ok := files[want.name]
			if !ok || e.mode != want.mode || e.owner != want.owner {
				t.Errorf("%s: %s has mode %o and owner %d (%t), want %o and %d", p, want.name, e.mode, e.owner, ok, want.mode, want.owner)
			}
		}
		if len(files) != 11 {
			t.Errorf("%s: the image has %d files, want 11: nothing else belongs in it", p, len(files))
		}
		if _, err := a.refersTo(d.Digest, string(mediaTypeSBOM)); err != nil {
			t.Error(err)
		}
	}
	if bases[0] != bases[1] {
		t.Errorf("the platforms have the base layers %v, want the same", bases)
	}
	if _, err := a.refersTo(a.digest, string(mediaTypeProvenance)); err != nil {
		t.Error(err)
	}
}

func entriesOf(t *testing.T, img v1.Image) map[string]entry {
	t.Helper()
	files := mutate.Extract(img)
	entries, err := unpackTar(files)
	if err != nil {
		t.Fatal(err)
	}
	byName := map[string]entry{}
	for _, e := range entries {
		byName[e.name] = e
	}
	return byName
}

func TestAnImageTrustsTheAuthorities(t *testing.T) {
	roots := x509.NewCertPool()
	if data := authorities(); !roots.AppendCertsFromPEM(data) || bytes.Count(data, []byte("BEGIN CERTIFICATE")) < 100 {
		t.Errorf("the image trusts %d authorities, want at least 100", bytes.Count(data, []byte("BEGIN CERTIFICATE")))
	}
}

// TestTheSameProgramsGiveTheSameBytes makes the release again in another directory and at another time.
func TestTheSameProgramsGiveTheSameBytes(t *testing.T) {
	var sums []string
	manager, cli := build(t, "manager", both...), build(t, "capstan", host, platform{"windows", "amd64"})
	for range 2 {
		dist := t.TempDir()
		makeRelease(t, dist, manager, cli) // gives the package of the chart another time in each release
		data, err := os.ReadFile(filepath.Join(dist, checksumsFile))
		if err != nil {
			t.Fatal(err)
		}
		sums = append(sums, string(data))
	}
	if sums[0] != sums[1] {
		t.Errorf("the second release differs:\n%s\n%s", sums[0], sums[1])
	}
}

// packed counts the packages of the chart. Each has a different time, as if Helm had made it.
var packed int64

// makeRelease writes a whole release.
func makeRelease(t *testing.T, dist string, manager, cli []string) {
	t.Helper()
	makeImage(t, dist, manager)
	work := t.TempDir()
	for _, file := range []string{
		"LICENSE", "completions/capstan.bash", "completions/_capstan",
		"completions/capstan.fish", "completions/capstan.ps1",
	} {
		write(t, filepath.Join(work, file), "# "+file)
	}
	args := append([]string{
		"archives", "-license", filepath.Join(work, "LICENSE"), "-completions", filepath.Join(work, "completions"),
		"-url", "https://example.com/v" + version,
	}, common(dist)...)
	must(t, append(args, cli...)...)
	packed++
	when := time.Unix(1600000000+packed, 0)
	chart, err := packTar([]entry{
		{
			name: "capstan/Chart.yaml", mode: 0o644,
			data: []byte("name: capstan\nversion: 0.9.0\nappVersion: \"" + version + "\"\n"), when: when,
		},
		{name: "capstan/values.yaml", mode: 0o644, data: []byte("image: {repository: capstan-dev/capstan, tag: \"\"}\n"), when: when},
	})
	if err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(dist, "capstan-0.9.0.tgz"), string(chart))
	must(t, append([]string{"finish"}, common(dist)...)...)
}

// TestPush pushes to a registry in this process and checks that the registry lists the referrers of the image.
func TestPush(t *testing.T) {
	dist := t.TempDir()
	makeImage(t, dist, build(t, "manager", both...))
	a := opened(t, dist)
	server := httptest.NewServer(registry.New(registry.WithReferrersSupport(true), registry.Logger(log.New(io.Discard, "", 0))))
	defer server.Close()
	at, err := url.Parse(server.URL)
	if err != nil {
		t.Fatal(err)
	}
	_, err = command(t, "push", "-archive", filepath.Join(dist, imageArchive("capstan", version)), "-reference", "team/capstan:1")
	if err == nil || !strings.Contains(err.Error(), "must begin with the host of a registry") {
		t.Errorf("push without a host: error = %v, want an error", err)
	}
	reference := at.Host + "/team/capstan:" + version
	out := must(t, "push", "-archive", filepath.Join(dist, imageArchive("capstan", version)), "-reference", reference, "-insecure")
	if want := reference + "@" + a.digest.String() + "\n"; out != want {
		t.Errorf("push prints %q, want %q", out, want)
	}
	tag, err := name.NewTag(reference)
	if err != nil {
		t.Fatal(err)
	}
	pushed, err := remote.Index(tag)
	if err != nil {
		t.Fatal(err)
	}
	if digest, err := pushed.Digest(); err != nil || digest != a.digest {
		t.Errorf("the registry has the image %s, %v; want %s", digest, err, a.digest)
	}
	if err := validate.Index(pushed); err != nil {
		t.Error(err)
	}
	manifest, err := pushed.IndexManifest()
	if err != nil {
		t.Fatal(err)
	}
	for digest, want := range map[v1.Hash]string{
		a.digest: string(mediaTypeProvenance), manifest.Manifests[0].Digest: string(mediaTypeSBOM),
		manifest.Manifests[1].Digest: string(mediaTypeSBOM),
	} {
		index, err := remote.Referrers(tag.Context().Digest(digest.String()))
		if err != nil {
			t.Fatal(err)
		}
		found, err := index.IndexManifest()
		if err != nil || len(found.Manifests) != 1 || found.Manifests[0].ArtifactType != want {
			t.Errorf("%+v refer to %s (%v), want one of the type %s", found, digest, err, want)
		}
	}
}

func TestInvalidFlagsAreRejected(t *testing.T) {
	for name, tc := range map[string]struct {
		args []string
		want string
	}{
		"no command":       {nil, "the first argument must be"},
		"another command":  {[]string{"build"}, "the first argument must be"},
		"no version":       {[]string{"image"}, "-version must be a version"},
		"no time":          {[]string{"image", "-version", "1"}, "SOURCE_DATE_EPOCH"},
		"no program":       {append([]string{"image", "-reference", "a:1"}, common(t.TempDir())...), "-program must name"},
		"a platform twice": {[]string{"image", "-program", "linux/amd64=a", "-program", "linux/amd64=b"}, "given twice"},
		"half a platform":  {[]string{"archives", "-program", "linux=a"}, "must be OS/ARCHITECTURE"},
	} {
		t.Run(name, func(t *testing.T) {
			f := os.Stderr
			null, err := os.Open(os.DevNull)
			if err != nil {
				t.Fatal(err)
			}
			os.Stderr = null
			_, err = command(t, tc.args...)
			os.Stderr = f
			if err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("error = %v, want %q", err, tc.want)
			}
		})
	}
}

// TestArchiveStaysInItsDirectory checks that an archive with a path outside its directory is rejected.
func TestArchiveStaysInItsDirectory(t *testing.T) {
	var packed bytes.Buffer
	if err := writeTar(&packed, []entry{{name: "../escaped", data: []byte("x")}}); err != nil {
		t.Fatal(err)
	}
	plain := filepath.Join(t.TempDir(), "a.tar")
	write(t, plain, packed.String())
	if _, err := openArchive(plain); err == nil || !strings.Contains(err.Error(), "leads out of the archive") {
		t.Errorf("error = %v, want an error, because the path leads out of the archive", err)
	}
}
