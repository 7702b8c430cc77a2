package endpoint

import (
	"runtime"
	"slices"
	"strings"
	"testing"
	"unsafe"
	"weak"

	"github.com/capstan-dev/capstan/internal/model/lenient"
)

// TestALabelDoesNotKeepItsEvent checks that the memory of an event is free once the ID of its call has been read. An
// ID may be part of an event of 2 MiB, a reply may have 128 calls, and the reply reserves memory for neither.
func TestALabelDoesNotKeepItsEvent(t *testing.T) {
	label, event := labelOf(strings.Repeat("x", 1<<20))
	runtime.GC()
	if event.Value() != nil {
		t.Error("the label keeps the memory of the event")
	}
	if len(label) != maxLabel {
		t.Errorf("the label has %d bytes, want %d", len(label), maxLabel)
	}
	runtime.KeepAlive(label)
}

// labelOf returns the label that begins with an event, and where the event is in memory.
//
//go:noinline
func labelOf(event string) (string, weak.Pointer[byte]) {
	return join("", event), weak.Make(unsafe.StringData(event))
}

// TestRepeatedCalls checks which calls of a reply are the same one.
func TestRepeatedCalls(t *testing.T) {
	at := func(index lenient.Number, id, arguments string) CallPiece {
		return CallPiece{Index: lenient.Maybe[lenient.Number]{Given: true, Value: index}, ID: id, Name: "count", Arguments: arguments}
	}
	for name, tc := range map[string]struct {
		pieces []CallPiece
		want   []string
	}{
		"the same ID and arguments":    {[]CallPiece{at(0, "a", "{}"), at(1, "a", "{}")}, []string{"{}"}},
		"a beginning of the arguments": {[]CallPiece{at(0, "a", `{"n"`), at(1, "a", `{"n":1}`)}, []string{`{"n":1}`}},
		"a call without arguments":     {[]CallPiece{at(0, "a", `{"n":1}`), at(1, "a", "")}, []string{`{"n":1}`}},
		"three of a kind":              {[]CallPiece{at(0, "a", ""), at(1, "a", ""), at(2, "a", "")}, []string{""}},
		// Gemini has one ID for the calls of a reply: github.com/jyasuu/llm-playground-rs, ISSUES.md.
		"a reused ID":        {[]CallPiece{at(0, "a", `{"n":1}`), at(1, "a", `{"n":2}`)}, []string{`{"n":1}`, `{"n":2}`}},
		"two IDs":            {[]CallPiece{at(0, "a", "{}"), at(1, "b", "{}")}, []string{"{}", "{}"}},
		"no ID":              {[]CallPiece{at(0, "", "{}"), at(1, "", "{}")}, []string{"{}", "{}"}},
		"nested names":       {[]CallPiece{at(0, "a", `{"n":`), at(0, "a", `{"n":1}}`)}, []string{`{"n":{"n":1}}`}},
		"no JSON at all":     {[]CallPiece{at(0, "a", `{"n`), at(0, "a", `{"n":`)}, []string{`{"n{"n":`}},
		"another last piece": {[]CallPiece{at(0, "a", `{"n":1`), at(0, "a", `{"m":2}`)}, []string{`{"n":1{"m":2}`}},
	} {
		t.Run(name, func(t *testing.T) {
			var c calls
			for _, p := range tc.pieces {
				c.add(p)
			}
			found, err := c.finish()
			var got []string
			for _, call := range found {
				got = append(got, call.Arguments)
			}
			if err != nil || !slices.Equal(got, tc.want) {
				t.Errorf("arguments of the calls are %q (error %v), want %q", got, err, tc.want)
			}
		})
	}
}
