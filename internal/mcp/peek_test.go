package mcp_test

import (
	"bytes"
	"encoding/json"
	"io"
	"log"
	"net/http"
)

// peek reads the message of a request and returns a body that has it again.
func peek(r *http.Request) (io.ReadCloser, message) {
	body, _ := io.ReadAll(r.Body) // a body that is cut off shows in the test
	var m message
	_ = json.Unmarshal(body, &m) // a request without a message has none
	return io.NopCloser(bytes.NewReader(body)), m
}

// discard is where HTTP servers write what clients do wrong on purpose.
var discard = log.New(io.Discard, "", 0)
