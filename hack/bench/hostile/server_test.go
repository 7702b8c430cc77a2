package hostile

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/capstan-dev/capstan/internal/mcp"
	"github.com/capstan-dev/capstan/internal/model/endpoint"
)

func newServer(t *testing.T) *Server {
	t.Helper()
	s, err := New(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
	})
	return s
}

// post sends a body and returns the response without decompressing it, so that tests see its size on the wire.
func post(t *testing.T, url, body string) (header http.Header, content io.Reader) {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	transport := &http.Transport{DisableCompression: true}
	t.Cleanup(transport.CloseIdleConnections)
	response, err := (&http.Client{Transport: transport}).Do(request)
	if err != nil {
		t.Fatalf("%s: %v", url, err)
	}
	t.Cleanup(func() { _ = response.Body.Close() }) // the relevant part was read
	return response.Header, response.Body
}

// contentOf is like post, but returns only the body.
func contentOf(t *testing.T, url, body string) io.Reader {
	t.Helper()
	_, content := post(t, url, body)
	return content
}

func read(t *testing.T, r io.Reader) []byte {
	t.Helper()
	text, err := io.ReadAll(r)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

const completions = "/chat/completions"

func TestRepliesHaveTheSizeAndContentOfTheirAttack(t *testing.T) {
	s := newServer(t)
	for name, tc := range map[string]struct {
		url                string
		minBytes, maxBytes int
		contains, lacks    []string
	}{
		"answering": {s.Answering(0), 100, 1000, []string{"Here you are.", `"finish_reason":"stop"`, "[DONE]"}, []string{"tool_calls"}},
		"talking": {
			s.Talking(), 900_000, endpoint.MaxReplyBytes + 1000,
			[]string{`"name":"note"`, `"finish_reason":"tool_calls"`, `"total_tokens":20`, "[DONE]"},
			nil,
		},
		"writing": {
			s.Writing(), 900_000, endpoint.MaxReplyBytes + 1000,
			[]string{`"finish_reason":"stop"`, "[DONE]"},
			[]string{"tool_calls"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			text := read(t, contentOf(t, tc.url+completions, `{"model":"m"}`))
			if len(text) < tc.minBytes || len(text) > tc.maxBytes {
				t.Errorf("%d bytes, want %d to %d", len(text), tc.minBytes, tc.maxBytes)
			}
			for _, want := range tc.contains {
				if !bytes.Contains(text, []byte(want)) {
					t.Errorf("the reply does not contain %q", want)
				}
			}
			for _, unwanted := range tc.lacks {
				if bytes.Contains(text, []byte(unwanted)) {
					t.Errorf("the reply contains %q, want a reply without it", unwanted)
				}
			}
			for event := range strings.SplitSeq(strings.TrimSpace(string(text)), "\n\n") {
				data, ok := strings.CutPrefix(event, "data: ")
				if !ok || data != "[DONE]" && !json.Valid([]byte(data)) {
					t.Fatalf("not an event with JSON: %.100s", event)
				}
			}
		})
	}
}

func TestLongRepliesDiffer(t *testing.T) {
	s := newServer(t)
	first := read(t, contentOf(t, s.Writing()+completions, "{}"))
	second := read(t, contentOf(t, s.Writing()+completions, "{}"))
	if bytes.Equal(first, second) {
		t.Error("two replies are equal, want different ones, because equal artifacts are stored only once")
	}
}

func TestBombIsSmallOnTheWireAndExceedsTheStreamLimit(t *testing.T) {
	s := newServer(t)
	header, content := post(t, s.Bombing()+completions, "{}")
	if got := header.Get("Content-Encoding"); got != "gzip" {
		t.Errorf("Content-Encoding %q, want gzip", got)
	}
	packed := read(t, content)
	if len(packed) > 1<<20 {
		t.Errorf("%d bytes on the wire, want at most 1 MiB", len(packed))
	}
	unpacked, err := gzip.NewReader(bytes.NewReader(packed))
	if err != nil {
		t.Fatal(err)
	}
	n, err := io.Copy(io.Discard, unpacked)
	if err != nil || n < endpoint.MaxStreamBytes {
		t.Errorf("%d bytes unpacked (%v), want at least %d, the most that a manager reads", n, err, endpoint.MaxStreamBytes)
	}
	if _, sent := s.Stats(); sent != int64(len(packed)) {
		t.Errorf("Stats has %d bytes, want %d", sent, len(packed))
	}
}

func TestFloodIsNotCompressed(t *testing.T) {
	s := newServer(t)
	begin := make([]byte, 2*len(tinyEvent))
	if _, err := io.ReadFull(contentOf(t, s.Flooding()+completions, "{}"), begin); err != nil || string(begin) != tinyEvent+tinyEvent {
		t.Errorf("the stream begins with %q (%v), want two tiny events", begin, err)
	}
}

func TestCommentingModelSendsOnlyComments(t *testing.T) {
	s := newServer(t)
	lines := bufio.NewScanner(contentOf(t, s.Commenting()+completions, "{}"))
	for range 4 { // two comments, each followed by an empty line
		if !lines.Scan() || lines.Text() != "" && !strings.HasPrefix(lines.Text(), ":") {
			t.Fatalf("%q (%v), want comments", lines.Text(), lines.Err())
		}
	}
}

func TestOnlyModelsWithThePrefixGetWholeReplies(t *testing.T) {
	s := newServer(t)
	text, err := io.ReadAll(contentOf(t, s.Breaking()+completions, `{"model":"first"}`))
	if !errors.Is(err, io.ErrUnexpectedEOF) || !bytes.Contains(text, []byte("Here you are.")) {
		t.Errorf("%q and error %v, want a part of a reply and a broken connection", text, err)
	}
	if text := read(t, contentOf(t, s.Breaking()+completions, `{"model":"`+WholeReplyPrefix+`one"}`)); !bytes.Contains(
		text, []byte("[DONE]")) {
		t.Errorf("the model with the prefix replied %q, want a whole reply", text)
	}
}

func TestTarpitAcceptsAndNeverAnswers(t *testing.T) {
	s := newServer(t)
	ctx, cancel := context.WithCancel(t.Context())
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, s.Tarpit(1), http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	answered := make(chan error, 1)
	go func() {
		response, err := http.DefaultClient.Do(request)
		if err == nil {
			_ = response.Body.Close() // the test has failed
		}
		answered <- err
	}()
	deadline := time.Now().Add(10 * time.Second)
	for n := int64(0); n == 0; n, _ = s.Stats() {
		if time.Now().After(deadline) {
			t.Fatal("the tarpit has accepted no connection")
		}
	}
	cancel()
	if err := <-answered; !errors.Is(err, context.Canceled) {
		t.Errorf("error %v, want %v, because only the client ended the request", err, context.Canceled)
	}
}

// TestListingsFitTheLimitOfTheManager checks that the manager accepts the listings. If it rejected a listing for its
// size, the listing would not attack its memory.
func TestListingsFitTheLimitOfTheManager(t *testing.T) {
	s := newServer(t)
	if n := len(listing()); n > mcp.MaxListBytes || n < mcp.MaxListBytes*9/10 {
		t.Errorf("the listing has %d bytes, want close to %d", n, mcp.MaxListBytes)
	}
	for name, tc := range map[string]struct {
		url   string
		tools int
	}{"large": {s.Listing(1), listingTools}, "small": {s.Noting(), 1}} {
		content := contentOf(t, tc.url, `{"jsonrpc":"2.0","id":7,"method":"tools/list","params":{}}`)
		var answer struct {
			ID     int `json:"id"`
			Result struct {
				Tools []json.RawMessage `json:"tools"`
			} `json:"result"`
		}
		if err := json.NewDecoder(content).Decode(&answer); err != nil || answer.ID != 7 || len(answer.Result.Tools) != tc.tools {
			t.Errorf("%s: %d tools for request %d (%v), want %d for 7", name, len(answer.Result.Tools), answer.ID, err, tc.tools)
		}
	}
}

func TestRefusalsAreErrorsOfOneMebibyte(t *testing.T) {
	s := newServer(t)
	text := read(t, contentOf(t, s.Refusing()+completions, "{}"))
	if len(text) < refusalBytes || !json.Valid(text) {
		t.Errorf("%d bytes, want valid JSON of at least %d", len(text), refusalBytes)
	}
}

// TestNotificationsReplaceResults checks that the server lists its tool and never sends a result.
func TestNotificationsReplaceResults(t *testing.T) {
	s := newServer(t)
	if text := read(t, contentOf(t, s.Notifying(), `{"id":1,"method":"tools/list"}`)); !bytes.Contains(text, []byte(`"note"`)) {
		t.Errorf("the listing is %.100s, want the tool", text)
	}
	lines := bufio.NewReaderSize(contentOf(t, s.Notifying(), `{"id":2,"method":"tools/call"}`), 2*notificationBytes)
	for range 3 {
		line, err := lines.ReadBytes('\n')
		for err == nil && !bytes.HasPrefix(line, []byte("data: ")) {
			line, err = lines.ReadBytes('\n')
		}
		data := bytes.TrimPrefix(line, []byte("data: "))
		if err != nil || len(data) < notificationBytes || !json.Valid(data) || bytes.Contains(data, []byte("result")) {
			t.Fatalf("got %d bytes and %v, want a notification", len(data), err)
		}
	}
}
