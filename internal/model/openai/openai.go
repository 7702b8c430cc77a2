// Package openai asks models over OpenAI's chat-completions protocol, always as a stream, on top of
// github.com/sashabaranov/go-openai.
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

// The buffers of a connection, in bytes. There is one for each request under way over HTTP/1.1, which mostly waits: Go's own 4 KiB each
// would be held for nothing. What is longer goes past them: a body is written, and a long answer read, in larger pieces.
const (
	readBuffer  = 512
	writeBuffer = 512
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
func (p *Provider) Generate(ctx context.Context, req model.Request) (reply model.Reply, err error) {
	err = p.Ask(ctx, &req, &reply)
	return reply, err
}

// Ask implements model.Asker. It asks in three parts, so that little is on the stack of a Turn that waits: the request is made, is
// sent without any frame but this one, and then its answer is read.
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
	// sending is what is sent.
	sending *sending
	// out is the request as it is sent, and watch what ends it; nil before the library has made it.
	out   *http.Request
	watch *watch
	// resp is the response to it, and err why there is none. err may also be why it was not sent.
	resp *http.Response
	err  error
}

// begin makes what is sent. The library makes the request for that, and judges whether the model takes its parameters; it is stopped
// where it would send it.
//
//go:noinline
func (x *exchange) begin(ctx context.Context) {
	p := x.provider
	x.note = &response{wanted: eventStream, longest: p.longest, room: room{account: p.cfg.Memory}}
	if x.sending, x.err = encode(ctx, x.req); x.err == nil {
		if _, x.err = x.stream(ctx); errors.Is(x.err, errCaught) {
			x.err = nil
		}
	}
}

// stream has the library make the request, or read the response if there is one.
func (x *exchange) stream(ctx context.Context) (*api.ChatCompletionStream, error) {
	return x.provider.client.CreateChatCompletionStream(withExchange(ctx, x), judged(x.req))
}

// finish reads the reply.
//
//go:noinline
func (x *exchange) finish(ctx context.Context, reply *model.Reply) error {
	defer x.note.room.release()
	came, err := x.receive(ctx)
	if err != nil {
		return x.provider.classify(ctx, err, x.note, came)
	}
	x.provider.cleanReply(&came)
	came.Release = x.note.room.handOver()
	*reply = came
	return nil
}

// Probe asks the endpoint for its list of models, which costs nothing. An endpoint that answers without having such a
// list passes, with listed false: some keep none, but a wrong base URL looks the same. All errors are *model.Error.
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

// receive reads the response to its end, and returns what came of a reply.
func (x *exchange) receive(ctx context.Context) (model.Reply, error) {
	if x.err != nil && x.watch != nil {
		return model.Reply{}, failed(x.out, x.watch.ended(x.err))
	}
	if x.err != nil {
		return model.Reply{}, x.err
	}
	stream, err := x.stream(ctx)
	if err != nil {
		return model.Reply{}, err
	}
	defer func() {
		// The reply is whole or lost by now; a connection that fails to close changes neither.
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
		if err := note.room.hold(note.watch, int(in.kept)); err != nil {
			return p.finished(ctx, &in, err, note)
		}
	}
}
