package turn_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/capstan-dev/capstan/internal/runtime/journal"
	"github.com/capstan-dev/capstan/internal/runtime/journal/journaltest"
	"github.com/capstan-dev/capstan/internal/runtime/loop"
	"github.com/capstan-dev/capstan/internal/runtime/model"
	"github.com/capstan-dev/capstan/internal/runtime/tool"
)

// long is an output that is too long for a message: 25,000 characters of two bytes each.
var long = strings.Repeat("é", 12_500) + strings.Repeat("ü", 12_500)

func TestReadArtifact(t *testing.T) {
	const name = `Artifact "call-1-1", characters `
	for title, tc := range map[string]struct {
		reason, arguments string
		unvalidated       bool
		want              string
	}{
		"beginning": {
			"the default limit is 8,000 characters", `{"name":"call-1-1"}`, false,
			name + "0 to 8000 of 25000; continue at offset 8000.\n" + strings.Repeat("é", 8000),
		},
		"middle": {
			"offset and limit count characters, not bytes", `{"name":"call-1-1","offset":12499,"limit":2}`, false,
			name + "12499 to 12501 of 25000; continue at offset 12501.\néü",
		},
		"end": {
			"the last page ends where the artifact ends", `{"name":"call-1-1","offset":24998}`, false,
			name + "24998 to 25000 of 25000; this is the end.\nüü",
		},
		"limit above the maximum": {
			"the maximum limit is 10,000 characters", `{"name":"call-1-1","limit":99999}`, false,
			name + "0 to 10000 of 25000; continue at offset 10000.\n" + strings.Repeat("é", 10000),
		},
		"offset at the end": {
			"the artifact ends before this offset", `{"name":"call-1-1","offset":25000}`, false,
			`error (invalid_arguments): offset: must be below 25000, the number of characters of artifact "call-1-1"`,
		},
		"negative offset": {
			"a negative offset is invalid", `{"name":"call-1-1","offset":-1}`, false,
			"error (invalid_arguments): offset: must be 0 or more",
		},
		"limit 0": {
			"a page has at least one character", `{"name":"call-1-1","limit":0}`, false,
			"error (invalid_arguments): limit: must be 1 or more; at most 10000 characters are returned",
		},
		"unknown name": {
			"the error lists the known artifacts", `{"name":"call-9-9"}`, false,
			`error (invalid_arguments): name: there is no artifact "call-9-9": use one of call-1-1, call-1-2`,
		},
		"digest as name": {
			"an artifact is not found by its digest",
			`{"name":"e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"}`, false,
			`error (invalid_arguments): name: there is no artifact ` +
				`"e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855": use one of call-1-1, call-1-2`,
		},
		"text as limit": {
			"the tool itself checks the types of its arguments", `{"name":"call-1-1","limit":"x"}`, true,
			`error (invalid_arguments): the arguments must be {"name": "...", "offset": 0, "limit": 8000}`,
		},
	} {
		t.Run(title, func(t *testing.T) {
			look := calls("", call("c1", "dump"), call("c2", "dump"))
			ask := answer{reply: calls("", model.ToolCall{ID: "c3", Name: "read_artifact", Arguments: tc.arguments})}
			c, s := candidate("p0", 1, answer{reply: look}, ask, says("Done."))
			in := input(c)
			in.Policy.Unvalidated = tc.unvalidated
			in.Tools = []tool.Tool{named("dump", tool.Destructive, saying(long))}
			j := &journaltest.Store{}
			mustRun(t, j, in)
			want := tc.want
			if !strings.HasPrefix(want, "error") {
				want = fenced(t, j, want)
			}
			if got := s.requests[2].Messages; got[len(got)-1].Content != want {
				t.Errorf("the model received %.200q, want %.200q: %s", got[len(got)-1].Content, want, tc.reason)
			}
			// A run that continues before the call knows the artifacts of the earlier run.
			for n, e := range entries(t, j, "uid") {
				if e.Kind != journal.ModelReplied || decoded[loop.Step](t, e).Step != 2 {
					continue
				}
				c, s = candidate("p0", 1, says("Done."))
				in.Chain, in.Epoch, in.Preparation = []loop.Candidate{c}, 2, mustNotPrepare(t)
				mustRun(t, copyOf(t, j, &journaltest.Store{}, n+1), in)
				if got := s.requests[0].Messages; got[len(got)-1].Content != want {
					t.Errorf("after a restart the model received %.200q, want %.200q", got[len(got)-1].Content, want)
				}
			}
		})
	}
}

