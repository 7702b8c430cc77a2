// Package openai asks models over OpenAI's chat-completions protocol, always as a stream, on top of
// github.com/sashabaranov/go-openai.
package openai

import (
	"context"
	"crypto/x509"
	"net/http"
	"strings"
	"time"

	api "github.com/sashabaranov/go-openai"

	"github.com/capstan-dev/capstan/internal/bytebudget"
	"github.com/capstan-dev/capstan/internal/netpolicy"
	"github.com/capstan-dev/capstan/internal/redact"
	"github.com/capstan-dev/capstan/internal/runtime/model"
)

// The buffers of a connection, in bytes. There is one for each request under way over HTTP/1.1, which mostly waits: Go's own 4 KiB each
// would be held for nothing. What is longer goes past them: a body is written, and a long answer read, in larger pieces.
const (
	readBuffer  = 2 << 10
	writeBuffer = 1 << 10
)

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
	// Earlier are secrets that requests to the endpoint have carried before. They are kept out of texts like those of now.
	Earlier []string
	// ConnectTimeout bounds the connection, TLS included; IdleTimeout the time from the request to the first event of its
	// answer, and from one event to the next. Comments and single bytes do not count.
	ConnectTimeout, IdleTimeout time.Duration
	// Policy says which addresses are connected to; nil for the built-in table.
	Policy *netpolicy.Policy
	// Roots are the certificate authorities that are trusted; nil for the system's.
	Roots *x509.CertPool
	// Memory is what long replies are read into; the zero value has no bound.
	Memory bytebudget.Account
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
	redactor  *redact.Redactor
	// longest is MaxStreamBytes, but in tests.
	longest int
}

// New returns the provider of an endpoint. Nothing is sent. Close drops its idle connections.
func New(cfg Config) *Provider {
	base := netpolicy.Transport(cfg.Policy, cfg.ConnectTimeout, cfg.Roots)
	base.ReadBufferSize, base.WriteBufferSize = readBuffer, writeBuffer
	base.Proxy = cfg.Policy.Proxy() // many clusters reach providers through a proxy alone
	config := api.DefaultConfig(cfg.APIKey)
	config.BaseURL = strings.TrimRight(cfg.BaseURL, "/")
	// Lines that are no events are bounded by their bytes, below this number.
	config.EmptyMessagesLimit = 2 * maxOther
	config.HTTPClient = &transport{base: base, headers: cfg.Headers, anonymous: cfg.APIKey == "", idle: cfg.IdleTimeout}
	return &Provider{cfg: cfg, client: api.NewClientWithConfig(config), transport: base, redactor: redactorOf(&cfg), longest: MaxStreamBytes}
}

// Close drops idle connections. Requests under way go on.
func (p *Provider) Close() { p.transport.CloseIdleConnections() }

// Generate asks for one reply. All errors are *model.Error.
func (p *Provider) Generate(ctx context.Context, req model.Request) (model.Reply, error) {
	note := &response{wanted: eventStream, longest: p.longest, room: room{account: p.cfg.Memory}}
	defer note.room.release()
	reply, err := p.stream(withResponse(ctx, note), &req, note)
	if err != nil {
		return model.Reply{}, p.classify(ctx, err, note, reply)
	}
	p.cleanReply(&reply)
	reply.Release = note.room.handOver()
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
	return false, p.classify(ctx, err, note, model.Reply{})
}

func (p *Provider) stream(ctx context.Context, req *model.Request, note *response) (model.Reply, error) {
	body, parameters, err := encode(req)
	if err != nil {
		return model.Reply{}, err
	}
	ctx = withSending(ctx, body)
	stream, err := p.client.CreateChatCompletionStream(ctx, *parameters)
	if err != nil {
		return model.Reply{}, err
	}
	defer func() {
		// The reply is whole or lost by now; a connection that fails to close changes neither.
		_ = stream.Close()
	}()
	return p.receive(ctx, stream, note)
}

// receive reads a stream to its end. It is apart from stream, whose frame stays on the stack until the endpoint begins to answer,
// in each of thousands of Turns.
func (p *Provider) receive(ctx context.Context, stream *api.ChatCompletionStream, note *response) (model.Reply, error) {
	var in incoming
	for {
		event, err := stream.RecvRaw()
		if err != nil {
			return p.finished(ctx, &in, err, note)
		}
		c, err := chunkOf(event)
		if err != nil {
			return p.finished(ctx, &in, err, note)
		}
		in.add(c)
		if err := note.room.hold(note.watch, int(in.kept)); err != nil {
			return p.finished(ctx, &in, err, note)
		}
	}
}
