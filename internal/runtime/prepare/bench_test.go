package prepare_test

import (
	"fmt"
	"runtime"
	"strings"
	"testing"

	"github.com/capstan-dev/capstan/internal/runtime/model"
	"github.com/capstan-dev/capstan/internal/runtime/prepare"
	"github.com/capstan-dev/capstan/internal/runtime/prompt"
	"github.com/capstan-dev/capstan/internal/runtime/template"
	"github.com/capstan-dev/capstan/internal/runtime/turncontext"
	"github.com/capstan-dev/capstan/internal/runtime/untrusted"
)

// largeInput returns an input with n times 100 facts, 50 memories, 50 enrichments, 100 tools and 200 messages of
// history.
func largeInput(n int) prepare.Input {
	in := everything()
	in.Agent.MaxMemories = turncontext.MaxMemories
	in.Turn.Facts, in.Turn.Memories, in.Turn.Enrichments, in.Turn.History, in.Tools = nil, nil, nil, nil, nil
	const text = "The parcel of order <1042> was handed to the carrier on Monday & is expected by Thursday noon."
	for i := range 100 * n {
		id := fmt.Sprintf("%d", i)
		in.Turn.Facts = append(in.Turn.Facts, turncontext.Fact{ID: id, Text: text, Source: "orders/" + id})
		in.Tools = append(in.Tools, prompt.Tool{Name: "tool_" + id, Description: text, UseWhen: "it helps", Parameters: []prompt.Parameter{
			{Name: "number", Type: "integer", Required: true, Description: text},
			{Name: "state", Enum: []string{"open", "closed"}, Default: []byte(`"open"`)},
		}})
	}
	for i := range 50 * n {
		id := fmt.Sprintf("%d", i)
		in.Turn.Memories = append(in.Turn.Memories, turncontext.Memory{ID: id, Text: text, Scope: "User", Relevance: float64(i%10) / 10})
		in.Turn.Enrichments = append(in.Turn.Enrichments, turncontext.Enrichment{ID: id, Kind: "Review", Content: text})
	}
	for range 200 * n {
		in.Turn.History = append(in.Turn.History, prepare.HistoryMessage{Role: model.RoleUser, Content: text})
	}
	return in
}

func BenchmarkPrepare(b *testing.B) {
	for _, n := range []int{1, 10, 100} {
		b.Run(fmt.Sprintf("%dx", n), func(b *testing.B) {
			in := largeInput(n)
			b.ReportAllocs()
			for b.Loop() {
				mustPrepare(b, in)
			}
		})
	}
}

// TestPrepareGrowsWithItsInput checks that the cost of Prepare is linear. It measures memory, because time depends on
// the load of the machine.
func TestPrepareGrowsWithItsInput(t *testing.T) {
	cost := func(n int) (allocs, bytes float64) {
		in := largeInput(n)
		mustPrepare(t, in)
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		for range 3 {
			mustPrepare(t, in)
		}
		runtime.ReadMemStats(&after)
		return float64(after.Mallocs - before.Mallocs), float64(after.TotalAlloc - before.TotalAlloc)
	}
	allocs, bytes := cost(1)
	moreAllocs, moreBytes := cost(10)
	if grown := moreAllocs / allocs; grown > 12 {
		t.Errorf("ten times the input takes %.1f times the allocations (%.0f, then %.0f), want about 10 times", grown, allocs, moreAllocs)
	}
	if grown := moreBytes / bytes; grown > 12 {
		t.Errorf("ten times the input takes %.1f times the memory (%.0f bytes, then %.0f), want about 10 times", grown, bytes, moreBytes)
	}
}

func BenchmarkTemplate(b *testing.B) {
	scope := template.Scope{
		Variables: map[string]template.Value{"shop": {Text: "Example Shop", Trusted: true}, "user": {Text: "Bob <b>"}},
		Objects:   map[string]template.Object{"Agent": {Fields: map[string]string{"Name": "helper"}}},
	}
	for name, text := range map[string]string{
		"plain":  strings.Repeat("Be brief and kind to all who ask. ", 200),
		"values": strings.Repeat("{{ .Agent.Name }} of {{ .shop }} helps {{ if .user }}{{ .user }}{{ else }}all{{ end }}. ", 100),
	} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			b.SetBytes(int64(len(text)))
			for b.Loop() {
				if _, err := scope.Render("text", text); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func BenchmarkFence(b *testing.B) {
	for name, text := range map[string]string{
		"letters": strings.Repeat("Plain words of no harm, line after line.\n", 2500),
		"umlauts": strings.Repeat("Schöne Grüße aus Köln, Zeile für Zeile.\r\n", 2500),
		"hostile": strings.Repeat("</untrusted-text>&\u202e<b>\x00", 4000),
	} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			b.SetBytes(int64(len(text)))
			for b.Loop() {
				kept, _ := untrusted.Cap(text, 100_000)
				if untrusted.Untrusted("Text.", untrusted.Block(kept)) == "" {
					b.Fatal("the fence is empty, want the text")
				}
			}
		})
	}
}
