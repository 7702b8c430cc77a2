package main

import (
	"bytes"
	"context"
	"debug/buildinfo"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/validate"
	slsa "github.com/in-toto/attestation/go/predicates/provenance/v1"
	intoto "github.com/in-toto/attestation/go/v1"
	"google.golang.org/protobuf/encoding/protojson"
	"sigs.k8s.io/yaml"
)

// verifier checks the files of a release. It reports all faults, not only the first one.
type verifier struct {
	release
	// image is the name of the manager's image, without tag.
	image string
	// examples is the name of the image with the servers of examples/cluster, or empty if the release has none.
	examples string
	// platforms are the platforms of the image, and cliPlatforms those of the command line.
	platforms, cliPlatforms []platform

	out    io.Writer
	errs   []error
	images map[string]v1.Hash // the digests of the checked images, by name
	built  toolchain          // the version of Go that has built the checked programs
}

func runVerify(ctx context.Context, args []string, out io.Writer) error {
	v := &verifier{out: out, images: map[string]v1.Hash{}}
	f := flag.NewFlagSet("verify", flag.ContinueOnError)
	f.StringVar(&v.version, "version", "", "expected version, without a leading v")
	f.StringVar(&v.revision, "revision", "", "expected commit")
	f.StringVar(&v.dist, "dist", "dist", "directory of the release")
	f.StringVar(&v.image, "image", "capstan-dev/capstan", "name of the image without tag, as the chart has it")
	f.StringVar(&v.examples, "examples", "", "name of the image of examples/cluster without tag; empty if there is none")
	f.Func("platforms", "platforms of the image, separated by spaces", platformsFlag(&v.platforms))
	f.Func("cli-platforms", "platforms of the command line, separated by spaces", platformsFlag(&v.cliPlatforms))
	if err := f.Parse(args); err != nil {
		return err
	}
	if v.version == "" || v.revision == "" || len(v.platforms) == 0 || len(v.cliPlatforms) == 0 {
		return errors.New("-version, -revision, -platforms and -cli-platforms must be set")
	}
	v.verify(ctx)
	if err := errors.Join(v.errs...); err != nil {
		return fmt.Errorf("%s is not a release of %s:\n%w", v.dist, v.version, err)
	}
	return nil
}

func platformsFlag(to *[]platform) func(string) error {
	return func(text string) error {
		for word := range strings.FieldsSeq(text) {
			p, err := parsePlatform(word)
			if err != nil {
				return err
			}
			*to = append(*to, p)
		}
		return nil
	}
}

func (v *verifier) verify(ctx context.Context) {
	v.step("checksums", v.checksums)
	v.step("image", func() error { return v.checkImage(ctx, v.image, "--version") })
	if v.examples != "" {
		v.step("image of the examples", func() error { return v.checkImage(ctx, v.examples, "") })
	}
	for _, p := range v.cliPlatforms {
		v.step("archive "+p.String(), func() error { return v.archive(ctx, p) })
	}
	v.step("krew manifest", v.krew)
	v.step("chart", v.chart)
	v.step("provenance", v.provenance)
}

func (v *verifier) step(name string, check func() error) {
	result := "ok"
	if err := check(); err != nil {
		v.errs = append(v.errs, fmt.Errorf("%s: %w", name, err))
		result = "FAILED"
	}
	fmt.Fprintf(v.out, "%-22s %s\n", name, result) //nolint:errcheck // because a failed write of progress is no failure
}

// checksums compares each file with the checksum file, which must list exactly the files of the release.
func (v *verifier) checksums() error {
	data, err := os.ReadFile(v.path(checksumsFile))
	if err != nil {
		return err
	}
	want := map[string]string{}
	for line := range strings.Lines(string(data)) {
		sum, name, found := strings.Cut(strings.TrimSuffix(line, "\n"), "  ")
		if !found || len(sum) != 64 {
			return fmt.Errorf("the line %q is not a sum and a name", line)
		}
		want[name] = sum
	}
	have, err := v.sums()
	if err != nil {
		return err
	}
	var errs []error
	for _, s := range have {
		switch sum, known := want[s.name]; {
		case !known:
			errs = append(errs, fmt.Errorf("%s is not listed", s.name))
		case sum != s.sha256:
			errs = append(errs, fmt.Errorf("%s has the sum %s, want %s", s.name, s.sha256, sum))
		}
		delete(want, s.name)
	}
	for name := range want {
		errs = append(errs, fmt.Errorf("%s is listed but does not exist", name))
	}
	return errors.Join(errs...)
}

