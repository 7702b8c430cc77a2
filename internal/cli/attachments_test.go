package cli_test

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/capstan-dev/capstan/internal/cli/exit"
)

// pngOfOne is a PNG of one pixel, in base64.
const pngOfOne = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="

// pdfOfOne is a PDF of one page, as far as Capstan reads it.
const pdfOfOne = "%PDF-1.4\n<</Type/Page>>"

// eyes is a model server that accepts images and files as one dialect does, and records the last messages of requests.
type eyes struct {
	images bool // PNG in data URLs
	files  bool
	mu     sync.Mutex
	seen   []string
}

// ServeHTTP records the last message of a request and answers it.
func (e *eyes) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var req struct {
		Messages []struct {
			Role    string
			Content json.RawMessage
		}
	}
	body, _ := io.ReadAll(r.Body) // after an error, the next line fails
	if err := json.Unmarshal(body, &req); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	content := req.Messages[len(req.Messages)-1].Content
	if problem := e.check(content); problem != "" {
		http.Error(w, fmt.Sprintf(`{"error":{"message":%q,"type":"invalid_request_error"}}`, problem), http.StatusBadRequest)
		return
	}
	e.mu.Lock()
	e.seen = append(e.seen, string(content))
	e.mu.Unlock()
	w.Header().Set("Content-Type", "application/json")
	_, _ = io.WriteString(w, `{"choices":[{"message":{"content":"Seen."},"finish_reason":"stop"}],`+
		`"usage":{"prompt_tokens":10,"completion_tokens":2,"total_tokens":12}}`) // the test notices if the client is gone
}

// check returns why a real server would refuse the content of a message, or an empty text.
func (e *eyes) check(content json.RawMessage) string {
	if json.Unmarshal(content, new(string)) == nil {
		return ""
	}
	var parts []struct {
		Type     string
		Text     string
		ImageURL *struct{ URL string } `json:"image_url"`
		File     *struct {
			Filename string
			FileData string `json:"file_data"`
		}
	}
	if err := json.Unmarshal(content, &parts); err != nil {
		return err.Error()
	}
	for _, p := range parts {
		switch {
		case p.Type == "text" && p.Text != "":
		case p.Type == "image_url" && e.images && p.ImageURL != nil && p.ImageURL.URL == "data:image/png;base64,"+pngOfOne:
		case p.Type == "file" && e.files && p.File != nil && p.File.Filename != "" &&
			p.File.FileData == "data:application/pdf;base64,"+base64.StdEncoding.EncodeToString([]byte(pdfOfOne)):
		default:
			return "unknown variant `" + p.Type + "`, expected `text`"
		}
	}
	return ""
}

// inputsYAML is a ConfigMap with the contents of attachments.
const inputsYAML = `apiVersion: v1
kind: ConfigMap
metadata: {name: inputs}
data:
  rooms.csv: "room,size\nkitchen,12\n"
  terms.pdf: "%PDF-1.4\n<</Type/Page>>"
binaryData: {plan.png: ` + pngOfOne + `}
`

// attachedTo returns manifests whose Turn has attachments, given as "name mediaType key".
func attachedTo(t *testing.T, dialect string, attachments ...string) files {
	t.Helper()
	list := "  attachments:\n"
	for _, a := range attachments {
		f := strings.Fields(a)
		list += fmt.Sprintf("  - {name: %s, mediaType: %s, configMapKeyRef: {name: inputs, key: %s}}\n", f[0], f[1], f[2])
	}
	f := complete().with(t, "turn.yaml", "  message: What is up?\n", "  message: What is up?\n"+list)
	f = f.with(t, "provider.yaml", "  type: OpenAI", "  type: OpenAI\n  dialect: "+dialect)
	f = f.with(t, "provider.yaml", "name: small", "name: small\n    capabilities: [Images, Files]")
	f["inputs.yaml"] = inputsYAML
	return f
}

