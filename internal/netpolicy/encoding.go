package netpolicy

import (
	"fmt"
	"net/http"
	"strings"
)

// EncodedError means that a server sends a compressed response although an uncompressed one was requested. The response
// is not read, because a compressed body of 1 MB can expand to 1 GB.
type EncodedError struct {
	// Encoding is the name in Content-Encoding, at most 32 characters, or "unknown".
	Encoding string
}

// Error returns the message, which says what to do.
func (e *EncodedError) Error() string {
	return fmt.Sprintf("the server sends a compressed response (Content-Encoding: %s), which is refused: turn "+
		"compression off there, or make it honor \"Accept-Encoding: identity\"", e.Encoding)
}

// maxEncoding bounds the name of an encoding in a message, in bytes.
const maxEncoding = 32

// AskPlain requests a response without compression. It must be called after all other headers are set.
func AskPlain(req *http.Request) { req.Header.Set("Accept-Encoding", "identity") }

// CheckPlain returns an *EncodedError if the body of a response is compressed.
func CheckPlain(resp *http.Response) error {
	for _, value := range resp.Header.Values("Content-Encoding") {
		for encoding := range strings.SplitSeq(value, ",") {
			if encoding = strings.ToLower(strings.TrimSpace(encoding)); encoding != "" && encoding != "identity" {
				return &EncodedError{Encoding: legible(encoding)}
			}
		}
	}
	return nil
}

// legible returns the name of an encoding, or "unknown" if the text does not look like a name: a server may send any
// text.
func legible(encoding string) string {
	if len(encoding) > maxEncoding || strings.Trim(encoding, "abcdefghijklmnopqrstuvwxyz0123456789-_.") != "" {
		return "unknown"
	}
	return encoding
}
