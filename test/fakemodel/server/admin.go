package server

import (
	"io"
	"net/http"
)

// maxRulesBytes bounds the size of a rules file in a PUT request.
const maxRulesBytes = 8 << 20

// getStats answers GET /_fake/stats.
func (s *Server) getStats(w http.ResponseWriter, _ *http.Request) {
	writeJSON(w, http.StatusOK, s.Stats())
}

// getRequests answers GET /_fake/requests.
func (s *Server) getRequests(w http.ResponseWriter, _ *http.Request) {
	writeJSON(w, http.StatusOK, s.Requests())
}

// putRules answers PUT /_fake/rules, whose body is a whole rules file. An invalid file changes nothing.
func (s *Server) putRules(w http.ResponseWriter, r *http.Request) {
	refuse := func(err error) {
		writeError(w, http.StatusBadRequest, wireError{Type: typeInvalidRequest, Message: err.Error()})
	}
	data, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxRulesBytes))
	if err != nil {
		refuse(err)
		return
	}
	cfg, err := ParseConfig(data)
	if err != nil {
		refuse(err)
		return
	}
	if err := s.SetConfig(cfg); err != nil {
		refuse(err)
		return
	}
	w.WriteHeader(http.StatusNoContent)
}

// postReset answers POST /_fake/reset.
func (s *Server) postReset(w http.ResponseWriter, _ *http.Request) {
	s.Reset()
	w.WriteHeader(http.StatusNoContent)
}
