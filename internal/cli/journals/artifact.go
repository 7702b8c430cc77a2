package journals

import (
	"context"
	"errors"
	"fmt"
	"io"
	"regexp"
	"strings"

	"github.com/capstan-dev/capstan/internal/cli/exit"
	"github.com/capstan-dev/capstan/internal/cli/output"
	"github.com/capstan-dev/capstan/internal/cli/terminal"
	"github.com/capstan-dev/capstan/internal/readapi"
	"github.com/capstan-dev/capstan/internal/runtime/turn"
	"github.com/capstan-dev/capstan/internal/termsafe"
)

// printContent prints the content of an artifact to standard output.
func (j *Source) printContent(ctx context.Context, turn, artifact string) (err error) {
	watched, release := exit.Watch(ctx)
	defer release()
	r, err := j.open(watched, turn)
	if err != nil {
		return exit.InterruptedOr(watched, err)
	}
	defer func() { err = errors.Join(err, r.Close()) }()
	return exit.InterruptedOr(watched, j.printArtifact(watched, r, artifact))
}

func (j *Source) printArtifact(ctx context.Context, r reader, artifact string) error {
	sha256, err := hashOf(ctx, r, artifact)
	if err != nil {
		return exit.WithCode(exit.Failed, fmt.Errorf("--artifact: %w", err))
	}
	body, err := r.Artifact(ctx, sha256)
	if err != nil {
		return exit.WithCode(exit.Failed, fmt.Errorf("--artifact: %w", err))
	}
	defer body.Close() //nolint:errcheck // because it was only read
	if j.Env.OutIsTerminal {
		return printSafely(j.Env, body)
	}
	if _, err := io.Copy(stdout{j.Env}, body); err != nil {
		return exit.WithCode(exit.Failed, fmt.Errorf("--artifact: %w", err))
	}
	return nil
}

// sha256Form matches a SHA-256 in hexadecimal. No artifact name has this form.
var sha256Form = regexp.MustCompile(`^[0-9a-f]{64}$`)

// hashOf returns the SHA-256 of an artifact, given by its SHA-256 or by its name in the Turn's journal.
func hashOf(ctx context.Context, r reader, artifact string) (string, error) {
	if sha256Form.MatchString(artifact) {
		return artifact, nil
	}
	var names []string
	for e, err := range r.Entries(ctx, readapi.Query{}) {
		if err != nil {
			return "", Explain(err)
		}
		all, err := turn.ArtifactsOf(e)
		if err != nil {
			return "", fmt.Errorf("failed to read entry %d (%q): %w", e.Seq, e.Kind, err)
		}
		for _, a := range all {
			if a.Name == artifact {
				return a.SHA256, nil
			}
			names = append(names, termsafe.Line(a.Name, output.LongestID))
		}
	}
	if len(names) == 0 {
		return "", fmt.Errorf("the Turn has no artifact %q: it has no artifacts so far", artifact)
	}
	return "", fmt.Errorf("the Turn has no artifact %q: its artifacts are %s", artifact, strings.Join(names, ", "))
}

// printSafely prints content. If Out is a terminal, it removes control characters from the content.
func printSafely(env terminal.Environment, r io.Reader) error {
	data, err := io.ReadAll(r)
	if err != nil {
		return exit.WithCode(exit.Failed, fmt.Errorf("--artifact: %w", err))
	}
	return env.Print(env.ForScreen(string(data)))
}
