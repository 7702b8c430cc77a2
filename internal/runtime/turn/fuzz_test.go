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

// FuzzReplay goes on with a journal of which one entry has another payload, or another kind: a damaged journal ends the run
// with an error, or the Turn in some way, and never the process.
func FuzzReplay(f *testing.F) {
	c, _ := candidate("p0", 2, fails(model.Overloaded), asks("send", `{}`), says("Done."))
	in := input(c)
	in.Tools = []tool.Tool{named("send", tool.Destructive, saying("sent"))}
	whole := &journaltest.Memory{}
	if _, err := engine(whole).Run(f.Context(), in); err != nil {
		f.Fatal(err)
	}
	written := entries(f, whole, "uid")
	for i, e := range written {
		f.Add(i, string(e.Kind), string(e.Payload), len(written))
		f.Add(i, string(e.Kind), `null`, i+1)
		f.Add(i, string(e.Kind), `{}`, i+1)
		f.Add(i, string(e.Kind), `{}`, len(written))
		f.Add(i, string(e.Kind), `[1e999]`, i+1)
		f.Add(0, string(e.Kind), string(e.Payload), 1)
	}
	f.Add(7, "model.replied", `{"step":1,"reply":{"toolCalls":[{"id":"","name":"","arguments":""},{"id":"","name":"send","arguments":"{}"}]}}`, 8)
	f.Add(7, "model.replied", `{"step":-9,"reply":{"text":"x","finishReason":"length","usage":{"inputTokens":-1}},"cost":{"amount":"1e99","currency":""}}`, 8)
	f.Fuzz(func(t *testing.T, at int, kind, payload string, n int) {
		n = min(max(n, 1), len(written))
		damaged := append([]journal.Entry(nil), written[:n]...)
		e := &damaged[min(max(at, 0), n-1)]
		e.Kind, e.Payload = journal.Kind(kind), json.RawMessage(payload)
		j := &journaltest.Memory{}
		if err := j.Append(t.Context(), "uid", damaged...); err != nil {
			t.Fatal(err)
		}
		c, _ := candidate("p0", 2, fails(model.Overloaded), asks("send", `{}`), says("Done."))
		in := input(c)
		in.Session = &turn.Session{UID: "talk-uid", Name: "talk"}
		in.Epoch, in.Tools, in.Limits = 2, []tool.Tool{named("send", tool.Destructive, saying("sent"))}, loop.Limits{MaxSteps: 2, MaxToolCalls: 2, MaxTokens: 1e6}
		result, err := engine(j).Run(t.Context(), in)
		if (result == nil) == (err == nil) {
			t.Errorf("Run = %+v, %v; want a result or an error", result, err)
		}
	})
}
