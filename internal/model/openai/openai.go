// Package openai sends requests to models over OpenAI's chat-completions protocol. It always uses streams and is
// based on github.com/sashabaranov/go-openai.
package openai

import (
	"context"
	"crypto/x509"
	"errors"
	"net/http"
	"strings"
	"time"

	api "github.com/sashabaranov/go-openai"

	"github.com/capstan-dev/capstan/internal/bytebudget"
	"github.com/capstan-dev/capstan/internal/fairgate"
	"github.com/capstan-dev/capstan/internal/netpolicy"
	"github.com/capstan-dev/capstan/internal/redact"
	"github.com/capstan-dev/capstan/internal/runtime/model"
)

// Sizes of the buffers of a connection, in bytes. Over HTTP/1.1 each running request has its own connection, which
// mostly waits: Go's default of 4 KiB for each buffer would be wasted. Longer data bypasses the buffers, because
// bodies are written, and long answers read, in larger pieces.
const (
	readBuffer  = 512
	writeBuffer = 512
)

// Config of an endpoint.
type Config struct {
	// Name of the provider, for messages.
	Name string
	// BaseURL of the endpoint, including the version path.
	BaseURL string
	// APIKey is sent as a bearer token. If it is empty, no token is sent.
	APIKey string
	// CredentialsFrom names the source of the key for messages, such as `Secret "openai" key "apiKey"`.
	CredentialsFrom string
	// Headers are sent with each request.
	Headers []Header
	// Earlier lists secrets of earlier requests to the endpoint. They are removed from texts like the current
	// secrets.
	Earlier []string
	// ConnectTimeout bounds the time to connect, including TLS. IdleTimeout bounds the time from the request to the
	// first event of its answer, and between two events. Comments and single bytes do not count as events.
	ConnectTimeout, IdleTimeout time.Duration
	// Policy decides which addresses may be connected to. If Policy is nil, the built-in table applies.
	Policy *netpolicy.Policy
	// Roots are the trusted certificate authorities. If Roots is nil, the system's are used.
	Roots *x509.CertPool
	// Memory is the account for the memory of long replies. The zero value has no bound.
	Memory bytebudget.Account
}

// Header is sent with each request.
type Header struct {
	Name, Value string
	// Secret is true if the value must not appear in messages.
	Secret bool
}

// Provider sends requests to one endpoint. It implements model.Provider.
type Provider struct {
	cfg       Config
	client    *api.Client
	transport *http.Transport
	redactor  *redact.Redactor
	// longest is MaxStreamBytes; only tests change it.
	longest int
}

// New returns the provider of an endpoint. It sends nothing. Close closes its idle connections.
func New(cfg Config) *Provider {
	base := netpolicy.Transport(cfg.Policy, cfg.ConnectTimeout, cfg.Roots)
	base.ReadBufferSize, base.WriteBufferSize = readBuffer, writeBuffer
	base.Proxy = cfg.Policy.Proxy() // many clusters reach providers only through a proxy
	config := api.DefaultConfig(cfg.APIKey)
	config.BaseURL = strings.TrimRight(cfg.BaseURL, "/")
	// Lines outside events are bounded by their bytes, so their number stays below this limit.
	config.EmptyMessagesLimit = 2 * maxOther
	config.HTTPClient = &transport{base: base, headers: cfg.Headers, anonymous: cfg.APIKey == "", idle: cfg.IdleTimeout}
	return &Provider{
		cfg: cfg, client: api.NewClientWithConfig(config), transport: base, redactor: redactorOf(&cfg),
		longest: MaxStreamBytes,
	}
}

// Close closes idle connections. Running requests continue.
func (p *Provider) Close() { p.transport.CloseIdleConnections() }

// Generate requests one reply. All errors are *model.Error.
func (p *Provider) Generate(ctx context.Context, req model.Request) (reply model.Reply, err error) {
	err = p.Ask(ctx, &req, &reply)
	return reply, err
}

