package main

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"
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

// firstAnswer follows the NOTES of the release literally, in a namespace that enforces restricted Pod Security.
func (t *test) firstAnswer(ctx context.Context) error {
	notes, err := t.output(ctx, "", filepath.Join(t.options.programs, "helm"), "get", "notes", "capstan", "--namespace", system)
	if err != nil {
		return err
	}
	commands := notesCommands(notes)
	if len(commands) != 4 {
		return fmt.Errorf("NOTES list %d commands for a first answer after helm install, want 4: %q", len(commands), commands)
	}
	if err := t.kubectl(ctx, "label", "namespace", "default", "pod-security.kubernetes.io/enforce=restricted"); err != nil {
		return err
	}
	if err := t.follow(ctx, commands...); err != nil {
		return err
	}
	// This time, nothing waits for the servers before the Turn is created: the Turn itself must wait for them.
	t.say("Applying the same example with one command, the servers last")
	return t.follow(ctx, "kubectl create namespace at-once",
		`sed 's|\.default:|.at-once:|' examples/cluster/*.yaml examples/cluster/servers/*.yaml | kubectl -n at-once apply -f -`,
		strings.Replace(commands[3], "-n default", "-n at-once", 1))
}

// follow runs commands in the repository. The last command must show the answer of examples/cluster.
func (t *test) follow(ctx context.Context, commands ...string) error {
	var shown string
	for _, command := range commands {
		script := "cd " + t.options.root + " && export PATH=" + filepath.Dir(t.cluster.Kubectl) + ":$PATH && " + command
		var err error
		if shown, err = t.output(ctx, "", "bash", "-euo", "pipefail", "-c", script); err != nil {
			return fmt.Errorf("failed to follow NOTES: %w", err)
		}
	}
	if !strings.Contains(shown, "Ticket 1042 is open") {
		return fmt.Errorf("%s does not show the answer: %s", commands[len(commands)-1], shown)
	}
	t.say("The last command shows %q", shown)
	return nil
}
