package readapi

import (
	"errors"
	"net/http"
	"regexp"
	"strconv"

	"github.com/capstan-dev/capstan/internal/runtime/journal"
)

var sha256Form = regexp.MustCompile(`^[0-9a-f]{64}$`)

// serveArtifact sends the content of an artifact of the Turn's journal.
func (s *Server) serveArtifact(w http.ResponseWriter, r *http.Request, v visit) *Error {
	name := r.PathValue("sha256")
	if !sha256Form.MatchString(name) {
		return refuse(http.StatusBadRequest, "an artifact is named by its SHA-256, 64 hexadecimal digits in lower case")
	}
	redact, refused := flag(r, "redact")
	if refused != nil {
		return refused
	}
	if redact {
		return refuse(http.StatusBadRequest,
			"an artifact cannot be redacted, because all of it is conversation: request it without redact, or request the journal")
	}
	release, refused := s.hold(r.Context(), v.turn.Namespace, v.user)
	if refused != nil {
		return refused
	}
	defer release()
	a, err := s.o.Journal.Artifact(r.Context(), string(v.turn.UID), name)
	if errors.Is(err, journal.ErrNoArtifact) {
		return refuse(http.StatusNotFound, "the journal of the Turn has no artifact %s", name)
	}
	if err != nil {
		return failureOf(err)
	}
	content, err := a.Content()
	if err != nil {
		return refuse(http.StatusInternalServerError, "%s", err)
	}
	content = []byte(s.o.Credentials.RedactFunc(v.turn.CredentialNamespaces()...)(string(content)))
	h := w.Header()
	h.Set("Content-Type", "application/octet-stream")
	h.Set("Content-Length", strconv.Itoa(len(content)))
	h.Set("Content-Disposition", "attachment")
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Cache-Control", "no-store")
	out := s.writer(w)
	out.limit = deadlineIn(largeTime(len(content)))
	if _, err := out.Write(content); err != nil {
		panic(http.ErrAbortHandler)
	}
	return nil
}

// flag parses a parameter that is true or false. It is false if it is missing.
func flag(r *http.Request, name string) (bool, *Error) {
	text := r.URL.Query().Get(name)
	if text == "" {
		return false, nil
	}
	value, err := strconv.ParseBool(text)
	if err != nil {
		return false, refuse(http.StatusBadRequest, "the parameter %s must be true or false", name)
	}
	return value, nil
}
