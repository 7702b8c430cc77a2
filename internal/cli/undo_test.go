package cli_test

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/cli/exit"
	"github.com/capstan-dev/capstan/test/toolserver/tickets"
)

const (
	// noting has the rules of a model that adds a note to two tickets, and closes one of them.
	noting = `rules:
- when: {toolMessages: 0, hasTools: true}
  reply:
    toolCalls:
    - {id: call_1, name: add_note, arguments: '{"id": "1042", "note": "On Monday."}'}
    - {id: call_2, name: close_ticket, arguments: '{"id": "1042", "resolution": "Done."}'}
    - {id: call_3, name: add_note, arguments: '{"id": "1061", "note": "On Monday."}'}
- {reply: {text: 'Done.'}}
`
	// compensated declares how a note is undone.
	compensated = `apiVersion: capstan.dev/v1alpha1
kind: ToolServer
metadata: {name: tickets}
spec:
  type: MCP
  mcp: {url: TOOLSURL}
  tools:
  - name: add_note
    effect: Idempotent
    compensation:
      tool: remove_note
      arguments: [{name: id, value: arguments.id}, {name: note, value: arguments.note}]
`
)

// TestWaitSecondsIsChecked checks that an invalid time to wait ends a command before it reads or creates anything.
func TestWaitSecondsIsChecked(t *testing.T) {
	t.Parallel()
	for _, verb := range []string{"undo", "approve", "deny"} {
		for _, seconds := range []string{"-5", "3601"} {
			got := capstan(t, verb, "first", "-y", "--server", nowhere, "--wait-seconds", seconds).mustEnd(t, exit.Usage)
			mustSay(t, got.err, "--wait-seconds is "+seconds+": it must be from 0 to 3600")
		}
	}
}

// TestFlagsOfALocalUndo checks that undo does not act in a cluster if flags for a directory are set.
func TestFlagsOfALocalUndo(t *testing.T) {
	t.Parallel()
	for _, flags := range [][]string{{"-f", "manifests"}, {"--env-secret", "a/b=C"}, {"--approve", "all"}} {
		got := capstan(t, append([]string{"undo", "first", "-y", "--server", nowhere, "--token", "mine"}, flags...)...)
		mustSay(t, got.mustEnd(t, exit.Usage).err, "-f, --env-secret and --approve require --data-dir")
	}
}

// notedTickets writes the manifests of a Turn whose calls can be undone. It returns their directory, and a function
// that reports whether a ticket has the note of the Turn.
func notedTickets(t *testing.T) (dir string, hasNote func(id string) bool) {
	t.Helper()
	return notedTicketsBehind(t, func(next http.Handler) http.Handler { return next }, "")
}

// notedTicketsBehind is like notedTickets, with a handler around the tool server and further elements of spec.tools.
func notedTicketsBehind(
	t *testing.T, around func(http.Handler) http.Handler, tools string,
) (dir string, hasNote func(id string) bool) {
	t.Helper()
	_, url := fake(t, noting)
	desk, err := tickets.NewDesk(nil)
	if err != nil {
		t.Fatal(err)
	}
	web := httptest.NewServer(around(tickets.Handler(desk, nil)))
	t.Cleanup(web.Close)
	f := withTools(t, "", "    allow: [add_note, close_ticket]\n")
	f["tools.yaml"] = strings.ReplaceAll(compensated, "TOOLSURL", web.URL+"/mcp") + tools
	return f.written(t, url), func(id string) bool {
		t.Helper()
		ticket, err := desk.Get(id)
		if err != nil {
			t.Fatal(err)
		}
		return slices.Contains(ticket.Notes, "On Monday.")
	}
}

// TestInterruptedUndoContinues checks that a second capstan undo continues the Turn of the first one, which was
// interrupted in a compensation, so that no older call is undone before the outcome of this compensation is known.
func TestInterruptedUndoContinues(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		effect string
		exit   int
		says   []string
		left   []string // the tickets that still have their notes
	}{
		{
			"Idempotent", exit.Failed,
			[]string{"add_note (call call_3): undone by remove_note\n", "add_note (call call_1): undone by remove_note\n"},
			nil,
		},
		{
			"Destructive", exit.Failed,
			[]string{"add_note (call call_3): not undone: ", "unknown", "add_note (call call_1): not undone: "},
			[]string{"1042", "1061"},
		},
	} {
		t.Run(tc.effect, func(t *testing.T) {
			t.Parallel()
			calls := &holdFirst{text: `"` + tickets.ToolRemoveNote + `"`, held: make(chan struct{})}
			dir, hasNote := notedTicketsBehind(t, calls.around, "  - {name: remove_note, effect: "+tc.effect+"}\n")
			data := t.TempDir()
			capstan(t, "run", "-f", dir, "--data-dir", data).mustEnd(t, exit.OK)

			args := []string{"undo", "first", "--data-dir", data, "-f", dir, "--yes", "--approve", "all"}
			ctx, interrupt := context.WithTimeout(t.Context(), testTimeout)
			defer interrupt()
			go func() {
				select {
				case <-calls.held:
					interrupt()
				case <-ctx.Done():
				}
			}()
			first := call{}.run(ctx, args...).mustEnd(t, exit.Interrupted)
			mustSay(t, first.err, "run the same command again to continue")
			name := regexp.MustCompile(`first-undo-[a-z0-9]+`).FindString(first.err)

			other := capstan(t, append(args, "--call", "call_3")...).mustEnd(t, exit.Failed)
			mustSay(t, other.err, name+" has begun with other flags or manifests")
			if !hasNote("1042") || !hasNote("1061") {
				t.Error("other flags undid a call, want nothing done")
			}
			second := capstan(t, args...).mustEnd(t, tc.exit)
			mustSay(t, second.err, "The Turn continued from its journal.", name)
			mustSay(t, second.out, tc.says...)
			for _, id := range []string{"1042", "1061"} {
				if has, want := hasNote(id), slices.Contains(tc.left, id); has != want {
					t.Errorf("ticket %s has its note: %t, want %t", id, has, want)
				}
			}
		})
	}
}

