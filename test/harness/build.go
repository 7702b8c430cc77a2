package harness

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
)

// programsVariable is the environment variable that names the directory of the programs that `make build` has built.
// If it is set, the packages of tests do not build the same programs again.
const programsVariable = "CAPSTAN_PROGRAMS"

// Build returns the path of a program of cmd/, such as "manager". If CAPSTAN_PROGRAMS names a directory, the program
// must be there. Otherwise Build builds the program into dir, from the repository with this root directory.
func Build(ctx context.Context, root, dir, name string) (path string, err error) {
	if programs := os.Getenv(programsVariable); programs != "" {
		path = filepath.Join(programs, name)
		if _, err := os.Stat(path); err != nil {
			return "", fmt.Errorf("failed to find %s in the directory that %s names: %w; run make build, or unset it",
				name, programsVariable, err)
		}
		return path, nil
	}
	path, err = filepath.Abs(filepath.Join(dir, name))
	if err != nil {
		return "", fmt.Errorf("failed to find the path of %s: %w", name, err)
	}
	// The flags are those of make build, so that both share the compiled packages.
	build := exec.CommandContext(ctx, "go", "build", "-trimpath", "-buildvcs=false", "-o", path, "./cmd/"+name)
	build.Dir, build.Env = root, append(os.Environ(), "CGO_ENABLED=0")
	if output, err := build.CombinedOutput(); err != nil {
		return "", fmt.Errorf("failed to build %s: %w: %s", name, err, output)
	}
	return path, nil
}
