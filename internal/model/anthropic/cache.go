package anthropic

import "github.com/capstan-dev/capstan/internal/runtime/model"

// cacheControl marks the end of a part of the request that the endpoint keeps in its cache for 5 minutes.
type cacheControl struct {
	Type string `json:"type"`
}

var ephemeral = &cacheControl{Type: "ephemeral"}

// markForCache sets up to 4 markers, which is the maximum of the protocol. They are at the end of the tools, at the end
// of the stable part of the system prompt, and at the last two messages of the user. Writing to the cache costs more
// than other input. So the markers at the messages are set only if another request with the same beginning is likely:
// in a loop with tools, and in a Session whose whole system prompt is stable.
func (r *messagesRequest) markForCache(req *model.Request) {
	if n := len(r.Tools); n > 0 {
		r.Tools[n-1].CacheControl = ephemeral
	}
	stable := 0 // the number of stable blocks
	if len(req.Messages) > 0 && req.Messages[0].StableChars > 0 && len(r.System) > 0 {
		stable = 1
		r.System[0].CacheControl = ephemeral
	}
	if len(req.Offered()) == 0 && (stable == 0 || stable < len(r.System)) {
		return
	}
	marks := 2
	for i := len(r.Messages) - 1; i >= 0 && marks > 0; i-- {
		if r.Messages[i].Role == roleUser {
			r.Messages[i].Content[len(r.Messages[i].Content)-1].CacheControl = ephemeral
			marks--
		}
	}
}