// holdFirst keeps the first request with a text unanswered until its client gives up.
type holdFirst struct {
	text string
	once sync.Once
	held chan struct{} // closed when the request has arrived
}

func (h *holdFirst) around(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return
		}
		r.Body = io.NopCloser(bytes.NewReader(body))
		if strings.Contains(string(body), `"tools/call"`) && strings.Contains(string(body), h.text) {
			first := false
			h.once.Do(func() { first = true })
			if first {
				close(h.held)
				<-r.Context().Done()
				return
			}
		}
		next.ServeHTTP(w, r)
	})
}

// TestUndoInANamespace checks that the manifests of an undo belong to the namespace of the Turn, as in the run.
func TestUndoInANamespace(t *testing.T) {
	t.Parallel()
	for name, turn := range map[string][]string{"by -n": {"first", "-n", "b"}, "by the name": {"b/first"}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir, hasNote := notedTickets(t)
			data := t.TempDir()
			capstan(t, "run", "-f", dir, "--data-dir", data, "-n", "b").mustEnd(t, exit.OK)
			if !hasNote("1042") || !hasNote("1061") {
				t.Fatal("want both notes after the run")
			}
			args := append([]string{"undo", "--data-dir", data, "-f", dir, "--yes", "--approve", "all"}, turn...)
			mustSay(t, capstan(t, args...).mustEnd(t, exit.Failed).out, "add_note (call call_3): undone by remove_note\n",
				"add_note (call call_1): undone by remove_note\n", "close_ticket (call call_2): not undone: ")
			if hasNote("1042") || hasNote("1061") {
				t.Error("want both notes undone")
			}
		})
	}
}

