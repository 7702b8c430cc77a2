package mcp

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/capstan-dev/capstan/internal/fairgate"
	"github.com/capstan-dev/capstan/internal/runtime/attachment"
	"github.com/capstan-dev/capstan/internal/runtime/tool"
)

// IdempotencyKey is the member of a call's _meta that identifies the call. A repeated call has the same value, so
// servers can recognize it.
const IdempotencyKey = "capstan.dev/idempotencyKey"

// Call calls a tool by its name at the server. The error is a *tool.Error.
//
// Call sends the request once. If the server had ended the session, Call sends the request again in a new session:
// always if the call is repeatable, otherwise only if no byte of the first request was sent. A server that reports the
// end of the session in its response to a call may still have made the call.
func (c *Client) Call(ctx context.Context, name string, call tool.Call) (tool.Result, error) {
	done, err := c.use()
	if err != nil {
		return tool.Result{}, c.callError(ctx, &exchange{}, err)
	}
	defer done()
	ctx = c.withProcessors(ctx)
	arguments := call.Arguments
	if len(arguments) == 0 {
		arguments = json.RawMessage("{}")
	}
	params := &sdk.CallToolParams{Name: name, Arguments: arguments}
	if call.IdempotencyKey != "" {
		params.Meta = sdk.Meta{IdempotencyKey: call.IdempotencyKey}
	}
	result, lost, err := c.attempt(ctx, params, arguments, call.Repeatable)
	if !lost || ctx.Err() != nil {
		return result, err
	}
	mayHaveActed := tool.AsError(err).Class == tool.OutcomeUnknown
	if result, _, err = c.attempt(ctx, params, arguments, call.Repeatable); err != nil {
		failure := *tool.AsError(err)
		failure.MayHaveActed = mayHaveActed
		return tool.Result{}, &failure
	}
	return result, nil
}

// attempt sends a call once. lost reports that the server had ended the session, and that the call may be sent again.
// If any byte of the call was sent, its outcome is unknown even then.
func (c *Client) attempt(
	ctx context.Context, params *sdk.CallToolParams, arguments json.RawMessage, repeatable bool,
) (result tool.Result, lost bool, err error) {
	ex := &exchange{}
	defer ex.end()
	s, err := c.liveSession(ctx, repeatable)
	if err != nil {
		return tool.Result{}, false, c.callError(ctx, ex, err)
	}
	ex.headers = c.paramHeaders(ctx, s, params.Name, arguments)
	_, err = s.CallTool(withExchange(ctx, ex), params)
	var wired wireResult
	release := fairgate.AcquireProcessor(ctx, ex.size())
	remoteErr, decodeErr := ex.decode(&wired)
	if decodeErr == nil && remoteErr == nil {
		if err = c.incomplete(s, wired.ResultType); err == nil {
			result, err = c.result(params.Name, &wired)
		}
	}
	release()
	if decodeErr == nil && remoteErr != nil && repeatable && namesSession(remoteErr.Message) {
		// The error may be that of a tool with sessions of its own. Only a ping can tell.
		if ended, onlyDenied := c.hasEnded(ctx, s); ended && !onlyDenied {
			s.lost.Store(true)
			c.drop(s)
			return tool.Result{}, true, c.unknownOutcome(&sessionError{detail: remoteErr.Message})
		}
	}
	switch {
	case decodeErr == nil && remoteErr != nil:
		return tool.Result{}, false, c.protocolError(params.Name, remoteErr, ex.hasNoID())
	case decodeErr == nil:
		return result, false, err
	case !errors.Is(decodeErr, errBroken):
		return tool.Result{}, false, c.callError(ctx, ex, decodeErr)
	}
	err = ex.cause(err)
	if lost = isLost(err, ex); !lost && repeatable && isRefusal(err) {
		lost, _ = c.hasEnded(ctx, s)
	}
	if lost {
		s.lost.Store(true)
		c.drop(s)
		if ex.sent.Load() {
			return tool.Result{}, repeatable, c.unknownOutcome(err)
		}
	}
	return tool.Result{}, lost, c.callError(ctx, ex, err)
}

