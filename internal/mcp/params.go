package mcp

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"math"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/net/http/httpguts"

	"github.com/capstan-dev/capstan/internal/fairgate"
)

const (
	// headerKeyword is the keyword of a parameter's schema that names the header for its value. paramPrefix comes
	// before this name.
	headerKeyword = "x-mcp-header"
	paramPrefix   = "Mcp-Param-"
	// maxParamDepth is the maximum depth of the parameters that are searched for the keyword.
	maxParamDepth = 16
	// maxSafeInteger is the largest integer that every double-precision number below it represents exactly.
	maxSafeInteger = 1<<53 - 1
	// base64Prefix and base64Suffix enclose a header value in base64.
	base64Prefix, base64Suffix = "=?base64?", "?="
)

// isNewer reports whether the session uses a version of the protocol after the newest one with sessions.
func (s *session) isNewer() bool {
	r := s.InitializeResult()
	return r != nil && r.ProtocolVersion > protocol
}

// paramHeaders returns the headers that must repeat arguments of a call in newer versions of the protocol. The schema
// of the tool in the known list names them. The SDK cannot add these headers, because it does not see the list.
func (c *Client) paramHeaders(ctx context.Context, s *session, name string, arguments json.RawMessage) http.Header {
	known := c.Known()
	if known == nil || !s.isNewer() {
		return nil
	}
	i, ok := slices.BinarySearchFunc(known.Tools, name, func(t Tool, name string) int { return strings.Compare(t.Name, name) })
	if !ok || !bytes.Contains(known.Tools[i].Schema, []byte(headerKeyword)) {
		return nil
	}
	schema := known.Tools[i].Schema
	defer fairgate.AcquireProcessor(ctx, len(schema)+len(arguments))()
	headers := http.Header{}
	addParams(headers, schema, arguments, maxParamDepth)
	return headers
}

// addParams adds the headers for the members of an object with this schema.
func addParams(headers http.Header, schema, object json.RawMessage, depth int) {
	var s struct {
		Properties map[string]json.RawMessage `json:"properties"`
	}
	var given map[string]json.RawMessage
	if depth == 0 || json.Unmarshal(schema, &s) != nil || json.Unmarshal(object, &given) != nil {
		return
	}
	for name, property := range s.Properties {
		value, ok := given[name]
		if !ok {
			continue
		}
		var p struct {
			Header string `json:"x-mcp-header"`
		}
		if json.Unmarshal(property, &p) == nil && httpguts.ValidHeaderFieldName(p.Header) {
			if text, ok := paramText(value); ok {
				headers.Set(paramPrefix+p.Header, headerValue(text))
			}
		}
		addParams(headers, property, value, depth-1)
	}
}

// paramText returns a string, an integer or a boolean as text. Other values have no header.
func paramText(value json.RawMessage) (string, bool) {
	var decoded any
	if json.Unmarshal(value, &decoded) != nil {
		return "", false
	}
	switch v := decoded.(type) {
	case string:
		return v, true
	case bool:
		return strconv.FormatBool(v), true
	case float64:
		return strconv.FormatFloat(v, 'f', 0, 64), v == math.Trunc(v) && math.Abs(v) <= maxSafeInteger
	}
	return "", false
}

// headerValue returns a text as the value of a header. It is in base64 if it is empty, or if it is not safe in a
// header.
func headerValue(text string) string {
	unsafe := strings.ContainsFunc(text, func(r rune) bool { return r < ' ' || r > '~' })
	if text != "" && !unsafe && strings.TrimSpace(text) == text && !strings.HasPrefix(text, base64Prefix) {
		return text
	}
	return base64Prefix + base64.StdEncoding.EncodeToString([]byte(text)) + base64Suffix
}
