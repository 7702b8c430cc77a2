package cli_test

import (
	"encoding/base64"
	"strings"
	"testing"

	"github.com/capstan-dev/capstan/internal/cli/exit"
	"github.com/capstan-dev/capstan/internal/model/modeltest"
)

// kindsOfBlocks returns the types of the blocks of a message.
func kindsOfBlocks(m modeltest.AnthropicMessage) string {
	all := make([]string, 0, len(m.Content))
	for _, b := range m.Content {
		all = append(all, b.Type)
	}
	return strings.Join(all, " ")
}

// TestAttachmentsOnAnthropic runs an Agent with tools and thinking on a strict server. The first Turn has an image, a
// PDF and a text, and all requests of this Turn must contain them. The request of the second Turn must contain only
// their names.
func TestAttachmentsOnAnthropic(t *testing.T) {
	t.Parallel()
	model, url := strictAnthropic(t)
	f := onAnthropic(t, serveTools(t, "").url).with(t, "provider.yaml", "[StructuredOutput, Reasoning]",
		"[StructuredOutput, Reasoning, Images, Files]")
	dir, data := f.written(t, url), t.TempDir()
	run := func(name string, more ...string) {
		t.Helper()
		got := capstan(t, append([]string{"run", "-f", dir, "--turn", name, "--data-dir", data}, more...)...)
		if refused := model.Refused(); len(refused) > 0 {
			t.Fatalf("the server refused a request: %s", strings.Join(refused, "; "))
		}
		got.mustEnd(t, exit.OK)
	}
	run("first", "--attach", "plan="+stored(t, "plan.png", picture(t)), "--attach", "terms="+stored(t, "terms.pdf", []byte(pdfOfOne)),
		"--attach", "rooms="+stored(t, "rooms.csv", []byte("room,size\nkitchen,12\n")))
	run("second")
	requests := model.Requests()
	if len(requests) != 3 {
		t.Fatalf("%d requests, want 3", len(requests))
	}
	for i := range 2 {
		question := requests[i].Messages[0]
		if kindsOfBlocks(question) != "image document text" || question.Content[0].Source.Data != pngOfOne ||
			question.Content[1].Source.Data != base64.StdEncoding.EncodeToString([]byte(pdfOfOne)) ||
			question.Content[1].Title != "terms" ||
			!strings.Contains(question.Content[2].Text, "kitchen,12") {
			t.Errorf("request %d: want the image, the PDF and the text, have %+v", i, question)
		}
	}
	later := requests[2].Messages[0]
	if text := later.Content[0].Text; kindsOfBlocks(later) != "text" || strings.Contains(text, "kitchen") ||
		!strings.Contains(text, `"plan" (image/png, 70 bytes), "terms" (application/pdf, `) {
		t.Errorf("the second Turn has %+v, want the names of the attachments", later)
	}
}