// TestAttachmentsOnEachDialect sends a text to a strict server of each dialect, and an image and a PDF to the servers
// that accept them. A Turn with another attachment must fail before a request.
func TestAttachmentsOnEachDialect(t *testing.T) {
	t.Parallel()
	const plan, terms, rooms = "plan image/png plan.png", "terms application/pdf terms.pdf", "rooms text/csv rooms.csv"
	withFiles := []string{"OpenAI", "OpenRouter", "LiteLLM"}
	for dialect := range strictServers {
		t.Run(dialect, func(t *testing.T) {
			t.Parallel()
			server := &eyes{images: dialect != "DeepSeek", files: slices.Contains(withFiles, dialect)}
			web := httptest.NewServer(server)
			t.Cleanup(web.Close)
			accepted, refused := []string{rooms}, ""
			if server.images {
				accepted = append(accepted, plan)
			} else {
				refused = plan
			}
			if server.files {
				accepted = append(accepted, terms)
			} else {
				refused = terms
			}
			got := capstan(t, "run", "-f", attachedTo(t, dialect, accepted...).written(t, web.URL+"/v1"))
			got.mustEnd(t, exit.OK)
			if len(server.seen) != 1 || !strings.Contains(server.seen[0], `kitchen,12`) ||
				server.images && !strings.Contains(server.seen[0], pngOfOne) {
				t.Errorf("want one request with the accepted attachments, have %v", server.seen)
			}
			if refused == "" {
				return
			}
			got = capstan(t, "run", "-f", attachedTo(t, dialect, refused).written(t, web.URL+"/v1"))
			mustSay(t, got.mustEnd(t, exit.Failed).err, `spec.attachments: must be accepted by a model of Agent "support"`)
			if len(server.seen) != 1 {
				t.Errorf("want no request with the refused attachment, have %v", server.seen)
			}
		})
	}
}

// TestAttachmentsSkipModels checks that a model without the capability Images does not receive a request with an image.
func TestAttachmentsSkipModels(t *testing.T) {
	t.Parallel()
	server := &eyes{images: true}
	web := httptest.NewServer(server)
	t.Cleanup(web.Close)
	f := attachedTo(t, "Generic", "plan image/png plan.png")
	f = f.with(t, "agent.yaml", "    model: small", "    model: blind\n  - providerRef: {name: demo}\n    model: small")
	data := t.TempDir()
	got := capstan(t, "run", "-f", f.written(t, web.URL+"/v1"), "--data-dir", data)
	got.mustEnd(t, exit.OK)
	mustSay(t, got.err, `model "blind" does not accept attachments of type image/png: add the capability Images to the model`)
	if len(server.seen) != 1 {
		t.Errorf("%d requests, want one to the second model", len(server.seen))
	}
}

// TestAttachmentOfAnotherType checks that a Turn ends before a request if an attachment does not have its declared
// type.
func TestAttachmentOfAnotherType(t *testing.T) {
	t.Parallel()
	server := &eyes{images: true}
	web := httptest.NewServer(server)
	t.Cleanup(web.Close)
	got := capstan(t, "run", "-f", attachedTo(t, "OpenAI", "plan image/png terms.pdf").written(t, web.URL+"/v1"))
	mustSay(t, got.mustEnd(t, exit.Failed).err,
		"spec.attachments[0].configMapKeyRef: the content is not image/png, but its bytes are application/pdf: "+
			"correct mediaType or the content")
	if len(server.seen) != 0 {
		t.Error("want no request with the content")
	}
}

// TestRenderAttachments checks that render shows attachments without their contents.
func TestRenderAttachments(t *testing.T) {
	t.Parallel()
	f := attachedTo(t, "OpenAI", "plan image/png plan.png", "rooms text/csv rooms.csv").written(t, nowhere)
	got := capstan(t, "render", "-f", f).mustEnd(t, exit.OK).out
	mustSay(t, got, "+-- attachment plan: image/png, 70 bytes, about 85 tokens --\n"+
		"+-- attachment rooms: text/csv, 21 bytes, about 8 tokens --\n")
	if strings.Contains(got, "kitchen") {
		t.Error("want no content of attachments in the output of render")
	}
}
