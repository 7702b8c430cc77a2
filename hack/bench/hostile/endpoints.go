package hostile

import (
	"fmt"
	"time"
)

// Endpoints holds the base URLs of a server. Its methods return the URLs of the endpoints.
type Endpoints struct {
	// URL is the base URL of all endpoints except the tarpit, and TarpitURL is the base URL of the tarpit.
	URL       string `json:"url"`
	TarpitURL string `json:"tarpitURL"`
}

// The endpoints for models. Each is the base URL of a ModelProvider.

// Answering returns the URL of a model that answers with a short text after a latency.
func (e Endpoints) Answering(latency time.Duration) string {
	return fmt.Sprintf("%s/answering/%d/v1", e.URL, latency.Milliseconds())
}

// Talking returns the URL of a model whose replies are close to 1 MiB of random text and call the tool "note", so
// that the conversation continues.
func (e Endpoints) Talking() string { return e.URL + "/talking/v1" }

// Writing returns the URL of a model whose answers are close to 1 MiB of random text.
func (e Endpoints) Writing() string { return e.URL + "/writing/v1" }

// Commenting returns the URL of a model that sends an SSE comment each second and never answers.
func (e Endpoints) Commenting() string { return e.URL + "/commenting/v1" }

// Bombing returns the URL of a model that sends 256 MiB of tiny events, compressed to less than 1 MiB.
func (e Endpoints) Bombing() string { return e.URL + "/bombing/v1" }

// Flooding returns the URL of a model that sends 256 MiB of tiny events without compression.
func (e Endpoints) Flooding() string { return e.URL + "/flooding/v1" }

// Breaking returns the URL of an endpoint that aborts each reply after its first event. Models whose names begin with
// WholeReplyPrefix send whole replies.
func (e Endpoints) Breaking() string { return e.URL + "/breaking/v1" }

// Calling returns the URL of a model whose replies contain eight calls of the tool "note".
func (e Endpoints) Calling() string { return e.URL + "/calling/v1" }

// Refusing returns the URL of a model that rejects each request with an error of 1 MiB.
func (e Endpoints) Refusing() string { return e.URL + "/refusing/v1" }

// The endpoints for tools. Each is the URL of an MCP server.

// Listing returns the URL of the MCP server with this number. Its listing has close to 4 MiB.
func (e Endpoints) Listing(number int) string { return fmt.Sprintf("%s/listing/%d", e.URL, number) }

// Noting returns the URL of an MCP server with one tool, "note".
func (e Endpoints) Noting() string { return e.URL + "/noting" }

// Stalling returns the URL of an MCP server with one tool, "note". The server sends 250 KiB of each result and then
// nothing more.
func (e Endpoints) Stalling() string { return e.URL + "/stalling" }

// Notifying returns the URL of an MCP server with one tool, "note". Instead of results, the server sends notifications
// of 1 MiB without end.
func (e Endpoints) Notifying() string { return e.URL + "/notifying" }

// The endpoint for both.

// Tarpit returns the URL of the endpoint with this number, which accepts connections and never sends a byte.
func (e Endpoints) Tarpit(number int) string {
	return fmt.Sprintf("%s/%d", e.TarpitURL, number)
}
