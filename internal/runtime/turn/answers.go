package turn

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"sync"

	"github.com/capstan-dev/capstan/internal/runtime/canonical"
	"github.com/capstan-dev/capstan/internal/runtime/loop"
	"github.com/capstan-dev/capstan/internal/runtime/tool"
	"github.com/capstan-dev/capstan/internal/runtime/untrusted"
)

const (
	// maxUnanswered is the maximum number of calls without a recorded result that Answers lists. Further calls are only
	// counted.
	maxUnanswered = 20
	// maxListedArguments is the maximum length of the arguments of a listed call, in characters.
	maxListedArguments = 300
	// maxRecordedOutput is the maximum size of a tool output that is read from the journal, in bytes. The journal keeps
	// no larger output.
	maxRecordedOutput = 32 << 20
)

// Answers answers the calls of a replay from a Recording. It never calls a tool. It is safe for concurrent use.
//
// A call is answered if the recorded Turn made the same call: the same tool with the same arguments, in any order of
// fields. If the recorded Turn made the call several times, the results are returned in their order, and further calls
// receive the last result again. Any other call fails, and the error tells the model that the call was not made.
//
// If a recorded result cannot be read, the answer of the model is of no use: see Err.
type Answers struct {
	recording *Recording

	mu sync.Mutex
	// given is the number of answers by callSignature.
	given   map[string]int
	summary AnswerSummary
	// err is the error because of which a recorded result could not be read.
	err error
	// cancel cancels the replay, and interrupted returns an error once the caller has cancelled it: see Within. Both
	// are nil without Within.
	cancel      context.CancelFunc
	interrupted func() error
}

// AnswerSummary says how the calls of a replay were answered.
type AnswerSummary struct {
	// Recorded is the number of calls that were answered from the journal.
	Recorded int `json:"recorded"`
	// NotMade is the number of calls without a recorded result. They were not made.
	NotMade int `json:"notMade"`
	// Unanswered are the first calls without a recorded result, at most 20.
	Unanswered []UnansweredCall `json:"unanswered,omitempty"`
}

// UnansweredCall is a call without a recorded result.
type UnansweredCall struct {
	Name string `json:"name"`
	// Arguments are on one line, at most 300 characters.
	Arguments string `json:"arguments"`
}

// Answers returns the Answers for one replay.
func (r *Recording) Answers() *Answers { return &Answers{recording: r, given: map[string]int{}} }

// Summary returns how the calls have been answered so far.
func (a *Answers) Summary() AnswerSummary {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.summary
}

// Err returns the error because of which a recorded result could not be read, or nil. If it is not nil, the replay says
// nothing about its prompt, because the model lacked a result that the recorded Turn had.
func (a *Answers) Err() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.err
}

// Within returns the context that cancels the replay. It ends when ctx ends, when release is called, and when a
// recorded result cannot be read, because each further request would be paid for in vain. If ctx ends first, Err stays
// nil. The caller must call Within before the replay begins.
func (a *Answers) Within(ctx context.Context) (cancelled context.Context, release context.CancelFunc) {
	a.interrupted = ctx.Err
	cancelled, a.cancel = context.WithCancel(ctx)
	return cancelled, a.cancel
}

// Tools returns the tools of the recorded Turn. They answer from the journal and require no approval, because no call
// is made.
func (a *Answers) Tools() []tool.Tool {
	all := make([]tool.Tool, 0, len(a.recording.Tools))
	for _, t := range a.recording.Tools {
		name := t.Name
		t.RequiresApproval, t.RetryOnTimeout, t.Timeout, t.Trusted = false, false, 0, false
		t.Caller = tool.CallerFunc(func(ctx context.Context, c tool.Call) (tool.Result, error) { return a.answer(ctx, name, c.Arguments) })
		all = append(all, t)
	}
	return all
}

// answer answers a call. The number of descendants is that of the recorded call, because without it the call would keep
// all descendants that are left to the Turn.
func (a *Answers) answer(ctx context.Context, name string, arguments json.RawMessage) (tool.Result, error) {
	none := new(0)
	c := a.next(name, arguments)
	switch {
	case c == nil:
		return tool.Result{Descendants: none}, &tool.Error{Class: tool.Unavailable, Message: fmt.Sprintf(
			"the call of %q was not made, because this is a replay, and the recorded turn has no result of such a call: "+
				"answer from the information you have", name)}
	case c.Denied:
		return tool.Result{Descendants: none}, &tool.Error{
			Class: tool.Denied, Message: "this call was not approved: continue without it, and do not request it again",
		}
	}
	result, err := a.result(ctx, c)
	result.Descendants = cmp.Or(c.finished.Descendants, none)
	return result, err
}

