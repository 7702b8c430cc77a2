package mcp

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/capstan-dev/capstan/internal/fairgate"
	"github.com/capstan-dev/capstan/internal/runtime/tool"
)

// IdempotencyKey is the member of a call's _meta that identifies the call permanently. Servers can use it to
// recognize a repeated call.
const IdempotencyKey = "capstan.dev/idempotencyKey"

// Call calls a tool by its name on the server. The error is a *tool.Error.
//
// Call sends the request once. If the session was over, it sends the request again in a new session: a repeatable
// call always, any other call only if no byte of the first request was sent. A server that reports the end of the
// session in its response to a call may still have made the call.
func (c *Client) Call(ctx context.Context, name string, call tool.Call) (tool.Result, error) {
	done, err := c.use()
	if err != nil {
		return tool.Result{}, c.failure(ctx, &exchange{}, err)
	}
	defer done()
	ctx = c.inTurn(ctx)
	arguments := call.Arguments
	if len(arguments) == 0 {
		arguments = json.RawMessage("{}")
	}
	params := &sdk.CallToolParams{Name: name, Arguments: arguments}
	if call.IdempotencyKey != "" {
		params.Meta = sdk.Meta{IdempotencyKey: call.IdempotencyKey}
	}
	for again := true; ; again = false {
		result, lost, err := c.attempt(ctx, name, params, call.Repeatable)
		if !lost || !again || ctx.Err() != nil {
			return result, err
		}
	}
}

// attempt sends a call once. lost reports that the session was over and that the call may be sent again.
func (c *Client) attempt(
	ctx context.Context, name string, params *sdk.CallToolParams, repeatable bool,
) (result tool.Result, lost bool, err error) {
	ex := &exchange{}
	defer ex.end()
	s, err := c.liveSession(ctx, repeatable)
	if err != nil {
		return tool.Result{}, false, c.failure(ctx, ex, err)
	}
	_, err = s.CallTool(withExchange(ctx, ex), params)
	var given wireResult
	large := fairgate.AcquireProcessor(ctx, ex.size())
	said, missing := ex.decode(&given)
	if missing == nil && said == nil {
		result, err = c.result(name, &given)
	}
	large()
	switch {
	case missing == nil && said != nil:
		return tool.Result{}, false, c.protocolError(name, said)
	case missing == nil:
		return result, false, err
	case !errors.Is(missing, errBroken):
		return tool.Result{}, false, c.failure(ctx, ex, missing)
	}
	err = ex.cause(err)
	if lost = isLost(err, ex); lost {
		s.lost.Store(true)
		c.drop(s)
		if !repeatable && ex.sent.Load() {
			return tool.Result{}, false, c.unknownOutcome(err)
		}
	}
	return tool.Result{}, lost, c.failure(ctx, ex, err)
}

// liveSession returns a session for a call. A call that must not be repeated must not be the request that discovers
// the end of a session, so alive sends a ping first. Any other outcome of the ping is ignored.
func (c *Client) liveSession(ctx context.Context, repeatable bool) (*session, error) {
	s, made, err := c.connectedSession(ctx, true)
	if err != nil || made || repeatable || s.ID() == "" {
		return s, err
	}
	ex := &exchange{}
	defer ex.end()
	within, cancel := context.WithTimeout(ctx, noticeTimeout)
	defer cancel()
	if err := s.Ping(withExchange(within, ex), nil); !isLost(ex.cause(err), ex) {
		return s, nil
	}
	s.lost.Store(true)
	s, _, err = c.connectedSession(ctx, true)
	return s, err
}

// wireResult is the JSON form of the result of a call.
type wireResult struct {
	Content           []wireContent   `json:"content"`
	StructuredContent json.RawMessage `json:"structuredContent"`
	IsError           bool            `json:"isError"`
}

// wireContent is the JSON form of one part of a result. Its members depend on its type.
type wireContent struct {
	Type     string `json:"type"`
	Text     string `json:"text"`
	Data     string `json:"data"`
	MIMEType string `json:"mimeType"`
	URI      string `json:"uri"`
	Name     string `json:"name"`
	Title    string `json:"title"`
	Resource *struct {
		URI      string `json:"uri"`
		MIMEType string `json:"mimeType"`
		Text     string `json:"text"`
		Blob     string `json:"blob"`
	} `json:"resource"`
}

// result converts a result to text for the model.
func (c *Client) result(name string, r *wireResult) (tool.Result, error) {
	var parts []string
	text := false
	for _, content := range r.Content {
		text = text || content.Type == "text"
		parts = append(parts, content.describe())
	}
	if structured := string(r.StructuredContent); !text && structured != "" && structured != "null" {
		parts = append(parts, structured)
	}
	content := c.redactor.Redact(strings.ToValidUTF8(strings.Join(parts, "\n"), "\uFFFD"))
	if r.IsError {
		return tool.Result{}, c.reportedError(name, content)
	}
	return tool.Result{Content: content}, nil
}

// describe returns one part of a result as text: a text unchanged, any other content as a short description.
func (w *wireContent) describe() string {
	switch w.Type {
	case "text":
		return w.Text
	case "image", "audio":
		return blob(w.MIMEType, w.Type, w.Data)
	case "resource_link":
		title := w.Title
		if title == "" {
			title = w.Name
		}
		return strings.TrimSpace(title + " <" + w.URI + ">")
	case "resource":
		switch {
		case w.Resource == nil:
			return "[resource]"
		case w.Resource.Blob != "":
			return strings.TrimSpace(blob(w.Resource.MIMEType, "resource", w.Resource.Blob) + " <" + w.Resource.URI + ">")
		}
		return w.Resource.Text
	}
	return fmt.Sprintf("[%.64s]", w.Type)
}

// blob returns the type and the size of content that a model cannot read.
func blob(kind, otherwise, base64 string) string {
	if kind == "" {
		kind = otherwise
	}
	digits := strings.TrimRight(base64, "=")
	return fmt.Sprintf("[%.128s, %d bytes]", kind, len(digits)*3/4)
}