// archive checks the archive of the command line for a platform. It runs the program if it is for this machine.
func (v *verifier) archive(ctx context.Context, p platform) error {
	file := cliArchive(v.version, p)
	entries, err := unpack(v.path(file))
	if err != nil {
		return err
	}
	program := "capstan" + p.executable()
	for _, want := range []string{
		program, "LICENSE", "completions/capstan.bash", "completions/_capstan",
		"completions/capstan.fish", "completions/capstan.ps1",
	} {
		if len(find(entries, want)) == 0 {
			return fmt.Errorf("%s lacks %s", file, want)
		}
	}
	sbom, err := os.ReadFile(v.path(file + sbomSuffix))
	if err != nil {
		return err
	}
	if err := v.sbom(sbom, find(entries, program)); err != nil {
		return err
	}
	return v.program(ctx, find(entries, program), p, "version")
}

// program checks the platform that a program is built for, and that one version of Go has built all programs. If the
// program is for this machine, it must print the version when it is run with versionArgument. If versionArgument is
// empty, program does not run it.
func (v *verifier) program(ctx context.Context, data []byte, p platform, versionArgument string) error {
	info, err := buildinfo.Read(bytes.NewReader(data))
	if err != nil {
		return fmt.Errorf("failed to read the build information of the program of %s: %w", p, err)
	}
	if err := v.built.add(info); err != nil {
		return err
	}
	settings := map[string]string{}
	for _, s := range info.Settings {
		settings[s.Key] = s.Value
	}
	for key, want := range map[string]string{"GOOS": p.os, "GOARCH": p.arch, "CGO_ENABLED": "0", "-trimpath": "true"} {
		if settings[key] != want {
			return fmt.Errorf("the program of %s is built with %s=%s, want %s", p, key, settings[key], want)
		}
	}
	if versionArgument == "" || p.os != runtime.GOOS || p.arch != runtime.GOARCH {
		return nil
	}
	directory, err := os.MkdirTemp("", "capstan-release-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(directory) //nolint:errcheck // because it is a temporary directory
	path := filepath.Join(directory, "program"+p.executable())
	if err := os.WriteFile(path, data, 0o700); err != nil { //nolint:gosec // because it is run
		return err
	}
	out, err := exec.CommandContext(ctx, path, versionArgument).CombinedOutput()
	if err != nil {
		return fmt.Errorf("the program of %s cannot be run: %w: %s", p, err, out)
	}
	if !slices.Contains(strings.Fields(string(out)), v.version) {
		return fmt.Errorf("the program of %s prints %q, want the version %s", p, strings.TrimSpace(string(out)), v.version)
	}
	return nil
}

// sbom checks that an SBOM is for this version and lists the modules of the program.
func (v *verifier) sbom(data, program []byte) error {
	var list struct {
		BOMFormat string `json:"bomFormat"`
		Metadata  struct {
			Component struct {
				Version string `json:"version"`
			} `json:"component"`
		} `json:"metadata"`
		Components []struct {
			Name    string `json:"name"`
			Version string `json:"version"`
		} `json:"components"`
	}
	if err := json.Unmarshal(data, &list); err != nil {
		return fmt.Errorf("failed to read the SBOM: %w", err)
	}
	if list.BOMFormat != "CycloneDX" || list.Metadata.Component.Version != v.version {
		return fmt.Errorf("the SBOM is %s of version %s, want CycloneDX of version %s", list.BOMFormat,
			list.Metadata.Component.Version, v.version)
	}
	named := map[string]bool{}
	for _, c := range list.Components {
		named[c.Name+"@"+c.Version] = true
	}
	info, err := buildinfo.Read(bytes.NewReader(program))
	if err != nil {
		return err
	}
	for _, m := range info.Deps {
		if !named[m.Path+"@"+m.Version] {
			return fmt.Errorf("the SBOM lacks %s@%s", m.Path, m.Version)
		}
	}
	return nil
}

// checkImage checks the OCI archive, and that the archives for docker load contain the same images.
// versionArgument is the argument that makes the program print its version, or empty if the program has none.
func (v *verifier) checkImage(ctx context.Context, image, versionArgument string) error {
	base := filepath.Base(image)
	a, err := openArchive(v.path(imageArchive(base, v.version)))
	if err != nil {
		return err
	}
	defer a.Close() //nolint:errcheck // because it is a temporary directory
	if want := "docker.io/" + image + ":" + v.version; a.name != want {
		return fmt.Errorf("the name is %s, want %s", a.name, want)
	}
	v.images[a.name] = a.digest
	if err := validate.Index(a.index); err != nil {
		return err
	}
	manifest, err := a.index.IndexManifest()
	if err != nil {
		return err
	}
	if len(manifest.Manifests) != len(v.platforms) {
		return fmt.Errorf("it has %d platforms, want %d", len(manifest.Manifests), len(v.platforms))
	}
	for _, p := range v.platforms {
		at := slices.IndexFunc(manifest.Manifests, func(d v1.Descriptor) bool { return d.Platform != nil && d.Platform.Equals(*p.image()) })
		if at < 0 {
			return fmt.Errorf("it lacks the platform %s", p)
		}
		digest := manifest.Manifests[at].Digest
		img, err := a.index.Image(digest)
		if err != nil {
			return err
		}
		program, err := v.platformImage(ctx, img, p, versionArgument)
		if err != nil {
			return fmt.Errorf("%s: %w", p, err)
		}
		sbom, err := a.refersTo(digest, string(mediaTypeSBOM))
		if err != nil {
			return fmt.Errorf("%s: %w", p, err)
		}
		if err := v.sbom(sbom, program); err != nil {
			return fmt.Errorf("%s: %w", p, err)
		}
		if err := v.sameAsDocker(img, v.path(dockerArchive(base, v.version, p))); err != nil {
			return fmt.Errorf("%s: %w", p, err)
		}
	}
	statement, err := a.refersTo(a.digest, string(mediaTypeProvenance))
	if err != nil {
		return err
	}
	return v.statement(statement, map[string]string{a.name: a.digest.Hex})
}

// platformImage checks the image of one platform and returns its program.
func (v *verifier) platformImage(ctx context.Context, img v1.Image, p platform, versionArgument string) ([]byte, error) {
	config, err := img.ConfigFile()
	if err != nil {
		return nil, err
	}
	if config.Config.User != nonroot || len(config.Config.Entrypoint) != 1 {
		return nil, fmt.Errorf("it runs %v as %q, want one program as %s", config.Config.Entrypoint, config.Config.User, nonroot)
	}
	for label, want := range map[string]string{"version": v.version, "revision": v.revision} {
		if have := config.Config.Labels["org.opencontainers.image."+label]; have != want {
			return nil, fmt.Errorf("its label %s is %q, want %q", label, have, want)
		}
	}
	files := mutate.Extract(img)
	defer files.Close() //nolint:errcheck // because it is only read
	entries, err := unpackTar(files)
	if err != nil {
		return nil, err
	}
	if len(find(entries, "etc/ssl/certs/ca-certificates.crt")) == 0 {
		return nil, errors.New("it lacks the certificates of authorities")
	}
	program := find(entries, strings.TrimPrefix(config.Config.Entrypoint[0], "/"))
	return program, v.program(ctx, program, p, versionArgument)
}

// refersTo returns the content of the first artifact of a type that refers to an image.
func (a *archived) refersTo(digest v1.Hash, mediaType string) ([]byte, error) {
	for _, img := range a.attached {
		manifest, err := img.Manifest()
		if err != nil {
			return nil, err
		}
		if manifest.Subject == nil || manifest.Subject.Digest != digest ||
			string(manifest.Config.MediaType) != mediaType || len(manifest.Layers) != 1 {
			continue
		}
		layers, err := img.Layers()
		if err != nil {
			return nil, err
		}
		content, err := layers[0].Compressed()
		if err != nil {
			return nil, err
		}
		data, err := io.ReadAll(content)
		return data, errors.Join(err, content.Close())
	}
	return nil, fmt.Errorf("no artifact of the type %s refers to %s", mediaType, digest)
}

// sameAsDocker checks that an archive for docker load contains the same image.
func (v *verifier) sameAsDocker(img v1.Image, file string) error {
	loaded, err := tarball.ImageFromPath(file, nil)
	if err != nil {
		return err
	}
	want, err := img.ConfigName()
	if err != nil {
		return err
	}
	have, err := loaded.ConfigName()
	if err != nil {
		return err
	}
	if have != want {
		return fmt.Errorf("%s holds the image %s, want %s", filepath.Base(file), have, want)
	}
	return validate.Image(loaded)
}

// krew compares the manifest with the archives.
func (v *verifier) krew() error {
	data, err := os.ReadFile(v.path(krewFile))
	if err != nil {
		return err
	}
	var p krewPlugin
	if err := yaml.UnmarshalStrict(data, &p); err != nil {
		return err
	}
	if p.Spec.Version != "v"+v.version || p.Metadata.Name != "capstan" {
		return fmt.Errorf("it is of %s %s, want capstan v%s", p.Metadata.Name, p.Spec.Version, v.version)
	}
	if len(p.Spec.ShortDescription) > 50 {
		return errors.New("krew takes at most 50 characters for shortDescription")
	}
	if len(p.Spec.Platforms) != len(v.cliPlatforms) {
		return fmt.Errorf("it has %d platforms, want %d", len(p.Spec.Platforms), len(v.cliPlatforms))
	}
	for _, k := range p.Spec.Platforms {
		at := platform{k.Selector.MatchLabels["os"], k.Selector.MatchLabels["arch"]}
		file := cliArchive(v.version, at)
		if !slices.Contains(v.cliPlatforms, at) || !strings.HasPrefix(k.URI, "https://") || !strings.HasSuffix(k.URI, "/"+file) {
			return fmt.Errorf("the platform %s has the URI %s, want https and %s", at, k.URI, file)
		}
		archive, err := os.ReadFile(v.path(file))
		if err != nil {
			return err
		}
		if k.SHA256 != hexSum(archive) {
			return fmt.Errorf("%s has the sum %s, want %s", file, k.SHA256, hexSum(archive))
		}
		entries, err := unpack(v.path(file))
		if err != nil {
			return err
		}
		for _, m := range k.Files {
			if find(entries, m.From) == nil {
				return fmt.Errorf("%s lacks %s", file, m.From)
			}
		}
		if !slices.ContainsFunc(k.Files, func(m krewMove) bool { return m.From == k.Bin && m.To == "." }) {
			return fmt.Errorf("the platform %s does not install its program %s", at, k.Bin)
		}
	}
	return nil
}

// chart checks that the chart installs the image of this version.
func (v *verifier) chart() error {
	charts, err := filepath.Glob(v.path("capstan-*.tgz"))
	if err != nil {
		return err
	}
	if len(charts) != 1 {
		return fmt.Errorf("there are %d packages of charts, want one", len(charts))
	}
	entries, err := unpack(charts[0])
	if err != nil {
		return err
	}
	var chart struct {
		Name       string `json:"name"`
		Version    string `json:"version"`
		AppVersion string `json:"appVersion"`
	}
	if err := yaml.Unmarshal(find(entries, "capstan/Chart.yaml"), &chart); err != nil {
		return err
	}
	if filepath.Base(charts[0]) != "capstan-"+chart.Version+".tgz" {
		return fmt.Errorf("%s has the version %s", filepath.Base(charts[0]), chart.Version)
	}
	if chart.AppVersion != v.version {
		return fmt.Errorf("its appVersion is %s, want %s: set it in charts/capstan/Chart.yaml", chart.AppVersion, v.version)
	}
	var values struct {
		Image struct {
			Repository string `json:"repository"`
			Tag        string `json:"tag"`
		} `json:"image"`
	}
	if err := yaml.Unmarshal(find(entries, "capstan/values.yaml"), &values); err != nil {
		return err
	}
	if values.Image.Repository != v.image || values.Image.Tag != "" {
		return fmt.Errorf("it installs the image %s:%s, want %s and the tag of its appVersion", values.Image.Repository,
			values.Image.Tag, v.image)
	}
	return nil
}

// provenance checks that the statement lists all files and images with their checksums, the commit, and the version of
// Go.
func (v *verifier) provenance() error {
	data, err := os.ReadFile(v.path(provenanceFile))
	if err != nil {
		return err
	}
	all, err := v.sums()
	if err != nil {
		return err
	}
	want := map[string]string{}
	for _, s := range all {
		if s.name != provenanceFile {
			want[s.name] = s.sha256
		}
	}
	for name, digest := range v.images {
		want[name] = digest.Hex
	}
	return v.statement(data, want)
}

func (v *verifier) statement(data []byte, want map[string]string) error {
	var s intoto.Statement
	if err := protojson.Unmarshal(data, &s); err != nil {
		return err
	}
	if err := s.Validate(); err != nil {
		return err
	}
	if s.GetPredicateType() != typeProvenance {
		return fmt.Errorf("the predicate is of the type %s, want %s", s.GetPredicateType(), typeProvenance)
	}
	for _, subject := range s.GetSubject() {
		if sum := want[subject.GetName()]; sum == "" || sum != subject.GetDigest()["sha256"] {
			return fmt.Errorf("%s has the sum %q, want %q", subject.GetName(), subject.GetDigest()["sha256"], sum)
		}
		delete(want, subject.GetName())
	}
	for name := range want {
		return fmt.Errorf("it does not name %s", name)
	}
	if !strings.Contains(string(data), `"gitCommit": "`+v.revision+`"`) {
		return fmt.Errorf("it does not name the commit %s", v.revision)
	}
	return v.namesGo(&s)
}

// namesGo checks that a statement names the version of Go that has built the programs that were checked before.
func (v *verifier) namesGo(s *intoto.Statement) error {
	predicate, err := protojson.Marshal(s.GetPredicate())
	if err != nil {
		return err
	}
	var build slsa.Provenance
	if err := protojson.Unmarshal(predicate, &build); err != nil {
		return err
	}
	for _, d := range build.GetBuildDefinition().GetResolvedDependencies() {
		if d.GetName() != nameOfGo {
			continue
		}
		if named := d.GetAnnotations().GetFields()["version"].GetStringValue(); named != string(v.built) {
			return fmt.Errorf("it names the Go version %s, and the programs are built with %s", named, v.built)
		}
		return nil
	}
	return errors.New("it does not name the version of Go")
}