// liveSession returns a session for a call. If the call must not be repeated, another request must find out first
// whether the server has ended the session.
func (c *Client) liveSession(ctx context.Context, repeatable bool) (*session, error) {
	s, made, err := c.connectedSession(ctx, true, nil)
	if err != nil || made || repeatable {
		return s, err
	}
	ended, onlyDenied := c.hasEnded(ctx, s)
	if !ended {
		return s, nil
	}
	s.lost.Store(true)
	if s, _, err = c.connectedSession(ctx, true, nil); err != nil || !onlyDenied {
		return s, err
	}
	if _, denied := c.ping(ctx, s); denied { // even in a session that was just made
		c.deniesPings.Store(true)
	}
	return s, nil
}

// hasEnded sends a ping to find out whether the server has ended a session. Many servers do not report that as the
// protocol requires, so any refusal of a ping that may be about the session counts. If the server refuses all pings,
// the list of its tools decides. A failure of another kind, and an error that the server reports for the ping itself,
// do not count. onlyDenied is true if nothing but the refusal of the ping says that the session has ended.
func (c *Client) hasEnded(ctx context.Context, s *session) (ended, onlyDenied bool) {
	ended, denied := c.ping(ctx, s)
	if denied && c.deniesPings.Load() {
		return c.deniesList(ctx, s), false
	}
	return ended || denied, denied
}

// deniesList reports whether the server refuses the first page of its list of tools with a status that some servers use
// for a session that has ended. It has no effect either, so it takes the place of a ping that says nothing.
func (c *Client) deniesList(ctx context.Context, s *session) bool {
	ctx, cancel := context.WithTimeout(ctx, messageTimeout)
	defer cancel()
	_, _, err := s.page(ctx, "")
	return s.lost.Load() || mayDenySession(err)
}

// ping sends a ping in a session. ended is true if the answer says that the server has ended the session, and denied if
// the server refuses the ping with a status that some servers use for such a session.
func (c *Client) ping(ctx context.Context, s *session) (ended, denied bool) {
	if s.ID() == "" {
		return false, false
	}
	ex := &exchange{}
	defer ex.end()
	ctx, cancel := context.WithTimeout(ctx, messageTimeout)
	defer cancel()
	err := ex.cause(s.Ping(withExchange(ctx, ex), nil))
	if remote, decodeErr := ex.decode(nil); decodeErr == nil {
		c.deniesPings.Store(false)
		return remote != nil && namesSession(remote.Message), false
	}
	return isLost(err, ex), mayDenySession(err)
}