// TestManifestsOfAnotherNamespace undoes and replays a Turn whose namespace is not that of the manifests without one,
// as with a shared ModelProvider.
func TestManifestsOfAnotherNamespace(t *testing.T) {
	t.Parallel()
	dir, hasNote := notedTickets(t)
	for name, edits := range map[string][]string{
		"agent.yaml": {
			"{name: support}\nspec", "{name: support, namespace: b}\nspec", "{name: demo}", "{name: demo, namespace: default}",
		},
		"profile.yaml":  {"{name: support}", "{name: support, namespace: b}"},
		"provider.yaml": {"spec:", "spec:\n  allowedNamespaces: {from: All}"},
		"tools.yaml":    {"{name: tickets}", "{name: tickets, namespace: b}"},
		"turn.yaml":     {"{name: first}", "{name: first, namespace: b}"},
	} {
		path := filepath.Join(dir, name)
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(strings.NewReplacer(edits...).Replace(string(text))), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	data := t.TempDir()
	capstan(t, "run", "-f", dir, "--data-dir", data).mustEnd(t, exit.OK)
	if !hasNote("1042") || !hasNote("1061") {
		t.Fatal("want both notes after the run")
	}
	mustSay(t, capstan(t, "replay", "b/first", "-n", "default", "--data-dir", data, "-m", dir).mustEnd(t, exit.OK).out,
		"Turn b/first: the prompts are the same", "The answers are the same")
	undone := capstan(t, "undo", "b/first", "-n", "default", "--data-dir", data, "-f", dir, "--yes", "--approve", "all")
	mustSay(t, undone.mustEnd(t, exit.Failed).out, "add_note (call call_3): undone by remove_note\n",
		"add_note (call call_1): undone by remove_note\n")
	if hasNote("1042") || hasNote("1061") {
		t.Error("want both notes undone")
	}
}

// TestUndoWithoutACluster undoes the calls of a run: it shows them, does nothing in a dry run, requires approval, and
// undoes each call once.
func TestUndoWithoutACluster(t *testing.T) {
	t.Parallel()
	dir, hasNote := notedTickets(t)
	data := t.TempDir()
	capstan(t, "run", "-f", dir, "--data-dir", data).mustEnd(t, exit.OK)
	if !hasNote("1042") || !hasNote("1061") {
		t.Fatal("want both notes after the run")
	}

	shown := capstan(t, "undo", "first", "--data-dir", data, "--dry-run").mustEnd(t, exit.OK)
	const want = `Calls of Turn default/first, the newest first:
  add_note (call call_3)
    undo with remove_note of ToolServer tickets
| {
|   "id": "1061",
|   "note": "On Monday."
| }
  close_ticket (call call_2)
    cannot be undone: the ToolServer declared no compensation for the tool when the call was made
  add_note (call call_1)
    undo with remove_note of ToolServer tickets
| {
|   "id": "1042",
|   "note": "On Monday."
| }
`
	if shown.out != want {
		t.Errorf("want\n%s\nhave\n%s", want, shown.out)
	}
	var plan struct{ Of []struct{ State string } }
	asJSON := capstan(t, "undo", "first", "--data-dir", data, "--dry-run", "-o", "json").mustEnd(t, exit.OK)
	if err := json.Unmarshal([]byte(asJSON.out), &plan); err != nil || len(plan.Of) != 3 || plan.Of[1].State != "Impossible" {
		t.Errorf("want the plan as JSON, have %v and %s", err, asJSON.out)
	}
	unconfirmed := capstan(t, "undo", "first", "--data-dir", data, "-f", dir, "--approve", "all").mustEnd(t, exit.Usage)
	mustSay(t, unconfirmed.err, "set --yes to undo")
	mustSay(t, capstan(t, "undo", "first", "--data-dir", data, "--call", "call_9", "--dry-run").mustEnd(t, exit.Failed).err,
		`has no call "call_9" that may have changed something`)
	waits := capstan(t, "undo", "first", "--data-dir", data, "-f", dir).mustEnd(t, exit.Parked)
	mustSay(t, waits.err, "approval is required for remove_note (call_3), remove_note (call_1)")
	if !hasNote("1042") || !hasNote("1061") {
		t.Fatal("want both notes before the approval")
	}

	selected := capstan(t, "undo", "first", "--data-dir", data, "--call", "call_3", "--dry-run").mustEnd(t, exit.OK)
	mustSay(t, selected.out, "add_note (call call_3)\n    undo with", "add_note (call call_1)\n    not selected\n")
	one := capstan(t, "undo", "first", "--data-dir", data, "-f", dir, "--yes", "--approve", "all", "--call", "call_3",
		"-o", "json").mustEnd(t, exit.Failed)
	turn := turnOf(t, one.out)
	if turn.Status.StopReason != v1alpha1.StopUndoIncomplete || hasNote("1061") || !hasNote("1042") {
		t.Errorf("want the note of call_3 undone and the others left, have %s: %+v", turn.Status.StopReason, turn.Status.Result)
	}
	mustSay(t, turn.Status.Result.Text, "add_note (call call_1): not undone: it was not selected\n")
	mustSay(t, one.err, `2 of 3 calls of the turn "first" are not undone (call_2, call_1): the result has the reasons`)
	mustSay(t, capstan(t, "undo", "first", "--data-dir", data, "--call", "call_3").mustEnd(t, exit.Failed).err,
		"not undone again: the Turn", "no selected call of Turn default/first can be undone")
	mustSay(t, capstan(t, "logs", turn.Name, "--data-dir", data).mustEnd(t, exit.OK).out,
		"undoes 1 call of Turn first; 1 call cannot be undone or was undone before; 1 call not selected")
	all := call{terminal: true, stdin: "y\n", env: map[string]string{"TERM": "dumb"}}.run(t.Context(), "undo", "first",
		"--data-dir", data, "-f", dir).mustEnd(t, exit.Failed)
	mustSay(t, all.err, "approve? [y/N]",
		`UndoIncomplete: 1 of 3 calls of the turn "first" are not undone`)
	mustSay(t, all.out, "add_note (call call_3): the Turn \"first-undo-", "has undone the call\n",
		"add_note (call call_1): undone by remove_note\n",
		"close_ticket (call call_2): not undone: the ToolServer declared no compensation")
	if hasNote("1042") {
		t.Error("want both notes undone")
	}

	left := capstan(t, "undo", "first", "--data-dir", data, "--call", "call_3", "-o", "json").mustEnd(t, exit.Failed)
	if err := json.Unmarshal([]byte(left.out), &plan); err != nil || len(plan.Of) != 3 || plan.Of[0].State != "Done" {
		t.Errorf("want the plan as JSON if nothing can be undone, have %v and %s", err, left.out)
	}
	logs := capstan(t, "logs", "first", "--data-dir", data).mustEnd(t, exit.OK)
	mustSay(t, logs.out, "begins to undo the call call_3", "has undone the call call_1")
	again := capstan(t, "run", "-f", dir, "--data-dir", data).mustEnd(t, exit.OK)
	mustSay(t, again.err, "does not run again")
	compared := capstan(t, "backtest", "-m", dir, "--agent", "support", "--data-dir", data).mustEnd(t, exit.OK)
	mustSay(t, compared.out, "first") // the Turn counts as ended, although entries about the undo follow its end
}
