package loop

import "github.com/capstan-dev/capstan/internal/runtime/model"

// usageOfReply is what a reply took, as the endpoint reported it. It is about as much where the reply was cut off before the
// endpoint could.
func usageOfReply(r *Request, reply *model.Reply) model.Usage {
	if !reply.TooLong || reply.Usage != (model.Usage{}) {
		return bounded(reply.Usage)
	}
	kept := counter.count(reply.Text) + counter.count(reply.Reasoning)
	return bounded(model.Usage{InputTokens: r.EstimatedTokens, OutputTokens: max(kept, tokensOf(reply.Received))})
}

// usageOfFailure is what a request took that failed, as the endpoint reported it. It is about as much where a part of the reply had
// come and the rest, in which the usage is, had not: the endpoint has worked, and asks to be paid. Where nothing had come it is
// nothing.
func usageOfFailure(r *Request, failure *model.Error) model.Usage {
	if failure.Received <= 0 || failure.Usage != (model.Usage{}) {
		return bounded(failure.Usage)
	}
	return bounded(model.Usage{InputTokens: r.EstimatedTokens, OutputTokens: tokensOf(failure.Received)})
}

// tokensOf is about how many tokens so many bytes have, of which nobody has the text.
func tokensOf(bytes int64) int64 { return (max(0, bytes) + bytesPerToken - 1) / bytesPerToken }