// TestAllOfAnArtifactCanBeRead reads an artifact page by page.
func TestAllOfAnArtifactCanBeRead(t *testing.T) {
	hostile := strings.Repeat("a<é\n", 4000) + strings.Repeat("日本", 3000)
	c, s := candidate("p0", 1, answer{reply: calls("", call("c1", "dump"))})
	in := input(c)
	in.Limits.MaxSteps = 20
	in.Tools = []tool.Tool{named("dump", tool.ReadOnly, saying(hostile))}
	for offset := 0; offset < 22_000; offset += 8000 {
		s.answers = append(s.answers, asks("read_artifact", fmt.Sprintf(`{"name":"call-1-1","offset":%d}`, offset)))
	}
	s.answers = append(s.answers, says("Done."))
	j := &journaltest.Store{}
	mustRun(t, j, in)
	var read strings.Builder
	nonce := payloads[tool.Exposure](t, j, journal.ToolsExposed)[0].Nonce
	for _, m := range s.requests[len(s.requests)-1].Messages {
		_, body, paged := strings.Cut(m.Content, "Artifact \"call-1-1\", ")
		if m.Role != model.RoleTool || !paged {
			continue
		}
		_, body, _ = strings.Cut(body, "\n")
		read.WriteString(strings.TrimSuffix(body, "\n</tool-output "+nonce+">"))
	}
	if read.String() != hostile {
		t.Errorf("%d bytes were read, want the %d bytes of the output", read.Len(), len(hostile))
	}
}

// TestReadArtifactReservesMemory checks that an artifact is read only after memory for it was reserved, and that this
// memory is released. Eight calls of each Turn may read an artifact of 32 MiB at the same time.
func TestReadArtifactReservesMemory(t *testing.T) {
	for name, tc := range map[string]struct {
		refusal error
		want    string
	}{
		"memory":    {nil, `Artifact "call-1-1", characters 0 to 8000`},
		"no memory": {&tool.Error{Class: tool.Unavailable, Message: "no memory is left"}, "error (unavailable): no memory is left"},
	} {
		t.Run(name, func(t *testing.T) {
			c, s := candidate("p0", 1, answer{reply: calls("", call("c1", "dump"))},
				asks("read_artifact", `{"name":"call-1-1"}`), says("Done."))
			in := input(c)
			in.Tools = []tool.Tool{named("dump", tool.ReadOnly, saying(long))}
			var wanted []int64
			held := 0
			in.ReserveRead = func(_ context.Context, bytes int64) (func(), error) {
				wanted = append(wanted, bytes)
				if tc.refusal != nil {
					return nil, tc.refusal
				}
				held++
				return func() { held-- }, nil
			}
			mustRun(t, &journaltest.Store{}, in)
			if !slices.Equal(wanted, []int64{int64(len(long))}) || held != 0 {
				t.Errorf("memory for outputs of %d bytes was reserved, and %d reservations are left; want one output of %d bytes, and 0",
					wanted, held, len(long))
			}
			if got := s.requests[2].Messages; !strings.Contains(got[len(got)-1].Content, tc.want) {
				t.Errorf("the model received %.200q, want %q", got[len(got)-1].Content, tc.want)
			}
		})
	}
}

