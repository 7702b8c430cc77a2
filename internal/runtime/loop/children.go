package loop

import (
	"github.com/capstan-dev/capstan/internal/runtime/journal"
	"github.com/capstan-dev/capstan/internal/runtime/tool"
)

// SubAgentResult returns a journal record with the result of a call of a sub-agent, if the calling Turn ends before the
// sub-agent has answered. The usage of the sub-agent's Turn still counts. nonce is the nonce of the calling Turn.
func SubAgentResult(c CallState, nonce string, r tool.Result) journal.Record {
	b := resultBuilder{
		CallResult: CallResult{Step: c.Step, CallID: c.Call.ID, Name: c.Intent.Name, Spent: r.Spent, Descendants: r.Descendants},
		position:   c.Place, nonce: nonce,
	}
	return b.failed(Failed, tool.Failed, turnEnded)
}
