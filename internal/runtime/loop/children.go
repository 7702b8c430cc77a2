package loop

import (
	"github.com/capstan-dev/capstan/internal/runtime/journal"
	"github.com/capstan-dev/capstan/internal/runtime/tool"
)

// EndOfSubAgent returns the end of a call of a sub-agent for a Turn that ends without its answer: what its Turn took counts all the
// same. The nonce is that of the Turn that called.
func EndOfSubAgent(c CallState, nonce string, r tool.Result) journal.Record {
	e := ending{
		Finish: Finish{Step: c.Step, CallID: c.Call.ID, Name: c.Intent.Name, Spent: r.Spent, Descendants: r.Descendants}, place: c.Place, nonce: nonce,
	}
	return e.failed(Failed, tool.Failed, turnEnded)
}
