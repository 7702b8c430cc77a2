package mcp

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
)

// isFailure reports whether a status means that a request failed on its way or in the server. The outcome of such a
// request is unknown, whatever the body says.
func isFailure(status int) bool {
	return status == http.StatusRequestTimeout || status >= http.StatusInternalServerError
}

// mayHaveActed reports whether a server that replies with a status, and without the protocol's response, may have
// processed the request nevertheless. It has accepted the request if the status is a success: the protocol has such
// replies, as 202, only for messages that need no response.
func mayHaveActed(status int) bool {
	return isFailure(status) || status < http.StatusMultipleChoices || status == http.StatusFound || status == http.StatusSeeOther
}

// handleRefusal handles a response with a status other than 200. If the body contains the protocol's response to this
// request, handleRefusal returns that response, because the server has processed the request. Statuses that mean
// Refused are an exception.
func (w *wire) handleRefusal(req *http.Request, resp *http.Response, ex *exchange, call jsonrpc.ID, body []byte) (*http.Response, error) {
	r := responseTo(call, body, ex.whole)
	if r == nil || kindOf(resp.StatusCode) == Refused {
		return nil, w.status(req, resp.StatusCode, string(body[:min(len(body), maxErrorBytes)]))
	}
	if req.Header.Get(sessionHeader) != "" && namesSession(string(body)) {
		w.onLost() // this request has its response; the next one needs a new session
	}
	answer, err := jsonrpc.EncodeMessage(r)
	if err != nil {
		return nil, errProtocol
	}
	ex.keep(answer, false)
	return reply(req, resp, http.StatusOK, jsonType, answer), nil
}

// responseTo returns the response in a body, or nil if the body is not a response to the request with the ID call. The
// ID in the body may be a number, or the same number as a string. For the initialize request (isInitialize), responseTo
// returns only errors. It accepts them also without an ID, because this request has no side effect.
func responseTo(call jsonrpc.ID, body []byte, isInitialize bool) *jsonrpc.Response {
	var message struct {
		ID     json.RawMessage `json:"id"`
		Result json.RawMessage `json:"result"`
		Error  json.RawMessage `json:"error"`
	}
	if err := json.Unmarshal(body, &message); err != nil {
		return nil
	}
	id := strings.Trim(string(message.ID), `"`)
	if id != fmt.Sprint(call.Raw()) && (!isInitialize || id != "" && id != "null") {
		return nil
	}
	r := &jsonrpc.Response{ID: call, Result: message.Result}
	if len(message.Error) == 0 || string(message.Error) == "null" {
		if r.Result == nil || isInitialize {
			return nil
		}
		return r
	}
	reason, isStandard := readError(message.Error)
	if isInitialize && !isStandard { // an error of another protocol, such as OAuth
		return nil
	}
	r.Result, r.Error = nil, reason
	return r
}

// readError reads the error of a response, which must be JSON. isStandard is true if the error has the members of
// JSON-RPC in their types. Some servers send a text in place of the number, or an object in place of the message or
// the whole error. The message is then the JSON that the server sent, and the code is 0 if it is no number.
func readError(data json.RawMessage) (reason *jsonrpc.Error, isStandard bool) {
	reason = &jsonrpc.Error{}
	if json.Unmarshal(data, reason) == nil && reason.Message != "" {
		return reason, true
	}
	var members struct {
		Code    json.RawMessage `json:"code"`
		Message json.RawMessage `json:"message"`
		Data    json.RawMessage `json:"data"`
	}
	_ = json.Unmarshal(data, &members)                                           // an error of another form has no members
	code, _ := strconv.ParseInt(strings.Trim(string(members.Code), `"`), 10, 64) // 0 for another form
	reason = &jsonrpc.Error{Code: code, Data: members.Data}
	for _, text := range []json.RawMessage{members.Message, data} {
		if reason.Message = plainText(text); reason.Message != "" {
			break
		}
	}
	return reason, false
}

// plainText returns the text of a JSON string, or any other JSON as it is. It returns an empty text for null.
func plainText(data json.RawMessage) string {
	var text string
	if json.Unmarshal(data, &text) != nil {
		return string(data)
	}
	return text
}

// refusal returns an error for a status other than 2xx, and nil otherwise.
func (w *wire) refusal(req *http.Request, resp *http.Response) error {
	if resp.StatusCode >= http.StatusOK && resp.StatusCode < http.StatusMultipleChoices {
		return nil
	}
	return w.status(req, resp.StatusCode, detailOf(resp))
}

// detailOf returns the start of the body of a response with an error status.
func detailOf(resp *http.Response) string {
	detail, _ := io.ReadAll(io.LimitReader(resp.Body, maxErrorBytes)) // a partial text is good enough
	return string(detail)
}

// status returns the error for a response whose status refuses the request. If the server does not know the session,
// status also calls onLost.
func (w *wire) status(req *http.Request, status int, detail string) error {
	if isOver(req, status, detail) {
		w.onLost()
		return &sessionError{detail: detail}
	}
	return &statusError{status: status, detail: detail}
}

// isOver reports whether a status and a body mean that the server does not know the session. The protocol uses status
// 404 for that; servers based on examples of the reference SDK send 400 and mention the session. According to the
// protocol, such a server has not processed the request. But an error of the tool itself may look the same.
func isOver(req *http.Request, status int, detail string) bool {
	return req.Header.Get(sessionHeader) != "" && (status == http.StatusNotFound || status == http.StatusBadRequest && namesSession(detail))
}

// deniesSession reports whether an answer with status 200, which is no response with the ID of the request, has an
// error that says that the server does not know the session. If so, it calls onLost. For example, keryx sent the body
// {"error":"Session not found"} (actionhero/keryx#503). As with the statuses of isOver, the server may have processed
// the request nevertheless.
func (w *wire) deniesSession(header http.Header, body []byte) bool {
	var message struct {
		Result presence        `json:"result"`
		Error  json.RawMessage `json:"error"`
	}
	if header.Get(sessionHeader) == "" || len(body) > maxErrorBytes || json.Unmarshal(body, &message) != nil ||
		message.Result == hasValue || !namesSession(string(message.Error)) {
		return false
	}
	w.onLost()
	return true
}

// isRefusal reports whether err is the server's answer to a request, and not a failure on the way to the server. A
// restarted server may answer with a page, or with nothing.
func isRefusal(err error) bool {
	if _, ok := errors.AsType[*statusError](err); ok || errors.Is(err, errProtocol) {
		return true
	}
	_, ok := errors.AsType[*jsonrpc.Error](err)
	return ok && !isTransport(err)
}

// mayDenySession reports whether servers give such an answer to requests in a session that they do not know, although
// the protocol requires 404. For example, rmcp answered 401 for a long time. Other servers accept the request without a
// response in the protocol.
func mayDenySession(err error) bool {
	refusal, ok := errors.AsType[*statusError](err)
	if !ok {
		return errors.Is(err, errProtocol)
	}
	switch refusal.status {
	case http.StatusBadRequest, http.StatusUnauthorized, http.StatusForbidden, http.StatusConflict, http.StatusGone:
		return true
	}
	return refusal.status < http.StatusMultipleChoices
}

// namesSession reports whether a text is about a session of the protocol, and not about a session of the server's
// application.
func namesSession(detail string) bool {
	text := strings.ToLower(detail)
	return slices.ContainsFunc([]string{
		"session id", "session not found", "invalid session", "mcp-session-id", "no valid session", "server not initialized",
	}, func(phrase string) bool {
		return strings.Contains(text, phrase)
	})
}
