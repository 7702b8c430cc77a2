// Package openai asks models over OpenAI's chat-completions protocol, always as a stream, on top of
// github.com/sashabaranov/go-openai.
package openai

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"net/http"
	"strings"
	"time"

	api "github.com/sashabaranov/go-openai"

	"github.com/capstan-dev/capstan/internal/runtime/model"
)

// MaxReplyBytes bounds what is read of one response, whatever the endpoint sends.
const MaxReplyBytes = 1 << 20

// Config of an endpoint.
type Config struct {
	// Name of the provider, for messages.
	Name string
	// BaseURL up to and including the version path.
	BaseURL string
	// APIKey is sent as a bearer token if it is not empty.
	APIKey string
	// CredentialsFrom says where the key comes from, for messages, such as `Secret "openai" key "apiKey"`.
	CredentialsFrom string
	// Headers are sent with each request.
	Headers []Header
	// ConnectTimeout bounds the connection, TLS included; IdleTimeout the time in which no byte arrives.
	ConnectTimeout, IdleTimeout time.Duration
}

// Header is sent with each request.
type Header struct {
	Name, Value string
	// Secret values are kept out of messages.
	Secret bool
}

// Provider is an endpoint. It implements model.Provider.
type Provider struct {
	cfg       Config
	client    *api.Client
	transport *http.Transport
}

// New returns the provider of an endpoint. Nothing is sent. Close drops its idle connections.
func New(cfg Config) *Provider {
	dialer := &net.Dialer{Timeout: cfg.ConnectTimeout, KeepAlive: 30 * time.Second}
	base := &http.Transport{
		Proxy: http.ProxyFromEnvironment, DialContext: dialer.DialContext, TLSHandshakeTimeout: cfg.ConnectTimeout,
		ForceAttemptHTTP2: true, MaxIdleConns: 256, MaxIdleConnsPerHost: 256, IdleConnTimeout: 90 * time.Second,
	}
	config := api.DefaultConfig(cfg.APIKey)
	config.BaseURL = strings.TrimRight(cfg.BaseURL, "/")
	// Lines that are no events are bounded by MaxReplyBytes, as all that is read.
	config.EmptyMessagesLimit = MaxReplyBytes
	config.HTTPClient = &http.Client{
		Transport: &transport{base: base, headers: cfg.Headers, anonymous: cfg.APIKey == "", idle: cfg.IdleTimeout},
		// A redirect would carry the headers, and so their secrets, to another host.
		CheckRedirect: func(*http.Request, []*http.Request) error { return errRedirect },
	}
	return &Provider{cfg: cfg, client: api.NewClientWithConfig(config), transport: base}
}

// Close drops idle connections. Requests under way go on.
func (p *Provider) Close() { p.transport.CloseIdleConnections() }

// Generate asks for one reply. All errors are *model.Error.
func (p *Provider) Generate(ctx context.Context, req model.Request) (model.Reply, error) {
	note := &response{wanted: eventStream}
	reply, err := p.stream(withResponse(ctx, note), req, note)
	if err != nil {
		return model.Reply{}, p.classify(ctx, err, note, reply.Usage)
	}
	return reply, nil
}

// Probe asks the endpoint for its list of models, which costs nothing. An endpoint that answers without having such a
// list passes, with listed false: some keep none, but a wrong base URL looks the same. All errors are *model.Error.
func (p *Provider) Probe(ctx context.Context) (listed bool, err error) {
	note := &response{wanted: jsonObject}
	_, err = p.client.ListModels(withResponse(ctx, note))
	switch {
	case err == nil:
		return true, nil
	case note.status == http.StatusNotFound, note.status == http.StatusMethodNotAllowed:
		return false, nil
	}
	return false, p.classify(ctx, err, note, model.Usage{})
}

func (p *Provider) stream(ctx context.Context, req model.Request, note *response) (reply model.Reply, err error) {
	stream, err := p.client.CreateChatCompletionStream(ctx, requestOf(req))
	if err != nil {
		return reply, err
	}
	defer func() {
		// The reply is whole or lost by now; a connection that fails to close changes neither.
		_ = stream.Close()
	}()
	var text strings.Builder
	var finish api.FinishReason
	refused := false
	for {
		chunk, err := stream.Recv()
		if err != nil {
			reply.Text = text.String()
			return p.finished(reply, finish, refused, err, note)
		}
		if chunk.Usage != nil {
			reply.Usage = usageOf(*chunk.Usage)
		}
		for _, c := range chunk.Choices {
			if c.Index != 0 {
				continue
			}
			text.WriteString(c.Delta.Content)
			refused = refused || c.Delta.Refusal != ""
			if c.FinishReason != "" && c.FinishReason != api.FinishReasonNull {
				finish = c.FinishReason
			}
		}
	}
}

// finished judges a stream by how it ended. After a finish reason the answer is whole, whatever became of the connection.
func (p *Provider) finished(reply model.Reply, finish api.FinishReason, refused bool, end error, note *response) (model.Reply, error) {
	switch finish {
	case "":
		if errors.Is(end, io.EOF) {
			return reply, malformed("the stream ended before the answer was finished%s", p.unlikely(note))
		}
		return reply, end
	case api.FinishReasonLength:
		reply.FinishReason = model.FinishLength
		return reply, nil
	case api.FinishReasonContentFilter:
		return reply, &model.Error{Kind: model.ContentFiltered, Message: "the content filter withheld the answer"}
	case api.FinishReasonStop, "eos", "eos_token", "stop_sequence", "end_turn":
		if refused {
			return reply, &model.Error{Kind: model.ContentFiltered, Message: "the model refused to answer"}
		}
		if strings.TrimSpace(reply.Text) == "" {
			return reply, malformed("the answer was empty")
		}
		reply.FinishReason = model.FinishStop
		return reply, nil
	case api.FinishReasonToolCalls, api.FinishReasonFunctionCall:
		return reply, malformed("the model called a tool, and it was offered none")
	case api.FinishReasonNull:
	}
	return reply, malformed("the answer ended for an unknown reason, %q", p.clean(string(finish)))
}

func malformed(format string, args ...any) *model.Error {
	return &model.Error{Kind: model.Malformed, Message: fmt.Sprintf(format, args...)}
}

func requestOf(req model.Request) api.ChatCompletionRequest {
	out := api.ChatCompletionRequest{
		Model: req.Model, StreamOptions: &api.StreamOptions{IncludeUsage: true},
		Messages: make([]api.ChatCompletionMessage, 0, len(req.Messages)),
	}
	for _, m := range req.Messages {
		if m.Content == "" {
			continue // a profile may ask for an empty prompt; the API refuses a message without content
		}
		out.Messages = append(out.Messages, api.ChatCompletionMessage{Role: string(m.Role), Name: m.Name, Content: m.Content})
	}
	if t := req.Parameters.Temperature; t != nil {
		// The library leaves a zero out of the request; its documentation asks for the smallest number instead.
		out.Temperature = max(float32(*t), math.SmallestNonzeroFloat32)
	}
	if n := req.Parameters.MaxOutputTokens; n != nil {
		out.MaxCompletionTokens = *n
	}
	return out
}

func usageOf(u api.Usage) model.Usage {
	out := model.Usage{InputTokens: model.Tokens(int64(u.PromptTokens)), OutputTokens: model.Tokens(int64(u.CompletionTokens))}
	if d := u.CompletionTokensDetails; d != nil {
		out.ReasoningTokens = model.Tokens(int64(d.ReasoningTokens))
	}
	if d := u.PromptTokensDetails; d != nil {
		out.CacheReadTokens = model.Tokens(int64(d.CachedTokens))
	}
	return out
}