// next returns the recorded call that answers a call, or nil if there is none.
func (a *Answers) next(name string, arguments json.RawMessage) *RecordedCall {
	key := callSignature(name, arguments)
	a.mu.Lock()
	defer a.mu.Unlock()
	var found *RecordedCall
	seen := 0
	for i := range a.recording.Calls {
		c := &a.recording.Calls[i]
		if c.Name != name || callSignature(name, c.Arguments) != key {
			continue
		}
		if found = c; seen == a.given[key] {
			break
		}
		seen++
	}
	if found != nil {
		a.given[key]++
		a.summary.Recorded++
		return found
	}
	a.summary.NotMade++
	if len(a.summary.Unanswered) < maxUnanswered {
		kept, _ := untrusted.Cap(untrusted.Line(string(arguments)), maxListedArguments)
		a.summary.Unanswered = append(a.summary.Unanswered, UnansweredCall{Name: clean(name, maxCallName), Arguments: kept})
	}
	return nil
}

// callSignature identifies calls of the same tool with the same arguments.
func callSignature(name string, arguments json.RawMessage) string {
	data, err := canonical.JSON(arguments)
	if err != nil {
		data = arguments
	}
	return name + "\x00" + string(data)
}

// result returns the recorded result or error of a call, as the tool returned it.
func (a *Answers) result(ctx context.Context, c *RecordedCall) (tool.Result, error) {
	nonce := a.recording.nonce
	switch end := &c.finished; {
	case end.Outcome == loop.Failed:
		return tool.Result{}, c.failure(nonce)
	case end.EndsTurn:
		return tool.Result{Content: end.Text}, nil
	case end.Artifact == "":
		return tool.Split(unfenced(end.Content, nonce)), nil
	}
	data, err := a.read(ctx, c)
	if err != nil {
		return tool.Result{}, &tool.Error{
			Class: tool.Unavailable, Message: "the recorded result of this call can no longer be read", Err: err,
		}
	}
	return tool.Split(string(data)), nil
}

// read reads the artifact with the result of a call. After one failure it reads no other artifact, and cancels the
// replay, because the replay is of no use any more. ctx must end when the replay is cancelled.
func (a *Answers) read(ctx context.Context, c *RecordedCall) ([]byte, error) {
	err := a.Err()
	if err == nil {
		data, failure := a.recording.artifact(ctx, c.finished.Artifact, maxRecordedOutput)
		if failure == nil {
			return data, nil
		}
		err = fmt.Errorf("failed to read the recorded result of a call of %q: %w", clean(c.Name, maxCallName), failure)
	}
	a.mu.Lock()
	a.summary.Recorded--
	if a.interrupted == nil || a.interrupted() == nil { // the end of the context of Within says nothing about the journal
		a.err = err
	}
	a.mu.Unlock()
	if a.cancel != nil {
		a.cancel()
		<-ctx.Done() // otherwise the next request may be sent before the replay ends
	}
	return nil, err
}

// failure returns the recorded error of a call.
func (c *RecordedCall) failure(nonce string) *tool.Error {
	_, text, _ := strings.Cut(c.finished.Content, fmt.Sprintf("error (%s): ", c.finished.Class))
	message, remote, hasRemote := strings.Cut(text, "\n")
	e := &tool.Error{Class: c.finished.Class, Message: message}
	if hasRemote {
		e.RemoteMessage = unfenced(remote, nonce)
	}
	return e
}

// unfenced returns the output of a tool without the fence in which the model received it, because the replay adds a
// fence of its own. Content without this fence is returned unchanged.
func unfenced(content, nonce string) string {
	_, body, found := strings.Cut(content, "<tool-output "+nonce+">")
	if !found || nonce == "" {
		return content
	}
	_, body, found = strings.Cut(body, "\n") // after the notice
	body, closed := strings.CutSuffix(body, "\n</tool-output "+nonce+">")
	if !found || !closed {
		return content
	}
	return body
}
