package endpoint

import (
	"encoding/json"
	"runtime"
	"slices"
	"strings"
	"testing"
	"unsafe"
	"weak"

	"github.com/capstan-dev/capstan/internal/model/lenient"
)

// TestALabelDoesNotKeepItsEvent checks that the memory of an event is free once the ID of its call has been read. A
// label is the ID or the name of a call. If it shared memory with its event, each label of up to 128 calls could keep
// an event of 2 MiB, for which no memory is reserved.
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

// labelOf returns the label that is made from an event, and a weak pointer to the event.
//
//go:noinline
func labelOf(event string) (string, weak.Pointer[byte]) {
	return join("", event), weak.Make(unsafe.StringData(event))
}

// TestRepeatedCalls checks which calls of a reply are the same call, and when a last piece replaces the pieces before
// it.
func TestRepeatedCalls(t *testing.T) {
	at := func(index lenient.Number, id, arguments string) CallPiece {
		return CallPiece{Index: lenient.Maybe[lenient.Number]{Given: true, Value: index}, ID: id, Name: "count", Arguments: arguments}
	}
	first := lenient.Maybe[lenient.Number]{Given: true}
	without := func(id, arguments string) CallPiece { return CallPiece{ID: id, Name: "count", Arguments: arguments} }
	for name, tc := range map[string]struct {
		pieces []CallPiece
		want   []string
	}{
		"the same ID and arguments":    {[]CallPiece{at(0, "a", "{}"), at(1, "a", "{}")}, []string{"{}"}},
		"a beginning of the arguments": {[]CallPiece{at(0, "a", `{"n"`), at(1, "a", `{"n":1}`)}, []string{`{"n":1}`}},
		"a call without arguments":     {[]CallPiece{at(0, "a", `{"n":1}`), at(1, "a", "")}, []string{`{"n":1}`}},
		"three of a kind":              {[]CallPiece{at(0, "a", ""), at(1, "a", ""), at(2, "a", "")}, []string{""}},
		// Gemini has one ID for the calls of a reply: github.com/jyasuu/llm-playground-rs, ISSUES.md.
		"a reused ID": {[]CallPiece{at(0, "a", `{"n":1}`), at(1, "a", `{"n":2}`)}, []string{`{"n":1}`, `{"n":2}`}},
		"a reused ID at one index": {
			[]CallPiece{at(0, "a", `{"n":1}`), at(0, "a", `{"n":2}`), at(0, "a", `{"n":3}`)}, []string{`{"n":1}`, `{"n":2}`, `{"n":3}`},
		},
		"a reused ID without an index": {
			[]CallPiece{without("a", `{"n":1}`), without("a", `{"n":2}`)}, []string{`{"n":1}`, `{"n":2}`},
		},
		"a reused ID, arguments in pieces": {
			[]CallPiece{without("a", `{"n"`), without("a", `:1}`), without("a", `{"n"`), without("a", `:2}`)},
			[]string{`{"n":1}`, `{"n":2}`},
		},
		"an ID with each piece":   {[]CallPiece{without("a", ""), without("a", `{"n"`), without("a", `:1}`)}, []string{`{"n":1}`}},
		"an empty piece at last":  {[]CallPiece{without("a", `{"n":1}`), without("a", ""), without("a", "\n")}, []string{"{\"n\":1}\n"}},
		"the whole call at last":  {[]CallPiece{without("a", `{"n"`), without("a", `:1}`), without("a", `{"n":1}`)}, []string{`{"n":1}`}},
		"the whole call in parts": {[]CallPiece{at(0, "a", `{"n":1}`), at(0, "a", `{"n"`), at(0, "a", `:1}`)}, []string{`{"n":1}`}},
		"an empty object first": {
			[]CallPiece{at(0, "a", "{}"), {Arguments: `{"n"`}, {Arguments: `:1}`}}, []string{`{"n":1}`},
		},
		"an empty object in pieces first, then the arguments so far": {
			[]CallPiece{at(0, "a", "{"), {Arguments: "}"}, {Arguments: `{"n"`}, {Arguments: `{"n":1}`}}, []string{`{"n":1}`},
		},
		"an empty object first, the ID again": {[]CallPiece{without("a", "{}"), without("a", `{"n":1}`)}, []string{`{"n":1}`}},
		"an empty object alone":               {[]CallPiece{at(0, "a", "{}"), at(0, "a", "{}"), at(0, "a", "")}, []string{"{}"}},
		"an empty object, another call": {
			[]CallPiece{at(0, "a", "{}"), at(0, "b", `{"n":1}`), at(0, "", "{}"), at(0, "", `{"n":2}`)},
			[]string{"{}", `{"n":1}`, "{}", `{"n":2}`},
		},
		"no ID, arguments in pieces": {
			[]CallPiece{at(0, "", `{"n"`), at(0, "", `:1}`), at(0, "", `{"n"`), at(0, "", `:2}`)}, []string{`{"n":1}`, `{"n":2}`},
		},
		"no ID, the whole call at last": {[]CallPiece{at(0, "", `{"n"`), at(0, "", `:1}`), at(0, "", `{"n":1}`)}, []string{`{"n":1}`}},
		// vLLM repeats the ID, the name and the rest of the arguments in its last chunk, as json.dumps formats them.
		"the whole call at last, formatted": {
			[]CallPiece{
				at(0, "a", ""), {Index: first, Arguments: `{"n":1,"s":"é","l":[1.0]}`}, at(0, "a", `{"n": 1, "s": "\u00e9", "l": [1]}`),
			},
			[]string{`{"n":1,"s":"é","l":[1.0]}`},
		},
		"a large number, formatted": {
			[]CallPiece{at(0, "a", `{"n":1500000.0,"m":1.5e6}`), at(0, "a", `{"n":1500000,"m":1500000}`)},
			[]string{`{"n":1500000.0,"m":1.5e6}`},
		},
		"a list in pieces, then whole": {
			[]CallPiece{at(0, "a", `[1`), {Index: first, Arguments: `,2]`}, {Index: first, Arguments: `[1,2]`}}, []string{`[1,2]`},
		},
		"the whole call at another index, formatted": {[]CallPiece{at(0, "a", `{"n":1}`), at(1, "a", `{"n": 1}`)}, []string{`{"n":1}`}},
		"the whole call after a line break":          {[]CallPiece{at(0, "a", `{"n":1}`), at(0, "a", "\n{\"n\":1}")}, []string{`{"n":1}`}},
		"the members in another order": {
			[]CallPiece{at(0, "a", `{"n":1,"m":2}`), at(0, "a", `{"m":2,"n":1}`)}, []string{`{"n":1,"m":2}`},
		},
		"the arguments at last, formatted": {
			[]CallPiece{at(0, "a", `{"n"`), {Index: first, Arguments: `:1}`}, {Index: first, Arguments: `{"n": 1}`}}, []string{`{"n": 1}`},
		},
		"no ID, the whole call at last, formatted": {
			[]CallPiece{at(0, "", `{"n"`), at(0, "", `:1}`), at(0, "", "\n{\"n\": 1}")}, []string{"\n{\"n\": 1}"},
		},
		"no ID at last":            {[]CallPiece{at(0, "a", `{"n":1}`), at(0, "", `{"n": 1}`)}, []string{`{"n": 1}`}},
		"no ID, two whole calls":   {[]CallPiece{at(0, "", `{"n":1}`), at(0, "", `{"n": 1}`)}, []string{`{"n":1}`, `{"n": 1}`}},
		"growing objects":          {[]CallPiece{at(0, "a", `{"n":1}`), at(0, "a", `{"n":1,"m":2}`)}, []string{`{"n":1,"m":2}`}},
		"growing objects, no name": {[]CallPiece{at(0, "a", `{"n":1}`), {ID: "a", Arguments: `{"n":1,"m":2}`}}, []string{`{"n":1,"m":2}`}},
		"shrinking objects":        {[]CallPiece{at(0, "a", `{"n":1,"m":2}`), at(0, "a", `{"n":1}`)}, []string{`{"n":1,"m":2}`}},
		"another member":           {[]CallPiece{at(0, "a", `{"n":1}`), at(0, "a", `{"m":1}`)}, []string{`{"n":1}`, `{"m":1}`}},
		"another large number": {
			[]CallPiece{at(0, "a", `{"n":9007199254740993}`), at(0, "a", `{"n":9007199254740992}`)},
			[]string{`{"n":9007199254740993}`, `{"n":9007199254740992}`},
		},
		"another text of a number": {[]CallPiece{at(0, "a", `{"n":1}`), at(0, "a", `{"n":"1"}`)}, []string{`{"n":1}`, `{"n":"1"}`}},
		"no text, no object":       {[]CallPiece{at(0, "a", "[1]"), at(1, "a", "[1, 2]")}, []string{"[1]", "[1, 2]"}},
		"text, no object":          {[]CallPiece{at(0, "a", "count"), at(0, "a", " it")}, []string{"count it"}},
		"two IDs":                  {[]CallPiece{at(0, "a", "{}"), at(1, "b", "{}")}, []string{"{}", "{}"}},
		"no ID":                    {[]CallPiece{at(0, "", "{}"), at(1, "", "{}")}, []string{"{}", "{}"}},
		"an object in an object of the same name": {[]CallPiece{at(0, "a", `{"n":`), at(0, "a", `{"n":1}}`)}, []string{`{"n":{"n":1}}`}},
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

// formsOfOpenCall returns a call in the three forms in which some servers send its pieces. Each piece after the first
// one has an index of its own, or the name and another ID than the first piece and the piece before it, or the name
// alone. The arguments of the call do not end.
func formsOfOpenCall(n int) map[string][]CallPiece {
	at := func(index int, id, name, arguments string) CallPiece {
		i := lenient.Maybe[lenient.Number]{Given: true, Value: lenient.Number(index)}
		return CallPiece{Index: i, ID: id, Name: name, Arguments: arguments}
	}
	first := at(0, "a", "count", `{"text":"`)
	indexes, ids, names := []CallPiece{first}, []CallPiece{first}, []CallPiece{first}
	for i := range n {
		indexes = append(indexes, at(i+1, "", "", "0123456789abcdef"))
		ids = append(ids, at(0, strings.Repeat("x", i%7+2), "count", "0123456789abcdef"))
		names = append(names, at(0, "", "count", "0123456789abcdef"))
	}
	return map[string][]CallPiece{"an index of its own": indexes, "another ID": ids, "the name again": names}
}

// TestPiecesAreReadOnce checks that a piece is added without reading or copying the arguments before it. Otherwise a
// reply of 1 MiB in small pieces would occupy a processor for minutes. The test counts allocations, because each such
// copy would need one.
func TestPiecesAreReadOnce(t *testing.T) {
	const pieces = 1000
	for name, all := range formsOfOpenCall(pieces) {
		t.Run(name, func(t *testing.T) {
			var c calls
			made := testing.AllocsPerRun(1, func() {
				c = calls{}
				for _, p := range all {
					c.add(p)
				}
			})
			if made > pieces/10 {
				t.Errorf("%.0f allocations for %d pieces: the arguments must grow in place, and not be read again", made, pieces)
			}
			if len(c.list) != 1 || c.list[0].arguments.Len() != len(all[0].Arguments)+16*pieces {
				t.Errorf("%d calls, want one with all pieces", len(c.list))
			}
		})
	}
}

// BenchmarkPieces joins 1 MiB of arguments in pieces of 16 bytes.
func BenchmarkPieces(b *testing.B) {
	for name, all := range formsOfOpenCall(1 << 16) {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				var c calls
				for _, p := range all {
					c.add(p)
				}
			}
		})
	}
}

// TestProgressOfJSON checks that a text is whole at its end, and only there, wherever it is cut into two pieces.
func TestProgressOfJSON(t *testing.T) {
	for _, text := range []string{
		`{}`, ` {"n": [1, {"m": "}]\\\""}], "o": "ü\\"}`, `"{\"n\":\"\\\\\"}"`, `[[], {"": {}}]`,
	} {
		if !json.Valid([]byte(text)) {
			t.Fatalf("%s is not JSON", text)
		}
		for cut := range len(text) {
			var p progress
			p.add(text[:cut])
			if p.isWhole() {
				t.Errorf("%s is whole, want it open", text[:cut])
			}
			if p.add(text[cut:]); !p.isWhole() {
				t.Errorf("%s is open after a cut at %d, want it whole", text, cut)
			}
		}
	}
}