// TestArtifactOfAnotherTurnIsUnknown checks that a Turn cannot read the artifacts of another Turn.
func TestArtifactOfAnotherTurnIsUnknown(t *testing.T) {
	j := &journaltest.Store{}
	c, _ := candidate("p0", 1, answer{reply: calls("", call("c1", "dump"))}, says("Done."))
	in := input(c)
	in.UID, in.Tools = "another", []tool.Tool{named("dump", tool.ReadOnly, saying(long))}
	mustRun(t, j, in)
	c, s := candidate("p0", 1, asks("read_artifact", `{"name":"call-1-1"}`), says("Done."))
	in = input(c)
	in.Tools = []tool.Tool{named("dump", tool.ReadOnly, saying("short"))}
	mustRun(t, j, in)
	const want = `error (invalid_arguments): name: there is no artifact "call-1-1": this turn has no artifacts`
	if got := s.requests[1].Messages; got[len(got)-1].Content != want {
		t.Errorf("the model received %.200q, want %q", got[len(got)-1].Content, want)
	}
}

// TestArtifactOfAnEarlierTurnInTheSession checks that the name of an artifact in the history of a Session never finds
// an artifact of a later Turn.
func TestArtifactOfAnEarlierTurnInTheSession(t *testing.T) {
	const earlier = `error (invalid_arguments): name: artifact %q belongs to an earlier turn and can no longer be read: ` +
		`call the tool that returned it again`
	j := &journaltest.Store{}
	for _, tc := range []struct {
		uid, read, want string
	}{
		{"a", "call-1-1", `Artifact "call-1-1", characters 0 to 1 of 25000`},
		{"b", "call-1-1", fmt.Sprintf(earlier, "call-1-1")},
		{"c", "turn-2-call-1-1", fmt.Sprintf(earlier, "turn-2-call-1-1")},
		{"d", "turn-4-call-1-1", `Artifact "turn-4-call-1-1", characters 0 to 1 of 25000`},
		{"e", "turn-6-call-1-1", `error (invalid_arguments): name: there is no artifact "turn-6-call-1-1": use one of turn-5-call-1-1`},
	} {
		c, s := candidate("p0", 1, answer{reply: calls("", call("c1", "dump"))},
			asks("read_artifact", fmt.Sprintf(`{"name":%q,"limit":1}`, tc.read)), says("Done."))
		in := inTalk(tc.uid, "Look.", c)
		in.Tools = []tool.Tool{named("dump", tool.ReadOnly, saying(long))}
		mustRun(t, j, in)
		if got := s.requests[2].Messages; !strings.Contains(got[len(got)-1].Content, tc.want) {
			t.Errorf("in the Turn %s the model received %.200q, want %q", tc.uid, got[len(got)-1].Content, tc.want)
		}
	}
	c, s := candidate("p0", 1, answer{reply: calls("", call("c1", "dump"))}, says("Done."))
	in := input(c)
	in.Number, in.Tools = 5, []tool.Tool{named("dump", tool.ReadOnly, saying(long))}
	mustRun(t, j, in)
	const want = `read_artifact("turn-5-call-1-1", offset, limit)`
	if got := s.requests[1].Messages; !strings.Contains(got[len(got)-1].Content, want) {
		t.Errorf("in the replay of the fifth Turn the model received %.200q, want %s", got[len(got)-1].Content, want)
	}
}

// TestArtifactsAreReadWhileTheyAreMade makes and reads artifacts in one wave, so that the race detector sees
// unsynchronized access.
func TestArtifactsAreReadWhileTheyAreMade(t *testing.T) {
	reply := calls("", call("c1", "dump"), model.ToolCall{ID: "c2", Name: "read_artifact", Arguments: `{"name":"call-1-1"}`},
		model.ToolCall{ID: "c3", Name: "dump", Arguments: `{"n":3}`},
		model.ToolCall{ID: "c4", Name: "read_artifact", Arguments: `{"name":"call-1-3"}`})
	c, _ := candidate("p0", 1, answer{reply: reply}, says("Done."))
	in := input(c)
	in.Tools = []tool.Tool{named("dump", tool.ReadOnly,
		func(context.Context, tool.Call) (tool.Result, error) { return tool.Result{Content: long}, nil })}
	if result := mustRun(t, &journaltest.Store{}, in); len(result.Calls) != 4 {
		t.Errorf("calls %+v, want four", result.Calls)
	}
}
