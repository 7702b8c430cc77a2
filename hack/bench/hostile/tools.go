package hostile

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
)

const (
	// listingTools is the number of tools in a large listing, and toolBytes the size of each tool.
	listingTools = 250
	toolBytes    = 16_000
	// stalledBytes is the number of bytes that stall sends before it stops sending.
	stalledBytes = 250 << 10
	// notificationBytes is the length of a notification.
	notificationBytes = 1 << 20
)

// noteListing is the listing of a server with one small tool.
const noteListing = `{"tools":[{"name":"note","description":"Keeps a ` +
	`note.","inputSchema":{"type":"object","properties":{"text":{"type":"string"}}}}]}`

// listing returns a listing of close to 4 MiB, the maximum that a manager accepts. Schemas are most of its text.
func listing() []byte {
	var text bytes.Buffer
	text.WriteString(`{"tools":[`)
	filler := strings.Repeat("x", toolBytes-200)
	for i := range listingTools {
		if i > 0 {
			text.WriteByte(',')
		}
		fmt.Fprintf(&text, `{"name":"tool_%d","description":"Does work `+
			`%d.","inputSchema":{"type":"object","properties":{"q":{"type":"string","description":"%s"}}}}`,
			i, i, filler)
	}
	text.WriteString("]}")
	return text.Bytes()
}

// message is an MCP message with the fields that this package needs.
type message struct {
	ID     json.RawMessage `json:"id"`
	Method string          `json:"method"`
	Params struct {
		ProtocolVersion string `json:"protocolVersion"`
	} `json:"params"`
}

// writeResult writes the result of a call.
func writeResult(w http.ResponseWriter, _ *http.Request) {
	_, _ = io.WriteString(w, `{"content":[{"type":"text","text":"Noted."}]}`) // a disconnected client needs no body
}

// stall writes the beginning of the result of a call, and waits until the client disconnects.
func stall(w http.ResponseWriter, r *http.Request) {
	_, err := io.WriteString(w, `{"content":[{"type":"text","text":"`+strings.Repeat("x", stalledBytes))
	if err == nil && http.NewResponseController(w).Flush() == nil {
		<-r.Context().Done()
	}
	panic(http.ErrAbortHandler) // net/http closes the connection and logs nothing
}

// notifyInsteadOfResults returns a handler that answers calls with an endless stream of notifications. It passes all
// other messages to next.
func notifyInsteadOfResults(next http.HandlerFunc) http.HandlerFunc {
	notification := []byte("event: message\ndata: " +
		`{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"info","data":"` +
		strings.Repeat("n", notificationBytes) + `"}}` + "\n\n")
	return func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil || !bytes.Contains(body, []byte(`"tools/call"`)) {
			r.Body = io.NopCloser(bytes.NewReader(body))
			next(w, r)
			return
		}
		w.Header().Set("Content-Type", "text/event-stream")
		for err == nil {
			_, err = w.Write(notification)
		}
	}
}

// mcp returns the handler of an MCP server without sessions. call writes the result of a call.
func (s *Server) mcp(listing func() []byte, call http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		var m message
		if err := json.NewDecoder(r.Body).Decode(&m); err != nil {
			http.Error(w, "the message is not JSON", http.StatusBadRequest)
			return
		}
		if m.ID == nil {
			w.WriteHeader(http.StatusAccepted)
			return
		}
		result := []byte(`{}`)
		switch m.Method {
		case "initialize":
			result = fmt.Appendf(nil, `{"protocolVersion":%q,"capabilities":{"tools":{}},`+
				`"serverInfo":{"name":"hostile","version":"1"}}`, m.Params.ProtocolVersion)
		case "tools/list":
			result = listing()
		}
		w.Header().Set("Content-Type", "application/json")
		_, _ = fmt.Fprintf(w, `{"jsonrpc":"2.0","id":%s,"result":`, m.ID) // a disconnected client needs no body
		if m.Method == "tools/call" {
			call(w, r)
		} else {
			_, _ = w.Write(result)
		}
		_, _ = w.Write([]byte("}"))
	}
}
