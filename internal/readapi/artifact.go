package readapi

import (
	"errors"
	"net/http"
	"regexp"
	"strconv"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/runtime/journal"
)

var sha256Form = regexp.MustCompile(`^[0-9a-f]{64}$`)

// serveArtifact sends the content of an artifact of the Turn's journal.
func (s *Server) serveArtifact(w http.ResponseWriter, r *http.Request, t *v1alpha1.Turn) *Error {
	name := r.PathValue("sha256")
	if !sha256Form.MatchString(name) {
		return refuse(http.StatusBadRequest, "an artifact is named by its SHA-256, 64 hexadecimal digits in lower case")
	}
	select {
	case s.large <- struct{}{}:
		defer func() { <-s.large }()
	case <-r.Context().Done():
		panic(http.ErrAbortHandler)
	}
	a, err := s.o.Journal.Artifact(r.Context(), string(t.UID), name)
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
	h := w.Header()
	h.Set("Content-Type", "application/octet-stream")
	h.Set("Content-Length", strconv.Itoa(len(content)))
	h.Set("Content-Disposition", "attachment")
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Cache-Control", "no-store")
	if _, err := s.writer(w).Write(content); err != nil {
		panic(http.ErrAbortHandler)
	}
	return nil
}
