package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"
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
