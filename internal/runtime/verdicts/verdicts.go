// Package verdicts makes questions about an answer or a Turn for a model, and reads the replies. Output policies,
// judges and the extraction of memories use it. A question is a conversation of its own, without the history and the
// tools of the Turn.
package verdicts

import (
	"encoding/json"
	"strings"

	"github.com/capstan-dev/capstan/internal/runtime/model"
	"github.com/capstan-dev/capstan/internal/runtime/untrusted"
)

const (
	// MaxReplies is the maximum number of replies of a model to one question: an unusable reply is requested once more.
	MaxReplies = 2
	// MaxReasonChars is the maximum length of the reason of a verdict, in characters.
	MaxReasonChars = 300
)

// Question is a question about an answer or a Turn.
type Question struct {
	// Name identifies the messages of the question.
	Name string
	// Instruction tells the model what to decide, and the form of the reply.
	Instruction string
	// Schema is the JSON Schema of the reply.
	Schema string
	// Parts are the texts to decide about. Each must be in a fence.
	Parts []string
}

// Request returns the request for a model. structured is true if the endpoint can enforce a schema.
func (q *Question) Request(structured bool) model.Request {
	r := model.Request{Messages: []model.Message{
		{Role: model.RoleSystem, Name: q.Name, Content: q.Instruction},
		{Role: model.RoleUser, Name: q.Name, Content: strings.Join(q.Parts, "\n\n")},
	}}
	if structured {
		r.Output = json.RawMessage(q.Schema)
	}
	return r
}

// Read reads the JSON of a reply, and reports whether it succeeded. It fails for a reply that is cut off or a refusal,
// and for a reply with text around its JSON, because the model may quote JSON from the answer.
func Read(reply *model.Reply, into any) bool {
	data, ok := model.JSONAnswer(reply.Text)
	if !ok || reply.FinishReason == model.FinishLength || reply.FinishReason == model.FinishRefusal {
		return false
	}
	return json.Unmarshal(data, into) == nil
}

// Reason returns the reason of a verdict as one line of at most MaxReasonChars characters. If a model wrote it, it may
// quote the answer.
func Reason(text string) string {
	reason, _ := untrusted.Cap(untrusted.StripLine(text), MaxReasonChars)
	return reason
}
