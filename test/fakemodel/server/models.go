package server

import "net/http"

// listModels answers GET /v1/models.
func (s *Server) listModels(w http.ResponseWriter, r *http.Request) {
	s.recorder.countModelList()
	rules := s.rules.Load()
	if !rules.authorized(r) {
		writeError(w, http.StatusUnauthorized, usualError(http.StatusUnauthorized))
		return
	}
	list := modelList{Object: "list", Data: []wireModel{}}
	for _, name := range rules.cfg.Models {
		list.Data = append(list.Data, s.model(name))
	}
	writeJSON(w, http.StatusOK, list)
}

// getModel answers GET /v1/models/{model}.
func (s *Server) getModel(w http.ResponseWriter, r *http.Request) {
	s.recorder.countModelList()
	rules, name := s.rules.Load(), r.PathValue("model")
	switch {
	case !rules.authorized(r):
		writeError(w, http.StatusUnauthorized, usualError(http.StatusUnauthorized))
	case !rules.serves(name):
		writeError(w, http.StatusNotFound, unknownModel(name))
	default:
		writeJSON(w, http.StatusOK, s.model(name))
	}
}

func (s *Server) model(name string) wireModel {
	return wireModel{ID: name, Object: "model", Created: s.created.Unix(), OwnedBy: "fakemodel"}
}

// unknownModel returns the error for a model that is not served.
func unknownModel(name string) wireError {
	e := usualError(http.StatusNotFound)
	e.Message = "The model `" + name + "` does not exist or you do not have access to it."
	e.Param = new("model")
	return e
}
