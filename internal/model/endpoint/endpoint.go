// Package endpoint sends requests to endpoints of models over HTTP, in the protocol of an adapter. It always requests
// replies as streams. It bounds the part of an answer that it reads, reserves memory for the answer, removes
// credentials from it, and ends a request whose answer makes no progress. So every adapter protects the manager in the
// same way.
package endpoint

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"regexp"
	"strings"
	"sync/atomic"
	"time"

	"github.com/capstan-dev/capstan/internal/bytebudget"
	"github.com/capstan-dev/capstan/internal/fairgate"
	"github.com/capstan-dev/capstan/internal/model/lenient"
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

// Config configures an endpoint.
type Config struct {
	// Name is the name of the provider for messages.
	Name string
	// BaseURL is the URL of the endpoint, including the version path.
	BaseURL string
	// APIKey is sent in the header that the protocol defines. If it is empty, no key is sent.
	APIKey string
	// BearerToken is sent in the header Authorization, in any protocol. If it is empty, no token is sent.
	BearerToken string
	// CredentialsFrom names the source of the key or token for messages, such as `Secret "openai" key "apiKey"`.
	CredentialsFrom string
	// Headers are sent with each request.
	Headers []Header
	// Earlier lists secrets of earlier requests to the endpoint. They are removed from texts like the current
	// secrets.
	Earlier []string
	// ConnectTimeout bounds the time to connect, including TLS. IdleTimeout bounds the time between two events of an
	// answer, and the time to answer a probe. Comments and single bytes do not count as events. A ping within an answer
	// restarts the time, so that up to ten times IdleTimeout may pass between two events.
	ConnectTimeout, IdleTimeout time.Duration
	// FirstEventTimeout bounds the time from a request to the first part of its answer: text, reasoning, arguments of a
	// call or a finish reason. If it is 0, only model.Request.FirstEventTimeout and the context bound that time.
	FirstEventTimeout time.Duration
	// Policy decides which addresses may be connected to. If Policy is nil, the built-in table applies.
	Policy *netpolicy.Policy
	// TLS is from netpolicy.Certificates. If it is nil, the certificate authorities of the system are trusted.
	TLS *tls.Config
	// Memory is the account from which replies reserve memory. The zero value has no bound.
	Memory bytebudget.Account
	// MaxStreamBytes replaces the constant MaxStreamBytes if it is not 0.
	MaxStreamBytes int
}

// Header is sent with each request.
type Header struct {
	Name, Value string
	// Secret is true if the value must not appear in messages.
	Secret bool
}

// Protocol writes requests and reads answers. It is safe for concurrent use.
type Protocol interface {
	// Name returns the name for messages, such as "the chat-completions protocol".
	Name() string
	// Path returns the path of requests for replies of a model, and ModelsPath returns the path of the list of models.
	// Both are below the base URL, and may have a query.
	Path(model string) string
	ModelsPath() string
	// SetHeaders sets the headers of the protocol, among them the key and the ID of the request unless they are empty.
	// h already has the headers of the configuration.
	SetHeaders(h http.Header, apiKey, requestID string)
	// Body returns the body of a request, always the same bytes, with marks of c in place of the contents of
	// attachments. The marks must be in the order in which they were made. If no endpoint could read the request, the
	// error is from Unsendable.
	Body(req *model.Request, c *Contents) ([]byte, error)
	// NewDecoder returns the decoder of one answer.
	NewDecoder(req *model.Request) Decoder
}

// Decoder reads the events of one answer.
type Decoder interface {
	// Decode adds an event, or a whole answer, to the answer. The event is only valid during the call. failure is the
	// error that the endpoint has put into the event, in any form that servers send, or nil. err means that the event
	// does not follow the protocol. In both cases, Decode raises the usage of the answer if the event has a usage.
	Decode(event []byte, answer *Answer) (failure []byte, err error)
}

// DataDecoder is a Decoder of an endpoint that may need a part of a reply again in later requests.
type DataDecoder interface {
	// ProviderData returns the data of a whole reply with calls, or nil. The data of each call is in CallPiece instead.
	// The parts of the data must be from Answer.KeepData or Answer.Reasoning.
	ProviderData(answer *Answer) *model.ProviderData
}

