package mcp_test

import (
	"bytes"
	"encoding/json"
	"io"
	"log"
	"net/http"
)

// peek reads the message of a request, and returns it with an equal body.
func peek(r *http.Request) (io.ReadCloser, message) {
	body, _ := io.ReadAll(r.Body) // the test notices an incomplete body
	var m message
	_ = json.Unmarshal(body, &m) // a request without a message has none
	return io.NopCloser(bytes.NewReader(body)), m
}

// discard swallows the logs of HTTP servers about the clients' deliberate errors.
var discard = log.New(io.Discard, "", 0)
