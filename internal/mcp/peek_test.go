package mcp_test

import (
	"bytes"
	"encoding/json"
	"io"
	"log"
	"net/http"
)

// peek reads the message of a request. It returns a new reader of the same body, and the decoded message.
func peek(r *http.Request) (io.ReadCloser, message) {
	body, _ := io.ReadAll(r.Body) // an incomplete body makes the test fail later
	var m message
	_ = json.Unmarshal(body, &m) // a request without a message leaves m empty
	return io.NopCloser(bytes.NewReader(body)), m
}

// discard is a logger for HTTP servers that discards messages about errors that the tests cause on purpose.
var discard = log.New(io.Discard, "", 0)