// Provider sends requests to one endpoint. It implements model.Provider.
type Provider struct {
	cfg       Config
	protocol  Protocol
	transport *http.Transport
	// bounded sends with transport.
	bounded *netpolicy.Bounded
	// redactor removes secrets from all texts, and proxyRedactor removes the password of a proxy from errors.
	redactor, proxyRedactor *redact.Redactor
	// plainEmbeddings is true if the endpoint makes vectors only without a field that it refuses: see embed.
	plainEmbeddings atomic.Bool
}

// New returns the provider of an endpoint. It sends nothing. Close closes its idle connections.
func New(cfg Config, protocol Protocol) *Provider {
	transport := netpolicy.Transport(cfg.Policy, cfg.ConnectTimeout, cfg.TLS)
	transport.ReadBufferSize, transport.WriteBufferSize = readBuffer, writeBuffer
	cfg.Policy.UseProxy(transport) // many clusters reach providers only through a proxy
	cfg.BaseURL = strings.TrimRight(cfg.BaseURL, "/")
	return &Provider{
		cfg: cfg, protocol: protocol, transport: transport, bounded: netpolicy.NewBounded(transport),
		redactor: redactorOf(&cfg), proxyRedactor: proxyRedactorOf(&cfg),
	}
}

// Close closes idle connections. Running requests continue.
func (p *Provider) Close() { p.transport.CloseIdleConnections() }

// Generate requests one reply. All errors are *model.Error. It works in three parts to keep the stack of a waiting
// Turn small: begin makes the request, this frame alone sends it, and finish reads the answer.
func (p *Provider) Generate(ctx context.Context, req *model.Request) (*model.Reply, error) {
	if req.Embed != nil {
		return p.embed(ctx, req)
	}
	x := p.newExchange(ctx, eventStream)
	x.first = p.firstTimeout(req)
	if x.begin(ctx, req); x.err == nil {
		x.resp, x.err = p.bounded.RoundTrip(x.out) //nolint:bodyclose // because finish closes it
	}
	return x.finish(ctx)
}

// firstTimeout returns the time to the first part of the answer to a request, or 0 if it has no bound.
func (p *Provider) firstTimeout(req *model.Request) time.Duration {
	first := p.cfg.FirstEventTimeout
	if own := req.FirstEventTimeout; own > 0 && (first == 0 || own < first) {
		return own
	}
	return first
}

// begin makes the HTTP request.
//
//go:noinline
func (x *exchange) begin(ctx context.Context, req *model.Request) {
	protocol := x.provider.protocol
	sent, err := encode(ctx, req, protocol)
	if err != nil {
		x.err = err
		return
	}
	x.requestID, x.tools, x.decoder, x.observer, x.facts = req.ID, req.Offered(), protocol.NewDecoder(req), req.Observer, req.Facts
	x.outputLimit = req.MaxOutput()
	if x.open(ctx, http.MethodPost, protocol.Path(req.Model)); x.err == nil {
		x.out.Header.Set("Content-Type", jsonObject)
		sent.apply(x.out)
		x.payload = sent
	}
}

// finish reads the reply.
//
//go:noinline
func (x *exchange) finish(ctx context.Context) (*model.Reply, error) {
	defer x.memory.release()
	reply, err := x.receive(ctx)
	if x.facts != nil {
		x.facts.Model = x.provider.redactor.Redact(x.facts.Model)
	}
	if err != nil {
		return nil, x.classify(ctx, err, reply)
	}
	x.provider.cleanReply(ctx, &reply)
	reply.Release = x.memory.handOver()
	return &reply, nil
}

// Listing says whether an endpoint that answers has a list of models.
type Listing int

const (
	// ListUnknown is the zero value, for an endpoint that has not answered.
	ListUnknown Listing = iota
	// Listed means that the endpoint has sent its list.
	Listed
	// NoList means that the endpoint has no list. A wrong base URL looks the same.
	NoList
	// ListRefused means that the endpoint does not let these credentials list models. They may still be allowed to ask
	// them. Some endpoints refuse wrong credentials in the same way.
	ListRefused
)

