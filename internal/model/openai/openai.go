// Package openai implements OpenAI's chat-completions protocol and its embeddings, with the dialects of compatible
// servers. Requests use the types of github.com/sashabaranov/go-openai. Answers use types of this package, because
// their form differs between servers.
package openai

import (
	"encoding/json"
	"net/http"
	"net/url"

	"github.com/capstan-dev/capstan/internal/model/endpoint"
	"github.com/capstan-dev/capstan/internal/model/lenient"
	"github.com/capstan-dev/capstan/internal/runtime/model"
)

// requestIDHeader is the header with the ID of a request. OpenAI writes it into its logs.
const requestIDHeader = "X-Client-Request-Id"

// Config configures an endpoint.
type Config struct {
	endpoint.Config
	// Dialect describes how requests are written.
	Dialect Dialect
}

// New returns the provider of an endpoint. It sends nothing. Close closes its idle connections.
func New(cfg Config) *endpoint.Provider { return endpoint.New(cfg.Config, &protocol{cfg.Dialect}) }

// protocol implements endpoint.Protocol.
type protocol struct{ dialect Dialect }

// Name returns the name of the protocol.
func (*protocol) Name() string { return "the chat-completions protocol" }

// Path returns the path of chat completions. With Azure's deployments API, it has the name of the model.
func (p *protocol) Path(name string) string {
	if p.dialect.APIVersion == "" {
		return "/chat/completions"
	}
	return "/deployments/" + url.PathEscape(name) + "/chat/completions" + p.query()
}

// ModelsPath returns the path of the list of models.
func (p *protocol) ModelsPath() string { return "/models" + p.query() }

// query returns the query of all URLs, with its question mark, or an empty text.
func (p *protocol) query() string {
	if p.dialect.APIVersion == "" {
		return ""
	}
	return "?api-version=" + url.QueryEscape(p.dialect.APIVersion)
}

// SetHeaders sets the key as a bearer token, or in the header Api-Key for Azure's deployments API.
func (p *protocol) SetHeaders(h http.Header, apiKey, requestID string) {
	switch {
	case apiKey == "":
	case p.dialect.APIVersion != "":
		h.Set("Api-Key", apiKey)
	default:
		h.Set("Authorization", "Bearer "+apiKey)
	}
	if requestID != "" {
		h.Set(requestIDHeader, requestID)
	}
}

// Body returns the request in the dialect.
func (p *protocol) Body(req *model.Request, c *endpoint.Contents) ([]byte, error) {
	return bodyOf(req, &p.dialect, c)
}

// NewDecoder returns a decoder of chunks.
func (p *protocol) NewDecoder(*model.Request) endpoint.Decoder { return &decoder{dialect: &p.dialect} }

// decoder reads the chunks of one answer.
type decoder struct {
	dialect *Dialect
	halves  halves
	details details
	// hasThoughts is true if the ID of a call has a signature: see splitThought.
	hasThoughts bool
	// streams is true once text or a call has arrived as a part of the answer, not as a whole message.
	streams bool
	// choices tells the choices that are parts of the answer from the choices of other answers.
	choices chooser
}

// Decode adds a chunk to an answer. failure is the error that the endpoint sent in place of a chunk, or nil.
func (d *decoder) Decode(event []byte, answer *endpoint.Answer) (failure []byte, err error) {
	event = d.halves.join(event)
	c, err := chunkOf(event)
	if err == nil {
		failure = c.failure(event)
	}
	if err != nil || failure != nil {
		raiseCounts(event, answer)
		return failure, err
	}
	d.add(&c, answer)
	return nil, nil
}

// raiseCounts raises the usage of an answer to the usage of an event that cannot be used. The chunk of such an event
// lacks the members after an unreadable one. Each part is read alone, as far as it can be: the error of the event says
// already what is wrong.
func raiseCounts(event []byte, answer *endpoint.Answer) {
	var counted counts
	_ = json.Unmarshal(event, &counted)
	counted.raise(answer)
	var inChoices struct {
		Choices lenient.List[struct {
			Index lenient.Maybe[lenient.Number] `json:"index"`
			Usage lenient.Maybe[usage]          `json:"usage"` // of Moonshot
		}] `json:"choices"`
	}
	_ = json.Unmarshal(event, &inChoices)
	for i := range inChoices.Choices {
		if c := &inChoices.Choices[i]; c.Index.Value == 0 {
			answer.RaiseUsage(c.Usage.Value.tokens())
		}
	}
}

// add adds a chunk to the answer.
func (d *decoder) add(c *chunk, answer *endpoint.Answer) {
	if d.dialect.OpenEnd {
		answer.AllowOpenEnd()
	}
	answer.SetModel(c.Model.Value)
	if len(c.Choices) == 0 {
		answer.RaiseSeparateUsage(c.Usage.Value.tokens())
	}
	c.raise(answer)
	for i := range c.Choices {
		choice := &c.Choices[i]
		part := d.part(choice)
		if !d.choices.joins(choice, part, len(c.Choices) == 1, answer) {
			continue
		}
		answer.RaiseUsage(choice.Usage.Value.tokens())
		answer.AddText(part.Content.text)
		answer.AddReasoning(part.reasoning())
		answer.AddRefusal(part.Refusal.Value)
		for _, piece := range part.calls() {
			if d.dialect.Returned != ReturnSignatures {
				piece.Data = ""
				split, hasThought := splitThought(piece)
				piece, d.hasThoughts = split, d.hasThoughts || hasThought
			}
			answer.AddCall(piece)
		}
		if d.dialect.Returned == ReturnReasoningDetails && choice.Index.Value == 0 { // Rollback keeps details
			for _, piece := range part.ReasoningDetails.Value {
				d.details.add(piece, answer.KeepData)
			}
		}
		if answer.SetFinish(choice.finish()) {
			d.choices.end(choice, answer)
		}
	}
}

// part returns the part of the answer in a choice: the new part of a stream, or the whole message. If both come, in one
// event or the message at the end as from MiniMax, the message repeats the answer:
// github.com/lobehub/lobehub/issues/4054.
func (d *decoder) part(c *choice) *delta {
	switch {
	case c.Delta.Given:
		d.streams = d.streams || c.Delta.Value.hasAnswer()
		return &c.Delta.Value
	case d.streams:
		return &delta{}
	}
	return &c.Message.Value
}
