package openai

import (
	"encoding/json"
	"net/url"
	"strings"

	"github.com/capstan-dev/capstan/internal/model/endpoint"
	"github.com/capstan-dev/capstan/internal/model/lenient"
	"github.com/capstan-dev/capstan/internal/runtime/model"
)

// EmbeddingsPath returns the path of embeddings. With Azure's deployments API, it has the name of the model.
func (p *protocol) EmbeddingsPath(name string) string {
	if p.dialect.APIVersion == "" {
		return "/embeddings"
	}
	return "/deployments/" + url.PathEscape(name) + "/embeddings" + p.query()
}

// embeddingsRequest is the body of a request for embeddings.
type embeddingsRequest struct {
	Model string   `json:"model"`
	Input []string `json:"input"`
	// Encoding is sent because some servers have another default.
	Encoding string `json:"encoding_format,omitempty"`
	// Dimensions and OutputDimension are the length of the vectors, in dialects with different names for it.
	Dimensions      int `json:"dimensions,omitempty"`
	OutputDimension int `json:"output_dimension,omitempty"`
}

// encodingFormat is the name of the field Encoding. Jina refuses it, and Voyage accepts no value for lists of numbers:
// github.com/1Panel-dev/MaxKB/issues/2639 and github.com/labring/FastGPT/issues/6820.
const encodingFormat = "encoding_format"

// Refuses reports whether the message of an error names the field for the encoding.
func (*protocol) Refuses(message string) bool { return strings.Contains(message, encodingFormat) }

// EmbeddingsBody returns the request, without the extra fields of the endpoint, which belong to chat completions.
func (p *protocol) EmbeddingsBody(req *model.Request, plain bool) ([]byte, error) {
	body := embeddingsRequest{Model: req.Model, Input: req.Embed.Texts, Encoding: "float"}
	if p.dialect.OutputDimension {
		body.OutputDimension = req.Embed.Dimensions
	} else {
		body.Dimensions = req.Embed.Dimensions
	}
	if plain {
		body.Encoding = ""
	}
	return json.Marshal(body)
}

// embeddings is an answer with embeddings.
type embeddings struct {
	Data  json.RawMessage       `json:"data"`
	Model lenient.Maybe[string] `json:"model"`
	Usage lenient.Maybe[usage]  `json:"usage"`
	// The members below belong to an error.
	Object lenient.Maybe[string] `json:"object"`
	endpoint.Problem
}

// embedding is one element of an answer.
type embedding struct {
	Index     lenient.Maybe[lenient.Number] `json:"index"`
	Embedding json.RawMessage               `json:"embedding"`
}

// ReadVectors reads the embeddings. Their indices determine the order. A missing index is the position: Gemini leaves
// out the index 0, as it leaves out all zeros. If two indices are the same, or an index is beyond the last text, the
// positions count instead of all indices.
func (p *protocol) ReadVectors(answer []byte, texts int) (v endpoint.Vectors, failure []byte, err error) {
	var e embeddings
	if err := json.Unmarshal(answer, &e); err != nil {
		return v, nil, err
	}
	v.Usage = model.Usage{InputTokens: int64(max(e.Usage.Value.Prompt.Value, e.Usage.Value.Total.Value))}
	all, err := lenient.First[embedding](e.Data, texts)
	if len(all) == 0 && (endpoint.IsPresent(e.Error) || e.HasText() || e.Object.Value == "error" || e.HasFailed()) {
		return v, answer, nil
	}
	if err != nil {
		return v, nil, err
	}
	v.Model = e.Model.Value
	v.Values = make([]json.RawMessage, texts)
	for i := range all {
		at := i
		if all[i].Index.Given {
			at = int(all[i].Index.Value)
		}
		if at >= texts || v.Values[at] != nil { // the indices make no sense
			clear(v.Values)
			for i := range all {
				v.Values[i] = all[i].Embedding
			}
			return v, nil, nil
		}
		v.Values[at] = all[i].Embedding
	}
	return v, nil, nil
}