// wireResult is the JSON form of the result of a call.
type wireResult struct {
	Content           elements[wireContent] `json:"content"`
	StructuredContent json.RawMessage       `json:"structuredContent"`
	IsError           bool                  `json:"isError"`
	// ResultType says whether the call is complete. Only newer versions of the protocol have it.
	ResultType json.RawMessage `json:"resultType"`
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

// incomplete returns an error for a result of a type that does not complete a call. Older versions of the protocol have
// no types of results, so a server may use the member for another purpose there.
func (c *Client) incomplete(s *session, resultType json.RawMessage) error {
	var name string
	err := json.Unmarshal(resultType, &name)
	switch {
	case name == "input_required":
		return &tool.Error{
			Class:   tool.Failed,
			Message: c.prefix() + "the server asks for input that Capstan cannot give, and has not completed the call",
		}
	case len(resultType) == 0, err == nil && (name == "" || name == "complete"), !s.isNewer():
		return nil
	}
	return &tool.Error{Class: tool.OutcomeUnknown, Message: c.prefix() + errProtocol.Error(), Err: errProtocol}
}

// result converts a result to text for the model.
func (c *Client) result(name string, r *wireResult) (tool.Result, error) {
	parts := make([]string, 0, len(r.Content))
	for _, content := range r.Content {
		parts = append(parts, content.describe())
	}
	result := tool.Result{Content: strings.Join(parts, "\n")}
	switch line, err := compact(r.StructuredContent); { // a single line: see tool.Result.Map
	case err != nil, string(line) == "null":
	case len(parts) == 0:
		result.Content = string(r.StructuredContent)
	default:
		result = separate(r.Content, parts, line)
	}
	result = result.Map(func(whole string) string {
		return c.redactor.Redact(strings.ToValidUTF8(whole, "\uFFFD")) // a credential may be split across the parts
	})
	if r.IsError {
		return tool.Result{}, c.reportedError(name, result.Whole())
	}
	return result, nil
}

// separate returns the parts of a result as its content, and its structured content if the parts do not repeat it. If
// one of several texts repeats it, or if texts repeat it beside other content, separate removes these texts instead,
// because readers of JSON need the value alone. If all parts are texts and are the items of a list, readers of JSON get
// the list: FastMCP writes one text for each item, which together are no JSON.
func separate(content []wireContent, parts []string, structured []byte) tool.Result {
	var texts []string
	var partOf []int // the index of the part for each text
	for i := range content {
		if content[i].Type == "text" {
			texts, partOf = append(texts, content[i].Text), append(partOf, i)
		}
	}
	joined := strings.Join(parts, "\n")
	isJSON := json.Valid([]byte(joined)) // if not all parts are texts, it may be the JSON of another part
	repeated := repetitionOf(texts, structured)
	switch {
	case !repeated.found:
		return tool.Result{Content: joined, Structured: string(structured), ContentIsExtra: len(texts) < len(parts)}
	case repeated.at < 0 && len(texts) == len(parts):
		return tool.Items(repeated.value)
	case repeated.value[0] == '"' && !isJSON, len(texts) == len(parts) && (len(parts) == 1 || isJSON):
		return tool.Result{Content: joined}
	}
	repeats := partOf // all texts are items of the value
	if repeated.at >= 0 {
		repeats = partOf[repeated.at : repeated.at+1]
	}
	var rest []string
	for i, part := range parts {
		if _, found := slices.BinarySearch(repeats, i); !found {
			rest = append(rest, part)
		}
	}
	return tool.Result{Content: strings.Join(rest, "\n"), Structured: string(repeated.value), ContentIsExtra: true}
}

// describe returns one part of a result as text: a text as it is, any other content as a short description.
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
			if text, ok := textOf(w.Resource.MIMEType, w.Resource.Blob); ok {
				return text
			}
			return strings.TrimSpace(blob(w.Resource.MIMEType, "resource", w.Resource.Blob) + " <" + w.Resource.URI + ">")
		}
		return w.Resource.Text
	}
	return fmt.Sprintf("[%.64s]", w.Type)
}

// textOf decodes the blob of a resource if it is a text in UTF-8. Some servers send every file as a blob, whatever its
// type is: github.com/github/copilot-cli/issues/4916. Images and other media may be texts, too, such as SVG, but a
// model can do little with them.
func textOf(mediaType, blob string) (text string, ok bool) {
	switch kind, _, _ := strings.Cut(strings.ToLower(mediaType), "/"); strings.TrimSpace(kind) {
	case "image", "audio", "video", "font", "model":
		return "", false
	}
	data, err := base64.RawStdEncoding.DecodeString(strings.TrimRight(blob, "="))
	if err != nil || attachment.Sniff(data) != "text/plain" {
		return "", false
	}
	return string(data), true
}

// blob returns the type and the size of content that a model cannot read.
func blob(kind, fallback, base64 string) string {
	if kind == "" {
		kind = fallback
	}
	digits := strings.TrimRight(base64, "=")
	return fmt.Sprintf("[%.128s, %d bytes]", kind, len(digits)*3/4)
}
