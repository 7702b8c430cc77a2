package hostile

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
)

const (
	// listingTools is the number of tools in a large listing, and toolBytes the size of each.
	listingTools = 250
	toolBytes    = 16_000
)

// noteListing is the listing of a server with one small tool.
const noteListing = `{"tools":[{"name":"note","description":"Keeps a note.","inputSchema":{"type":"object","properties":{"text":{"type":"string"}}}}]}`

// listing returns a listing of close to 4 MiB, the most that a manager takes. Most of it are schemas.
func listing() []byte {
	var text bytes.Buffer
	text.WriteString(`{"tools":[`)
	filler := strings.Repeat("x", toolBytes-200)
	for i := range listingTools {
		if i > 0 {
			text.WriteByte(',')
		}
		fmt.Fprintf(&text, `{"name":"tool_%d","description":"Does work %d.","inputSchema":{"type":"object","properties":{"q":{"type":"string","description":"%s"}}}}`,
			i, i, filler)
	}
	text.WriteString("]}")
	return text.Bytes()
}

// message is a message of the protocol as far as it counts here.
type message struct {
	ID     json.RawMessage `json:"id"`
	Method string          `json:"method"`
	Params struct {
		ProtocolVersion string `json:"protocolVersion"`
	} `json:"params"`
}

// mcp returns the handler of an MCP server without sessions.
func (s *Server) mcp(listing func() []byte) http.HandlerFunc {
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
		var result []byte
		switch m.Method {
		case "initialize":
			result = fmt.Appendf(nil, `{"protocolVersion":%q,"capabilities":{"tools":{}},"serverInfo":{"name":"hostile","version":"1"}}`, m.Params.ProtocolVersion)
		case "tools/list":
			result = listing()
		case "tools/call":
			result = []byte(`{"content":[{"type":"text","text":"Noted."}]}`)
		default:
			result = []byte(`{}`)
		}
		w.Header().Set("Content-Type", "application/json")
		_, _ = fmt.Fprintf(w, `{"jsonrpc":"2.0","id":%s,"result":`, m.ID) // a client that has gone needs none
		_, _ = w.Write(result)
		_, _ = w.Write([]byte("}"))
	}
}
