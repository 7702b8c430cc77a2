package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

const (
	// installPage is the page whose commands install the chart and lead to a first answer.
	installPage = "docs/install.md"
	// exampleRegistry is the registry on that page. The images are in containerd under its names, because this cluster
	// has no registry.
	exampleRegistry = "registry.example.com"
)

// firstAnswerHeading begins the paragraph of NOTES with the commands for a first answer.
const firstAnswerHeading = "For a first answer"

// notesCommands returns the commands of the paragraph that begins with firstAnswerHeading, in order.
func notesCommands(notes string) []string {
	_, paragraph, _ := strings.Cut(notes, firstAnswerHeading)
	var commands []string
	for line := range strings.Lines(paragraph) {
		command, indented := strings.CutPrefix(line, "   ")
		switch {
		case indented:
			commands = append(commands, strings.TrimSpace(command))
		case len(commands) > 0 && strings.TrimSpace(line) != "":
			return commands // the next paragraph
		}
	}
	return commands
}

// firstAnswer runs the five commands of the installation page literally, one directly after another, on a cluster that
// has never seen Capstan. The chart is the packaged one, and the example's namespace enforces restricted Pod Security.
// NOTES must show the last four commands.
func (t *test) firstAnswer(ctx context.Context) error {
	page, err := os.ReadFile(filepath.Join(t.options.root, installPage))
	if err != nil {
		return err
	}
	block, err := pageCommands(installPage, string(page), "Install with Helm")
	if err != nil {
		return err
	}
	commands := strings.Split(strings.TrimSpace(strings.ReplaceAll(block, "\\\n", "")), "\n")
	if len(commands) != 5 {
		return fmt.Errorf("%s lists %d commands for a first answer, want 5: %q", installPage, len(commands), commands)
	}
	repository, err := t.repositoryWithChart(ctx)
	if err != nil {
		return err
	}
	if err := t.kubectl(ctx, "label", "namespace", "default", "pod-security.kubernetes.io/enforce=restricted"); err != nil {
		return err
	}
	notes, err := t.follow(ctx, repository, commands[0])
	if err != nil {
		return err
	}
	if shown := notesCommands(notes); !slices.Equal(shown, commands[1:]) {
		return fmt.Errorf("NOTES list the commands %q, and %s lists %q", shown, installPage, commands[1:])
	}
	return t.answer(ctx, repository, commands[1:]...)
}

// repositoryWithChart returns a new directory beside the logs in which the commands of the installation page work: it
// has the packaged chart in the place of the chart's sources, and the examples.
func (t *test) repositoryWithChart(ctx context.Context) (string, error) {
	dir := filepath.Join(t.options.logs, "repository")
	charts := filepath.Join(dir, "charts")
	if err := os.MkdirAll(charts, 0o700); err != nil {
		return "", err
	}
	if _, err := t.output(ctx, "", "tar", "-xzf", t.chart, "-C", charts); err != nil {
		return "", err
	}
	return dir, os.CopyFS(filepath.Join(dir, "examples"), os.DirFS(filepath.Join(t.options.root, "examples")))
}

// applyAtOnce applies the example of the installation page with one command, the servers last. Nothing waits for the
// servers before the Turn is created: the Turn itself must wait for them.
func (t *test) applyAtOnce(ctx context.Context) error {
	return t.answer(ctx, t.options.root, "kubectl create namespace at-once",
		`sed 's|\.default:|.at-once:|' examples/cluster/*.yaml examples/cluster/servers/*.yaml | kubectl -n at-once apply -f -`,
		`kubectl -n at-once wait turn/first-answer --for=jsonpath='{.status.completionTime}' --timeout=5m `+
			`-o jsonpath='{.status.result.text}'`)
}

// answer runs commands in a directory. The last command must show the answer of examples/cluster.
func (t *test) answer(ctx context.Context, dir string, commands ...string) error {
	shown, err := t.follow(ctx, dir, commands...)
	if err != nil {
		return err
	}
	if !strings.Contains(shown, "Ticket 1042 is open") {
		return fmt.Errorf("%s does not show the answer: %s", commands[len(commands)-1], shown)
	}
	t.say("The last command shows %q", shown)
	return nil
}

// follow runs commands in a directory, one after another, and returns the output of the last one.
func (t *test) follow(ctx context.Context, dir string, commands ...string) (shown string, err error) {
	path := filepath.Dir(t.cluster.Kubectl) + ":" + t.options.programs
	for _, command := range commands {
		script := "cd " + dir + " && export PATH=" + path + ":$PATH && " + command
		if shown, err = t.output(ctx, "", "bash", "-euo", "pipefail", "-c", script); err != nil {
			return "", fmt.Errorf("failed to run %q: %w", command, err)
		}
	}
	return shown, nil
}
