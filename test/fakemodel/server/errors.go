package server

import (
	"encoding/json"
	"net/http"
	"strconv"
)

// The error types on the wire.
const (
	typeInvalidRequest = "invalid_request_error"
	typeServer         = "server_error"
)

// usualError returns the error that a real server sends with this status.
func usualError(status int) wireError {
	e := wireError{Type: typeInvalidRequest, Message: http.StatusText(status)}
	code := ""
	switch {
	case status == http.StatusUnauthorized:
		e.Message, code = "Incorrect API key provided.", "invalid_api_key"
	case status == http.StatusForbidden:
		e.Message, e.Type, code = "You are not allowed to use this model.", "permission_error", "forbidden"
	case status == http.StatusNotFound:
		e.Message, code = "The model does not exist or you do not have access to it.", "model_not_found"
	case status == http.StatusTooManyRequests:
		e.Message, e.Type, code = "Rate limit reached. Please try again later.", "requests", "rate_limit_exceeded"
	case status == http.StatusServiceUnavailable:
		e.Message, e.Type, code = "The server is overloaded. Please try again later.", typeServer, "overloaded"
	case status >= http.StatusInternalServerError:
		e.Message, e.Type = "The server had an error while processing your request.", typeServer
	}
	if e.Message == "" { // a status without a standard name
		e.Message = "HTTP status " + strconv.Itoa(status)
	}
	if code != "" {
		e.Code = &code
	}
	return e
}

func writeError(w http.ResponseWriter, status int, e wireError) {
	writeJSON(w, status, errorBody{Error: e})
}

// writeJSON sends a whole JSON body. It ignores that a client has disconnected, because the request is counted already.
func writeJSON(w http.ResponseWriter, status int, body any) { _ = sendJSON(w, status, body) }

// sendJSON sends a whole JSON body. It returns an error if the client has disconnected.
func sendJSON(w http.ResponseWriter, status int, body any) error {
	data, err := json.Marshal(body)
	if err != nil {
		panic(err) // the package's own types always encode
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Content-Length", strconv.Itoa(len(data)))
	w.WriteHeader(status)
	if _, err = w.Write(data); err != nil {
		return err
	}
	return http.NewResponseController(w).Flush()
}

// unknownURL answers requests for URLs that are not part of the API.
func unknownURL(w http.ResponseWriter, r *http.Request) {
	writeError(w, http.StatusNotFound, wireError{
		Type: typeInvalidRequest, Message: "Unknown request URL: " + r.Method + " " + r.URL.Path + ".",
		Code: new("unknown_url"),
	})
}
