package loop_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/capstan-dev/capstan/internal/runtime/journal/journaltest"
	"github.com/capstan-dev/capstan/internal/runtime/loop"
	"github.com/capstan-dev/capstan/internal/runtime/tool"
)

// TestOutputs looks at what the model is told of an output and what the journal has of it.
func TestOutputs(t *testing.T) {
	const most = 12_000
	for name, tc := range map[string]struct {
		reason, output string
		head, tail     string // of what the model is told; the whole where tail is empty
		out            int    // bytes that are left out; 0 for none
	}{
		"short":            {"told whole", "found", "found", "", 0},
		"at the bound":     {"told whole", strings.Repeat("x", most), strings.Repeat("x", most), "", 0},
		"beyond":           {"the head and the tail are told", strings.Repeat("a", most) + strings.Repeat("z", most), strings.Repeat("a", most/2), strings.Repeat("z", most/2), most},
		"between letters":  {"a character stays whole at both cuts", "x" + strings.Repeat("ü", most) + "y", "x" + strings.Repeat("ü", most/4-1), strings.Repeat("ü", most/4-1) + "y", most + 4},
		"wide characters":  {"of any width", "x" + strings.Repeat("🙂", most) + "yz", "x" + strings.Repeat("🙂", most/8-1), strings.Repeat("🙂", most/8-1) + "yz", most*3 + 8},
		"no UTF-8":         {"what is none becomes a sign for it", "a\xffb", "a\uFFFDb", "", 0},
		"long and no UTF8": {"and the journal has it as it was", strings.Repeat("\xffa", most), strings.Repeat("\uFFFDa", most/8), strings.Repeat("\uFFFDa", most/8), most * 3},
	} {
		for _, failed := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, failed %t", name, failed), func(t *testing.T) {
				j := &journaltest.Memory{}
				c, s := candidate("one", 1, asksFor("", call("c1", "find", `{}`)), says("Done."))
				r, prefix := result{content: tc.output}, ""
				if failed {
					r, prefix = result{err: errors.New(tc.output)}, "error (failed): "
				}
				find, _ := toolOf("find", tool.ReadOnly, r)
				in := with(inputOf(t, j, 1, c), find)
				if _, err := loop.Run(t.Context(), in); err != nil {
					t.Fatal(err)
				}
				f, told := in.State.Finishes[0], s.requests[1].Messages[3].Content
				if told != f.Content || !utf8.ValidString(told) || len(told) > most+100 {
					t.Errorf("the model was told %d bytes (UTF-8: %t), want what the journal has, %d at most", len(told), utf8.ValidString(told), most)
				}
				if failed {
					if !strings.HasPrefix(told, prefix) || (f.Artifact != "") != (len(strings.ToValidUTF8(prefix+tc.output, "\uFFFD")) > most) {
						t.Errorf("the model was told %.40q, with an artifact: %t", told, f.Artifact != "")
					}
				} else {
					want := tc.head
					if tc.tail != "" {
						want = fmt.Sprintf("%s\n[... %d bytes are left out here ...]\n%s", tc.head, tc.out, tc.tail)
					}
					if told != want || f.Bytes != int64(len(tc.output)) || (f.Artifact != "") != (tc.tail != "") {
						t.Errorf("the model was told %d bytes %.30q ... %.60q of %d, want %d: %s", len(told), told, told[len(told)*49/100:], f.Bytes, len(want), tc.reason)
					}
				}
				if f.Artifact == "" {
					return
				}
				a, err := j.Artifact(t.Context(), "uid", f.Artifact)
				if err != nil {
					t.Fatal(err)
				}
				if content, err := a.Content(); err != nil || string(content) != prefix+tc.output || f.Bytes != int64(len(content)) {
					t.Errorf("the artifact has %d bytes (error %v), want the whole output", len(content), err)
				}
			})
		}
	}
}

// TestAnEnormousOutput would end every run of its Turn if it were kept whole: no entry may be that large.
func TestAnEnormousOutput(t *testing.T) {
	j := &journaltest.Memory{}
	c, _ := candidate("one", 1, asksFor("", call("c1", "find", `{}`)), says("Done."))
	find, _ := toolOf("find", tool.ReadOnly, result{content: strings.Repeat("x", 65<<20)})
	in := with(inputOf(t, j, 1, c), find)
	if _, err := loop.Run(t.Context(), in); err != nil {
		t.Fatal(err)
	}
	f := in.State.Finishes[0]
	if f.Outcome != loop.Succeeded || f.Bytes != 65<<20 {
		t.Errorf("finish of %d bytes: %s, want a success that says how much there was", f.Bytes, f.Outcome)
	}
	a, err := j.Artifact(t.Context(), "uid", f.Artifact)
	if err != nil || a.Bytes != 32<<20 {
		t.Errorf("the artifact has %d bytes (error %v), want the first 32 MiB", a.Bytes, err)
	}
}