// Probe requests the endpoint's list of models, which costs nothing. All errors are *model.Error.
func (p *Provider) Probe(ctx context.Context) (Listing, error) {
	x := p.newExchange(ctx, jsonObject)
	x.first = p.cfg.IdleTimeout
	if x.open(ctx, http.MethodGet, p.protocol.ModelsPath()); x.err == nil {
		x.resp, x.err = p.bounded.RoundTrip(x.out) //nolint:bodyclose // because models closes it
	}
	err := x.models(ctx)
	switch {
	case err == nil:
		return Listed, nil
	case x.status == http.StatusNotFound, x.status == http.StatusMethodNotAllowed:
		return NoList, nil
	}
	failure := x.classify(ctx, err, model.Reply{})
	if refusesList(x.status, failure) {
		return ListRefused, nil
	}
	return ListUnknown, failure
}

// refusesList reports whether an endpoint may have refused only its list of models, and not the credentials. status is
// the status of its answer. Restricted keys of OpenAI get the status 401 with a message about missing scopes, and many
// gateways refuse all requests except completions with the status 403.
func refusesList(status int, failure *model.Error) bool {
	switch {
	case failure.Kind != model.Auth:
		return false
	case status == http.StatusForbidden:
		return !refusesKey(failure.RemoteMessage)
	}
	return status == http.StatusUnauthorized &&
		containsAny(strings.ToLower(failure.RemoteMessage), "missing scopes", "insufficient permissions")
}

// models reads a list of models. Only its form matters: an object with the list, or the list itself. An object with an
// error is not a list. A response that begins like JSON and is too long to read counts as a list.
func (x *exchange) models(ctx context.Context) error {
	body, err := x.accept(ctx)
	if err != nil {
		return err
	}
	defer body.Close() //nolint:errcheck // because it was read
	data, err := io.ReadAll(body)
	data = trimmed(data)
	if _, isLong := errors.AsType[tooLong](err); isLong && len(data) > 0 && bytes.ContainsAny(data[:1], "{[") {
		return nil
	}
	if err != nil {
		return err
	}
	var answer struct {
		Models lenient.List[json.RawMessage] `json:"data"` // a list of a million numbers would need 30 MB
		Problem
	}
	err = json.Unmarshal(onlyElement(data), &answer)
	switch {
	case err == nil && len(answer.Models) == 0 && (IsPresent(answer.Error) || IsPresent(answer.Msg) || answer.HasFailed()):
		return x.modelsError(onlyElement(data))
	case err != nil && json.Unmarshal(data, &answer.Models) == nil:
		return nil
	}
	return err
}

// modelsError returns the error that an endpoint has sent instead of a list of models, in a response with a status of
// success. If the body has another status, that one counts as the status of the response. LM Studio sends such errors
// for unknown paths: github.com/lmstudio-ai/lmstudio-bug-tracker/issues/618.
func (x *exchange) modelsError(body []byte) error {
	failed, status := x.bodyError(body, "the endpoint answers the request for baseURL/models with an error: check the path of baseURL")
	x.status = cmp.Or(status, x.status)
	return failed
}

// bodyError returns the error in the body of a response with a status of success, and the status that the body has, or
// 0. If neither that status nor the error itself says what is wrong, message is the message of an InvalidRequest.
func (x *exchange) bodyError(body []byte, message string) (failed *model.Error, status int) {
	reported := reportOf(body)
	status = reported.httpStatus()
	if failed = x.errorOf(body, status); status != 0 || failed.Kind != model.Overloaded {
		return failed, status
	}
	return &model.Error{Kind: model.InvalidRequest, RemoteMessage: failed.RemoteMessage, Message: message}, 0
}