// Ask implements model.Asker. It works in three parts to keep the stack of a waiting Turn small: begin makes the
// request, this frame alone sends it, and finish reads the answer.
func (p *Provider) Ask(ctx context.Context, req *model.Request, reply *model.Reply) error {
	x := &exchange{provider: p, req: req}
	if x.begin(ctx); x.err == nil {
		x.resp, x.err = p.transport.RoundTrip(x.out) //nolint:bodyclose // because finish closes it
	}
	return x.finish(ctx, reply)
}

// exchange is one request and its answer.
type exchange struct {
	provider *Provider
	req      *model.Request
	note     *response
	// payload holds the body and the ID that are sent.
	payload *payload
	// out is the HTTP request, and watch ends it after a time-out. Both are nil until the library has made the
	// request.
	out   *http.Request
	watch *watch
	// resp is the response. err says why there is no response, or why the request was not sent.
	resp *http.Response
	err  error
}

// begin makes the HTTP request. The library makes it and checks the parameters for the model; the transport stops
// the library before it sends the request.
//
//go:noinline
func (x *exchange) begin(ctx context.Context) {
	p := x.provider
	x.note = &response{wanted: eventStream, longest: p.longest, memory: replyMemory{account: p.cfg.Memory}}
	if x.payload, x.err = encode(ctx, x.req); x.err == nil {
		if _, x.err = x.stream(ctx); errors.Is(x.err, errCaught) {
			x.err = nil
		}
	}
}

// stream makes the library build the request, or read the response if there is one.
func (x *exchange) stream(ctx context.Context) (*api.ChatCompletionStream, error) {
	return x.provider.client.CreateChatCompletionStream(withExchange(ctx, x), withoutMessages(x.req))
}

// finish reads the reply.
//
//go:noinline
func (x *exchange) finish(ctx context.Context, reply *model.Reply) error {
	defer x.note.memory.release()
	came, err := x.receive(ctx)
	if err != nil {
		return x.provider.classify(ctx, err, x.note, came)
	}
	x.provider.cleanReply(&came)
	came.Release = x.note.memory.handOver()
	*reply = came
	return nil
}

// Probe requests the endpoint's list of models, which costs nothing. If the endpoint answers but has no such list,
// listed is false and there is no error: some endpoints keep no list, but a wrong base URL looks the same. All
// errors are *model.Error.
func (p *Provider) Probe(ctx context.Context) (listed bool, err error) {
	note := &response{wanted: jsonObject}
	_, err = p.client.ListModels(withExchange(ctx, &exchange{note: note}))
	switch {
	case err == nil:
		return true, nil
	case note.status == http.StatusNotFound, note.status == http.StatusMethodNotAllowed:
		return false, nil
	}
	return false, p.classify(ctx, err, note, model.Reply{})
}

// receive reads the response to its end. It returns the part of the reply that arrived.
func (x *exchange) receive(ctx context.Context) (model.Reply, error) {
	if x.err != nil && x.watch != nil {
		return model.Reply{}, urlError(x.out, x.watch.fail(x.err))
	}
	if x.err != nil {
		return model.Reply{}, x.err
	}
	stream, err := x.stream(ctx)
	if err != nil {
		return model.Reply{}, err
	}
	defer func() {
		// The reply is already complete or lost, so an error of Close changes nothing.
		_ = stream.Close()
	}()
	p, note := x.provider, x.note
	var in incoming
	var flow fairgate.Flow
	for {
		flow.Wait(ctx)
		event, err := stream.RecvRaw()
		if err != nil {
			return p.finished(ctx, &in, err, note)
		}
		done := fairgate.Large(ctx, len(event))
		c, err := chunkOf(event)
		done()
		if err != nil {
			return p.finished(ctx, &in, err, note)
		}
		in.add(c)
		if err := note.memory.hold(note.watch, int(in.kept)); err != nil {
			return p.finished(ctx, &in, err, note)
		}
	}
}
