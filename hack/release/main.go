// Command release makes images and release archives from programs that the Makefile has built, and checks them. It
// needs neither a Docker engine nor a registry. The same programs, version and time produce the same bytes.
//
//	release image     packs programs as a multi-platform OCI image and as archives for docker load
//	release archives  packs the command line for each platform, and writes the manifest for krew
//	release finish    makes the chart's package reproducible, and writes the provenance and checksums of a directory
//	release verify    checks a directory: the archives, the images, the manifest for krew, the chart, the provenance
//	                  and the checksums
//	release push      pushes the image with its SBOMs and its provenance to a registry
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	err := run(ctx, os.Args[1:], os.Stdout)
	stop()
	if err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintf(os.Stderr, "release: %v\n", err)
		os.Exit(1)
	}
}

// errUsage lists the commands.
var errUsage = errors.New("the first argument must be image, archives, finish, verify or push")

func run(ctx context.Context, args []string, out io.Writer) error {
	if len(args) == 0 {
		return errUsage
	}
	switch args[0] {
	case "image":
		return runImage(args[1:], out)
	case "archives":
		return runArchives(args[1:], out)
	case "finish":
		return runFinish(args[1:], out)
	case "verify":
		return runVerify(ctx, args[1:], out)
	case "push":
		return runPush(ctx, args[1:], out)
	}
	return errUsage
}

// release identifies a release. Its version and time are in everything that the command writes.
type release struct {
	// version is the version without a leading v, such as 0.1.0.
	version string
	// revision is the commit.
	revision string
	// epoch is the time of the commit in seconds since 1970, as in SOURCE_DATE_EPOCH.
	epoch int64
	// dist is the directory of the results.
	dist string
}

func (r *release) addFlags(f *flag.FlagSet) {
	f.StringVar(&r.version, "version", "", "version of the release, without a leading v")
	f.StringVar(&r.revision, "revision", "", "commit of the release")
	f.Int64Var(&r.epoch, "epoch", 0, "time of the commit, in seconds since 1970: SOURCE_DATE_EPOCH")
	f.StringVar(&r.dist, "dist", "dist", "directory of the results")
}

func (r *release) check() error {
	switch {
	case r.version == "" || strings.ContainsAny(r.version, "/ "):
		return fmt.Errorf("-version must be a version, got %q", r.version)
	case r.epoch <= 0:
		return errors.New("-epoch must be the time of the commit in seconds since 1970: without git, set SOURCE_DATE_EPOCH")
	}
	return os.MkdirAll(r.dist, 0o755) //nolint:gosec // because it holds what is published
}

func (r *release) time() time.Time { return time.Unix(r.epoch, 0).UTC() }

// path returns the path of a result.
func (r *release) path(name string) string { return filepath.Join(r.dist, name) }

// platform is an operating system and an architecture, with Go's names.
type platform struct{ os, arch string }

func (p platform) String() string      { return p.os + "/" + p.arch }
func (p platform) fileName() string    { return p.os + "_" + p.arch }
func (p platform) image() *v1.Platform { return &v1.Platform{OS: p.os, Architecture: p.arch} }
func (p platform) executable() string {
	if p.os == "windows" {
		return ".exe"
	}
	return ""
}

func parsePlatform(text string) (platform, error) {
	system, arch, found := strings.Cut(text, "/")
	if !found || system == "" || arch == "" {
		return platform{}, fmt.Errorf("a platform must be OS/ARCHITECTURE, such as linux/amd64, got %q", text)
	}
	return platform{system, arch}, nil
}

// program is an executable file for one platform. Its SBOM is in the same directory, with the suffix .cdx.json.
type program struct {
	platform platform
	path     string
}

// sbom returns the content of the program's SBOM, or nil if it has none.
func (p program) sbom() ([]byte, error) {
	data, err := os.ReadFile(p.path + sbomSuffix)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	return data, err
}

const sbomSuffix = ".cdx.json"

// programs is a flag that may be repeated, once per platform: OS/ARCHITECTURE=PATH.
type programs []program

func (p *programs) String() string { return "" }

// Set implements flag.Value. It adds one program.
func (p *programs) Set(text string) error {
	name, path, found := strings.Cut(text, "=")
	if !found || path == "" {
		return fmt.Errorf("must be OS/ARCHITECTURE=PATH, got %q", text)
	}
	target, err := parsePlatform(name)
	if err != nil {
		return err
	}
	for _, other := range *p {
		if other.platform == target {
			return fmt.Errorf("%s is given twice", target)
		}
	}
	*p = append(*p, program{target, path})
	return nil
}
