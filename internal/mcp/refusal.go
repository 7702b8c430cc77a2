package mcp

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
)

// isFailure says whether a status means that a request came to nothing on its way or in the server, whatever is said beside it:
// what became of the request is not known.
func isFailure(status int) bool {
	return status == http.StatusRequestTimeout || status >= http.StatusInternalServerError
}

// refused is a status other than 200. A response to this very request is its answer, since the server has dealt
// with it, whatever the status.
func (w *wire) refused(req *http.Request, resp *http.Response, ex *exchange, call jsonrpc.ID, body []byte) (*http.Response, error) {
	said := responseTo(call, body, ex.whole)
	if said == nil || kindOf(resp.StatusCode) == Refused {
		return nil, w.status(req, resp.StatusCode, string(body[:min(len(body), maxErrorBytes)]))
	}
	if req.Header.Get(sessionHeader) != "" && namesSession(string(body)) {
		w.onLost() // the request has had its answer; the next one needs another session
	}
	answer, err := jsonrpc.EncodeMessage(said)
	if err != nil {
		return nil, errProtocol
	}
	ex.keep(answer)
	return reply(req, resp, http.StatusOK, jsonType, answer), nil
}

// responseTo returns what a body says in response to a request; nil if it is not about that request. Servers write the number of
// a request as a text, too. A greeting has no outcome, so that an error without a number will do for it.
func responseTo(call jsonrpc.ID, body []byte, greeting bool) *jsonrpc.Response {
	var said struct {
		ID     json.RawMessage `json:"id"`
		Result json.RawMessage `json:"result"`
		Error  json.RawMessage `json:"error"`
	}
	if err := json.Unmarshal(body, &said); err != nil {
		return nil
	}
	about := strings.Trim(string(said.ID), `"`)
	if about != fmt.Sprint(call.Raw()) && (!greeting || about != "" && about != "null") {
		return nil
	}
	r := &jsonrpc.Response{ID: call, Result: said.Result}
	if len(said.Error) == 0 || string(said.Error) == "null" {
		if r.Result == nil || greeting {
			return nil
		}
		return r
	}
	r.Result = nil
	var reason jsonrpc.Error
	if err := json.Unmarshal(said.Error, &reason); err != nil || reason.Message == "" {
		if greeting {
			return nil
		}
		reason = jsonrpc.Error{Code: reason.Code, Message: string(said.Error)}
	}
	r.Error = &reason
	return r
}

// refusal is nil for a status that is none.
func (w *wire) refusal(req *http.Request, resp *http.Response) error {
	if resp.StatusCode >= http.StatusOK && resp.StatusCode < http.StatusMultipleChoices {
		return nil
	}
	return w.status(req, resp.StatusCode, detailOf(resp))
}

// detailOf is what a server says about a refusal.
func detailOf(resp *http.Response) string {
	detail, _ := io.ReadAll(io.LimitReader(resp.Body, maxErrorBytes)) // what there is of it will do
	return string(detail)
}

func (w *wire) status(req *http.Request, status int, detail string) error {
	if isOver(req, status, detail) {
		w.onLost()
		return &sessionError{detail: detail}
	}
	return &statusError{status: status, detail: detail}
}

// isOver says whether a server means by a refusal that it does not know the session. That is 404; servers on the examples of the
// reference SDK say 400 and name the session. By the protocol it has not taken the request then, but an error of its own business
// may look the same.
func isOver(req *http.Request, status int, detail string) bool {
	return req.Header.Get(sessionHeader) != "" && (status == http.StatusNotFound || status == http.StatusBadRequest && namesSession(detail))
}

// namesSession says whether a server speaks of the session of the protocol, and not of one of its own business.
func namesSession(detail string) bool {
	text := strings.ToLower(detail)
	return slices.ContainsFunc([]string{"session id", "session not found", "invalid session", "mcp-session-id", "no valid session"}, func(phrase string) bool {
		return strings.Contains(text, phrase)
	})
}
