package turn_test

import (
	"encoding/json"
	"testing"

	"github.com/capstan-dev/capstan/internal/runtime/journal"
	"github.com/capstan-dev/capstan/internal/runtime/journal/journaltest"
	"github.com/capstan-dev/capstan/internal/runtime/loop"
	"github.com/capstan-dev/capstan/internal/runtime/model"
	"github.com/capstan-dev/capstan/internal/runtime/tool"
	"github.com/capstan-dev/capstan/internal/runtime/turn"
)

// damagedAt returns a journal with the first n of the written entries. The entry at the given index has another payload
// or kind.
func damagedAt(t *testing.T, written []journal.Entry, index int, kind, payload string, n int) journal.Journal {
	t.Helper()
	n = min(max(n, 1), len(written))
	damaged := append([]journal.Entry(nil), written[:n]...)
	e := &damaged[min(max(index, 0), n-1)]
	e.Kind, e.Payload = journal.Kind(kind), json.RawMessage(payload)
	j := &journaltest.Store{}
	if err := j.Append(t.Context(), "uid", damaged...); err != nil {
		t.Fatal(err)
	}
	return j
}

// seed adds seeds that damage each entry in several ways.
func seed(f *testing.F, written []journal.Entry) {
	f.Helper()
	for i, e := range written {
		f.Add(i, string(e.Kind), string(e.Payload), len(written))
		f.Add(i, string(e.Kind), `null`, i+1)
		f.Add(i, string(e.Kind), `{}`, i+1)
		f.Add(i, string(e.Kind), `{}`, len(written))
		f.Add(i, string(e.Kind), `[1e999]`, i+1)
		f.Add(0, string(e.Kind), string(e.Payload), 1)
	}
}

// FuzzReplay continues from a journal in which one entry has another payload or kind. A damaged journal may end the run
// with an error, or end the Turn, but must never end the process.
func FuzzReplay(f *testing.F) {
	c, _ := candidate("p0", 2, fails(model.Overloaded), asks("send", `{}`), says("Done."))
	in := input(c)
	in.Tools = []tool.Tool{named("send", tool.Destructive, saying("sent"))}
	whole := &journaltest.Store{}
	if _, err := engine(whole).Run(f.Context(), new(in)); err != nil {
		f.Fatal(err)
	}
	written := entries(f, whole, "uid")
	seed(f, written)
	f.Add(8, "model.replied",
		`{"step":1,"reply":{"toolCalls":[{"id":"","name":"","arguments":""},{"id":"","name":"send","arguments":"{}"}]}}`, 9)
	f.Add(8, "model.replied",
		`{"step":-9,"reply":{"text":"x","finishReason":"length","usage":{"inputTokens":-1}},"cost":{"amount":"1e99","currency":""}}`, 9)
	f.Fuzz(func(t *testing.T, at int, kind, payload string, n int) {
		j := damagedAt(t, written, at, kind, payload, n)
		c, _ := candidate("p0", 2, fails(model.Overloaded), asks("send", `{}`), says("Done."))
		in := input(c)
		in.Session = &turn.Session{UID: "talk-uid", Name: "talk"}
		in.Epoch, in.Tools, in.Limits = 2, []tool.Tool{named("send", tool.Destructive, saying("sent"))},
			loop.Limits{MaxSteps: 2, MaxToolCalls: 2, MaxDescendants: 25, MaxTokens: 1e6}
		result, err := engine(j).Run(t.Context(), new(in))
		if (result == nil) == (err == nil) {
			t.Errorf("Run = %+v, %v; want a result or an error", result, err)
		}
	})
}

// FuzzReplayOfEverything is FuzzReplay for the journal of a Turn with all features.
func FuzzReplayOfEverything(f *testing.F) {
	whole := &journaltest.Store{}
	if _, _, _, err := newWorld(f, whole, "uid", everything).run(1, false, nil); err != nil {
		f.Fatal(err)
	}
	written := entries(f, whole, "uid")
	for i := range written {
		written[i].Epoch = 1
	}
	seed(f, written)
	f.Add(1, "tools.exposed",
		`{"nonce":"","tools":[{"name":""},{"name":"a","schema":7},{"name":"a","source":{"agent":"x"}}],"packs":[{"name":"p"},{}]}`, 2)
	f.Add(2, "tool.finished",
		`{"step":0,"callID":"context-pack-1","outcome":"Succeeded","content":"[[1]]","artifactName":"x","artifact":"y"}`, 3)
	f.Fuzz(func(t *testing.T, at int, kind, payload string, n int) {
		j := damagedAt(t, written, at, kind, payload, n)
		c, _ := candidate("p0", 2, asks("read_artifact", `{"name":"call-1-2"}`), says(`{"done":1}`))
		c.ContextWindow = 20_000
		in := input(c)
		withEverything(nil, &in)
		in.Epoch, in.Toolbox, in.Decide = 2, server("kb", remote("find", "", tool.ReadOnly)), deciding(0, true)
		in.Chain[0].ContextWindow = 20_000
		in.Session = &turn.Session{UID: "talk-uid", Name: "talk"}
		in.Limits = loop.Limits{MaxSteps: 7, MaxToolCalls: 20, MaxDescendants: 25}
		in.Progress = func(p turn.Progress) {
			if len(p.Calls) > turn.MaxCalls {
				t.Errorf("progress lists %d calls", len(p.Calls))
			}
		}
		result, err := engine(j).Run(t.Context(), new(in))
		if (result == nil) == (err == nil) {
			t.Errorf("Run = %+v, %v; want a result or an error", result, err)
		}
	})
}
