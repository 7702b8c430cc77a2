package mcp

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/capstan-dev/capstan/internal/runtime/tool"
)

// IdempotencyKey is the member of a call's _meta that names the call for ever, for servers that can use it.
const IdempotencyKey = "capstan.dev/idempotencyKey"

// Call calls a tool by the name that the server gives it. The error is a *tool.Error. A call is sent once, and once more only
// if the server had surely not taken the first: because the session was over.
func (c *Client) Call(ctx context.Context, name string, call tool.Call) (tool.Result, error) {
	done, err := c.use()
	if err != nil {
		return tool.Result{}, c.failure(ctx, &exchange{}, err)
	}
	defer done()
	arguments := call.Arguments
	if len(arguments) == 0 {
		arguments = json.RawMessage("{}")
	}
	params := &sdk.CallToolParams{Name: name, Arguments: arguments}
	if call.IdempotencyKey != "" {
		params.Meta = sdk.Meta{IdempotencyKey: call.IdempotencyKey}
	}
	for again := true; ; again = false {
		result, lost, err := c.attempt(ctx, name, params)
		if !lost || !again || ctx.Err() != nil {
			return result, err
		}
	}
}

// attempt calls a tool once. Lost means that the server had not taken the call, because the session was over.
func (c *Client) attempt(ctx context.Context, name string, params *sdk.CallToolParams) (result tool.Result, lost bool, err error) {
	ex := &exchange{}
	defer ex.end()
	s, _, err := c.connected(ctx, true)
	if err != nil {
		return tool.Result{}, false, c.failure(ctx, ex, err)
	}
	_, err = s.CallTool(withExchange(ctx, ex), params)
	var given wireResult
	said, missing := ex.decode(&given)
	switch {
	case missing == nil && said != nil:
		return tool.Result{}, false, c.answered(name, said)
	case missing == nil:
		result, err = c.result(name, &given)
		return result, false, err
	case !errors.Is(missing, errBroken):
		return tool.Result{}, false, c.failure(ctx, ex, missing)
	}
	err = ex.cause(err)
	if lost = isLost(err, ex); lost {
		s.lost.Store(true)
		c.drop(s)
	}
	return tool.Result{}, lost, c.failure(ctx, ex, err)
}

// wireResult is the result of a call on the wire.
type wireResult struct {
	Content           []wireContent   `json:"content"`
	StructuredContent json.RawMessage `json:"structuredContent"`
	IsError           bool            `json:"isError"`
}

// wireContent is one part of a result. What it has depends on its type.
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

// result makes of a result what a model can read.
func (c *Client) result(name string, r *wireResult) (tool.Result, error) {
	var parts []string
	text := false
	for _, content := range r.Content {
		text = text || content.Type == "text"
		parts = append(parts, content.words())
	}
	if structured := string(r.StructuredContent); !text && structured != "" && structured != "null" {
		parts = append(parts, structured)
	}
	content := c.redactor.Whole(strings.ToValidUTF8(strings.Join(parts, "\n"), "\uFFFD"))
	if r.IsError {
		return tool.Result{}, c.reported(name, content)
	}
	return tool.Result{Content: content}, nil
}

// words are one part of a result: text as it is, and of anything else what it is.
func (w *wireContent) words() string {
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

// blob says what something is that a model cannot read, and how long.
func blob(kind, otherwise, base64 string) string {
	if kind == "" {
		kind = otherwise
	}
	digits := strings.TrimRight(base64, "=")
	return fmt.Sprintf("[%.128s, %d bytes]", kind, len(digits)*3/4)
}
