package hostile

import (
	"bytes"
	"compress/gzip"
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"
)

const (
	// WholeReplyPrefix is the prefix of the model names for which the endpoint Breaking sends whole replies.
	WholeReplyPrefix = "last-"

	// replyChars is the length of a long reply. A manager keeps at most 1 MiB of a reply.
	replyChars = 1_000_000
	// floodBytes is the length of a stream of tiny events. A manager reads at most 64 MiB of a stream.
	floodBytes = 256 << 20
	// refusalBytes is the length of the error message of a rejected request.
	refusalBytes = 1 << 20
	// commentInterval is the time between two comments.
	commentInterval = time.Second
)

// tinyEvent is an empty event of a stream, which a client must still parse.
const tinyEvent = "data: {}\n\n"

// randomText returns text that cannot be compressed and needs no escaping in JSON. It is twice as long as a long reply.
func randomText() []byte {
	raw := make([]byte, 2*replyChars*3/4)
	_, _ = rand.Read(raw) // never fails
	return []byte(base64.RawStdEncoding.EncodeToString(raw))
}

// bomb returns a stream of tiny events, compressed with gzip. It repeats one block, which is a complete gzip stream.
func bomb() []byte {
	var packed bytes.Buffer
	w := gzip.NewWriter(&packed)
	block := strings.Repeat(tinyEvent, 100_000)
	_, _ = io.WriteString(w, block) // a buffer takes everything
	_ = w.Close()
	return bytes.Repeat(packed.Bytes(), floodBytes/len(block)+1)
}

// beginEvents begins a stream of events after it has read the whole request.
func beginEvents(w http.ResponseWriter, r *http.Request) {
	_, _ = io.Copy(io.Discard, r.Body) // the next write detects a disconnected client
	w.Header().Set("Content-Type", "text/event-stream")
}

// writeDelta writes one event with a part of a reply. delta and finish are JSON.
func writeDelta(w io.Writer, delta, finish string) {
	_, _ = fmt.Fprintf(w, `data: {"id":"1","object":"chat.completion.chunk","created":1,"model":"m",`+
		`"choices":[{"index":0,"delta":%s,"finish_reason":%s}]}`+
		"\n\n", delta, finish) // a disconnected client needs no event
}

// writeEnd writes the end of a reply, with its usage.
func writeEnd(w io.Writer, finish string) {
	writeDelta(w, "{}", strconv.Quote(finish))
	_, _ = io.WriteString(w, `data: {"id":"1","object":"chat.completion.chunk","created":1,"model":"m","choices":[],`+
		`"usage":{"prompt_tokens":10,"completion_tokens":10,"total_tokens":20}}`+"\n\ndata: [DONE]\n\n")
}

const shortText = `{"role":"assistant","content":"Here you are."}`

// answer sends a short answer after the latency in the path.
func (s *Server) answer(w http.ResponseWriter, r *http.Request) {
	beginEvents(w, r)
	ms, _ := strconv.Atoi(r.PathValue("milliseconds")) // 0 for anything else
	if !pause(r, time.Duration(ms)*time.Millisecond) {
		return
	}
	writeDelta(w, shortText, "null")
	writeEnd(w, "stop")
}

// longText returns the content of an event: close to 1 MiB of text that differs from all earlier texts. It also returns
// the number of the reply.
func (s *Server) longText() (text string, number int64) {
	number = s.replies.Add(1)
	start := int(number*7919) % replyChars
	return fmt.Sprintf(`{"role":"assistant","content":"%s"}`, s.random[start:start+replyChars-len("role")]), number
}

// talk sends close to 1 MiB of text and one call of the tool "note".
func (s *Server) talk(w http.ResponseWriter, r *http.Request) {
	beginEvents(w, r)
	text, number := s.longText()
	writeDelta(w, text, "null")
	writeDelta(w, fmt.Sprintf(`{"tool_calls":[{"index":0,"id":"call-%d","type":"function",`+
		`"function":{"name":"note","arguments":"{\"text\":\"%d\"}"}}]}`,
		number, number), "null")
	writeEnd(w, "tool_calls")
}

// parallelCalls is the number of calls in one reply. A manager makes this many calls of a Turn at the same time.
const parallelCalls = 8

// call sends a reply with parallelCalls calls of the tool "note".
func (s *Server) call(w http.ResponseWriter, r *http.Request) {
	beginEvents(w, r)
	number := s.replies.Add(1)
	for i := range parallelCalls {
		writeDelta(w, fmt.Sprintf(`{"tool_calls":[{"index":%d,"id":"call-%d-%d","type":"function",`+
			`"function":{"name":"note","arguments":"{\"text\":\"%d\"}"}}]}`,
			i, number, i, i), "null")
	}
	writeEnd(w, "tool_calls")
}

// write sends an answer with close to 1 MiB of text.
func (s *Server) write(w http.ResponseWriter, r *http.Request) {
	beginEvents(w, r)
	text, _ := s.longText()
	writeDelta(w, text, "null")
	writeEnd(w, "stop")
}

// comment sends SSE comments until the client disconnects, and never an event.
func (s *Server) comment(w http.ResponseWriter, r *http.Request) {
	beginEvents(w, r)
	flush := http.NewResponseController(w)
	for {
		if _, err := io.WriteString(w, ": please wait\n\n"); err != nil || flush.Flush() != nil || !pause(r, commentInterval) {
			return
		}
	}
}

// sendBomb sends compressed tiny events, which have floodBytes after decompression.
func (s *Server) sendBomb(w http.ResponseWriter, r *http.Request) {
	beginEvents(w, r)
	w.Header().Set("Content-Encoding", "gzip")
	_, _ = w.Write(s.bomb()) // a disconnected client needs no body
}

// flood sends floodBytes of tiny events without compression.
func (s *Server) flood(w http.ResponseWriter, r *http.Request) {
	beginEvents(w, r)
	block := []byte(strings.Repeat(tinyEvent, 6_000))
	for written := 0; written < floodBytes; written += len(block) {
		if _, err := w.Write(block); err != nil {
			return
		}
	}
}

// refuse rejects the request with an error of refusalBytes.
func refuse(w http.ResponseWriter, r *http.Request) {
	_, _ = io.Copy(io.Discard, r.Body) // the next write detects a disconnected client
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusBadRequest)
	_, _ = io.WriteString(w, `{"error":{"type":"invalid_request_error","message":"`+strings.Repeat("no ", refusalBytes/3)+`"}}`)
}

// abort closes the connection after the first event, unless the model's name begins with WholeReplyPrefix.
func (s *Server) abort(w http.ResponseWriter, r *http.Request) {
	var asked struct {
		Model string `json:"model"`
	}
	if err := json.NewDecoder(r.Body).Decode(&asked); err != nil {
		http.Error(w, "the request is not JSON", http.StatusBadRequest)
		return
	}
	beginEvents(w, r)
	writeDelta(w, shortText, "null")
	if strings.HasPrefix(asked.Model, WholeReplyPrefix) {
		writeEnd(w, "stop")
		return
	}
	if http.NewResponseController(w).Flush() == nil {
		panic(http.ErrAbortHandler) // net/http closes the connection and logs nothing
	}
}

// pause waits, and reports whether the client is still connected.
func pause(r *http.Request, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-r.Context().Done():
		return false
	}
}