// receive reads the response to its end. It returns the part of the reply that arrived.
func (x *exchange) receive(ctx context.Context) (reply model.Reply, failure error) {
	body, err := x.accept(ctx)
	if err != nil {
		return model.Reply{}, err
	}
	defer func() {
		if failure == nil {
			body.readRest()
		}
		_ = body.Close() // the reply is complete or lost by then
	}()
	answer := Answer{facts: x.facts, calls: calls{tools: x.tools}}
	var flow fairgate.Flow
	stream := newEvents(body, x.watch, &x.memory)
	var textError *model.Error // the error in the newest event, if that event is a text instead of JSON
	for {
		flow.Wait(ctx)
		event, err := stream.next(int(answer.kept))
		if err != nil && textError != nil && (!stream.done || answer.received == 0 || namesFailure(textError)) {
			return x.result(ctx, &answer, textError)
		}
		if err != nil {
			return x.result(ctx, &answer, x.endOf(ctx, &answer, err, stream))
		}
		if isText(event) {
			textError = x.errorOf(event, 0)
			continue
		}
		textError = nil
		done := fairgate.AcquireProcessor(ctx, len(event))
		err = x.read(event, &answer)
		done()
		if err != nil {
			return x.result(ctx, &answer, err)
		}
		if answer.hasBegun() {
			x.partArrived()
		}
		if answer.complete {
			return x.result(ctx, &answer, io.EOF)
		}
	}
}

// partArrived records that a part of the answer has arrived.
func (x *exchange) partArrived() {
	if x.watch.last.IsZero() {
		if x.facts != nil {
			x.facts.FirstEvent = time.Since(x.watch.begun)
		}
		if x.observer != nil {
			x.observer.ObserveBegin()
		}
	}
	x.watch.noteProgress()
}

// isText reports whether an event is a short text instead of JSON. Gateways send such texts while a model thinks.
// Servers send an error as such a text at the end.
func isText(event []byte) bool {
	const longest = 1 << 10
	return len(event) <= longest && !bytes.ContainsAny(event[:1], `{["`) && !json.Valid(event)
}

// failureWords matches the words and the HTTP statuses that occur in short texts of errors.
var failureWords = regexp.MustCompile(`(?i)error|exception|fail|abort|timeout|timed out|unavailable|exceed|limit|quota|closed|` +
	`disconnect|reset|refused|denied|invalid|gateway|overload|memory|lost|\b[45]\d\d\b`)

// namesFailure reports whether a short text in place of a finish reason is an error. Other texts are signs of life.
func namesFailure(text *model.Error) bool {
	return text.Kind != model.Overloaded || failureWords.MatchString(text.RemoteMessage)
}

// read adds an event to the part of the reply that has arrived, or returns the error in it.
func (x *exchange) read(event []byte, answer *Answer) error {
	failure, err := x.decoder.Decode(onlyElement(event), answer)
	if err != nil {
		unreadable := Malformed("the response does not follow %s%s", x.provider.protocol.Name(), x.contentTypeHint())
		unreadable.RemoteMessage = x.provider.clean(string(event))
		return unreadable
	}
	if failure != nil {
		return x.errorOf(failure, 0)
	}
	return nil
}

// onlyElement returns the element of a list that has one, and any other event as it is. Gemini puts errors into a list:
// github.com/google-gemini/gemini-cli/issues/6454.
func onlyElement(event []byte) []byte {
	inner, isList := bytes.CutPrefix(event, []byte("["))
	inner, ends := bytes.CutSuffix(inner, []byte("]"))
	if isList && ends && json.Valid(inner) {
		return inner
	}
	return event
}

// endOf returns the error that ends a stream, which is io.EOF at its proper end. The text outside the events may be an
// error of the endpoint, or its whole answer: some endpoints cannot stream.
func (x *exchange) endOf(ctx context.Context, answer *Answer, end error, stream *events) error {
	answer.complete = answer.complete || stream.done
	other := bytes.TrimPrefix(bytes.TrimSpace(stream.other), []byte("error:")) // llama.cpp before September 2025
	defer fairgate.AcquireProcessor(ctx, len(other))()
	var whole json.RawMessage
	values := json.NewDecoder(bytes.NewReader(other))
	if !errors.Is(end, io.EOF) || values.Decode(&whole) != nil {
		isWhole := errors.Is(end, io.EOF) && !stream.cut && len(other) == 0
		answer.complete = answer.complete || isWhole && answer.endsWhole(hasOwnEnd(x.resp))
		return end
	}
	before := answer.received
	if err := x.read(whole, answer); err != nil {
		return err
	}
	// Another object after it means that the server sends events without "data:", and that the rest of them is missing.
	isAlone := !opensObject(string(other[values.InputOffset():]))
	answer.complete = answer.complete || isAlone && answer.received > before
	return end
}
