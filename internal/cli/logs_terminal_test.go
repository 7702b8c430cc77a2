package cli_test

import (
	"context"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/capstan-dev/capstan/internal/cli"
	"github.com/capstan-dev/capstan/internal/cli/exit"
	"github.com/capstan-dev/capstan/internal/cli/terminal"
)

// screenful holds the output to a terminal. The channel changed holds an item after new output.
type screenful struct {
	mu      sync.Mutex
	text    strings.Builder
	changed chan struct{}
}

// Write adds output.
func (s *screenful) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	select {
	case s.changed <- struct{}{}:
	default:
	}
	return s.text.Write(p)
}

func (s *screenful) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.text.String()
}

// wait waits until the output contains a text.
func (s *screenful) wait(ctx context.Context, t *testing.T, text string) {
	t.Helper()
	for !strings.Contains(s.String(), text) {
		select {
		case <-s.changed:
		case <-ctx.Done():
			t.Fatalf("want %q on the screen, have %q", text, s.String())
		}
	}
}

func TestFollowShowsActivityOnTerminal(t *testing.T) {
	t.Parallel()
	model, url := fake(t, "rules: [{times: 2, fault: {hang: AfterHeaders}}, {reply: {text: Back.}}]")
	dir, data := complete().written(t, url), t.TempDir()
	args := []string{"run", "-f", dir, "--data-dir", data}
	runInterrupted(t, model, args...).mustEnd(t, exit.Interrupted)

	ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
	defer cancel()
	seen, ended := &screenful{changed: make(chan struct{}, 1)}, make(chan int, 1)
	go func() { // results and messages go to the same terminal
		ended <- cli.Execute(ctx, terminal.Environment{
			In: strings.NewReader(""), Out: seen, Err: seen, OutIsTerminal: true, ErrIsTerminal: true,
			LookupEnv: func(string) (string, bool) { return "", false }, Now: ticking(),
		}, []string{"logs", "-f", "first", "--data-dir", data})
	}()
	seen.wait(ctx, t, "waiting for the next entry, ")
	running, interrupt := context.WithCancel(ctx)
	defer interrupt()
	run := make(chan output, 1)
	go func() { run <- call{}.run(running, args...) }()
	seen.wait(ctx, t, "waiting for small, ")
	interrupt()
	(<-run).mustEnd(t, exit.Interrupted)
	capstan(t, args...).mustEnd(t, exit.OK)
	if code := <-ended; code != exit.OK {
		t.Fatalf("want exit code 0, have %d:\n%s", code, seen)
	}
	const eraseLine = "\r\x1b[K"
	var lines []string
	for line := range strings.SplitSeq(strings.TrimSuffix(seen.String(), "\n"), "\n") {
		if i := strings.LastIndex(line, eraseLine); i >= 0 {
			line = line[i+len(eraseLine):]
		}
		lines = append(lines, line)
	}
	plain := capstan(t, "logs", "first", "--data-dir", data).mustEnd(t, exit.OK)
	if diff := cmp.Diff(plain.out, strings.Join(lines, "\n")+"\n"); diff != "" {
		t.Errorf("want no output of the spinner left on the screen; -want +have:\n%s", diff)
	}
	for name, c := range map[string]call{"no terminal": {}, "dumb terminal": {terminal: true, env: map[string]string{"TERM": "dumb"}}} {
		if got := c.run(t.Context(), "logs", "-f", "first", "--data-dir", data).mustEnd(t, exit.OK); got.out != plain.out ||
			got.err != "" {
			t.Errorf("%s: want only the lines of the journal, have %q and %q", name, got.out, got.err)
		}
	}
}
