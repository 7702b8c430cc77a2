package loop

import "github.com/capstan-dev/capstan/internal/runtime/model"

// usageOfReply is what a reply took, as the endpoint reported it. What the endpoint did not report is estimated, or an endpoint
// that reports nothing could be asked without bound.
func usageOfReply(r *Request, reply *model.Reply) model.Usage {
	return complete(reply.Usage, r.EstimatedTokens, func() int64 {
		kept := counter.count(reply.Text) + counter.count(reply.Reasoning)
		for _, c := range reply.ToolCalls {
			kept += counter.count(c.Name) + counter.count(c.Arguments)
		}
		if reply.TooLong {
			kept = max(kept, tokensOf(reply.Received))
		}
		return kept
	})
}

// usageOfFailure is what a request took that failed, as the endpoint reported it. What it did not report is estimated where a part
// of the reply had come: the endpoint has worked, and asks to be paid. Where nothing had come it is nothing.
func usageOfFailure(r *Request, failure *model.Error) model.Usage {
	if failure.Received <= 0 {
		return bounded(failure.Usage)
	}
	return complete(failure.Usage, r.EstimatedTokens, func() int64 { return tokensOf(failure.Received) })
}

// complete fills in what an endpoint has not reported: the tokens of the prompt, which has some, and those of the output.
func complete(reported model.Usage, prompt int64, output func() int64) model.Usage {
	u := bounded(reported)
	if u.InputTokens == 0 && prompt > 0 {
		u.InputTokens, u.Estimated = prompt, true
	}
	if u.OutputTokens > 0 {
		return bounded(u)
	}
	if n := output(); n > 0 {
		u.OutputTokens, u.Estimated = n, true
	}
	return bounded(u)
}

// tokensOf is about how many tokens so many bytes have, of which nobody has the text.
func tokensOf(bytes int64) int64 { return (max(0, bytes) + bytesPerToken - 1) / bytesPerToken }
