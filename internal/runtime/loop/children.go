package loop

import (
	"github.com/capstan-dev/capstan/internal/runtime/journal"
	"github.com/capstan-dev/capstan/internal/runtime/tool"
)

// EndOfSubAgent returns the end of a sub-agent's call for a Turn that ends before the sub-agent has answered. The
// usage of the sub-agent's Turn still counts. nonce is the nonce of the calling Turn.
func EndOfSubAgent(c CallState, nonce string, r tool.Result) journal.Record {
	e := ending{
		CallResult: CallResult{Step: c.Step, CallID: c.Call.ID, Name: c.Intent.Name, Spent: r.Spent, Descendants: r.Descendants},
		position:   c.Place, nonce: nonce,
	}
	return e.failed(Failed, tool.Failed, turnEnded)
}
