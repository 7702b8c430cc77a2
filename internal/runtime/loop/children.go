package loop

import (
	"github.com/capstan-dev/capstan/internal/runtime/journal"
	"github.com/capstan-dev/capstan/internal/runtime/tool"
)

// SubAgentResult returns a journal record with the result of a call of a sub-agent, if the calling Turn ends before the
// sub-agent has answered. The usage of the sub-agent's Turn still counts. If the usage is not known, for example
// because that Turn was deleted with its journal, that Turn may have changed something, unless the call has certainly
// created none. nonce is the nonce of the calling Turn.
func (s *State) SubAgentResult(c CallState, nonce string, r tool.Result) journal.Record {
	next := *c.Intent
	next.Attempt++
	b := resultBuilder{
		CallResult: CallResult{Step: c.Step, CallID: c.Call.ID, Name: c.Intent.Name, Spent: r.Spent, Descendants: r.Descendants},
		position:   c.Place, nonce: nonce,
	}
	b.MayHaveActed = r.Spent == nil && (r.Descendants == nil || *r.Descendants > 0) && !s.hasNotCreated(next)
	return b.failed(Failed, tool.Failed, turnEnded)
}
