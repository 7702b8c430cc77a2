package loop

import "github.com/capstan-dev/capstan/internal/runtime/model"

// usageOfReply returns the usage of a reply as the endpoint reported it. Missing values are estimated, because
// otherwise an endpoint that reports nothing could be used without limit.
func usageOfReply(r *Request, reply *model.Reply) model.Usage {
	return completeUsage(reply.Usage, r.EstimatedTokens, reply.Received, func() int64 {
		kept := counter.count(reply.Text) + counter.count(reply.Reasoning)
		for _, c := range reply.ToolCalls {
			kept += counter.count(c.Name) + counter.count(c.Arguments)
		}
		return kept
	})
}

// usageOfFailure returns the usage of a failed request as the endpoint reported it. Missing values are estimated if a
// part of the reply arrived or the request may be billed, because the endpoint has worked. Otherwise nothing is added.
// A cancelled request is no exception: a client that cancels each Turn in time would never reach its budget.
func usageOfFailure(r *Request, failure *model.Error) model.Usage {
	if failure.Received <= 0 && !failure.MayBeBilled {
		return boundedUsage(failure.Usage)
	}
	return completeUsage(failure.Usage, r.EstimatedTokens, failure.Received, func() int64 { return 0 })
}

// completeUsage fills in values that an endpoint has not reported: the tokens of the prompt and of the output. received
// is the number of bytes that arrived without a final usage, whose tokens count if they are more than was reported.
func completeUsage(reported model.Usage, prompt, received int64, output func() int64) model.Usage {
	u := boundedUsage(reported)
	if u.InputTokens == 0 && prompt > 0 {
		u.InputTokens, u.Estimated = prompt, true
	}
	estimate := tokensOf(received)
	if u.OutputTokens == 0 {
		estimate = max(estimate, output())
	}
	if estimate > u.OutputTokens {
		u.OutputTokens, u.Estimated = estimate, true
	}
	return boundedUsage(u)
}

// tokensOf estimates the number of tokens in this number of bytes. It is used if the text itself is not available.
func tokensOf(bytes int64) int64 { return (max(0, bytes) + bytesPerToken - 1) / bytesPerToken }
