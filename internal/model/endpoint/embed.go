package endpoint

import (
	"context"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"io"
	"math"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/capstan-dev/capstan/internal/fairgate"
	"github.com/capstan-dev/capstan/internal/runtime/model"
)

// Embedder is a Protocol that can turn texts into vectors.
type Embedder interface {
	// EmbeddingsPath returns the path of requests for vectors of a model, below the base URL.
	EmbeddingsPath(model string) string
	// EmbeddingsBody returns the body of a request for vectors. If plain is true, the body lacks the field that Refuses
	// detects. The same arguments always give the same bytes.
	EmbeddingsBody(req *model.Request, plain bool) ([]byte, error)
	// Refuses reports whether the message of an error may mean that the endpoint refuses a field that the request does
	// not need.
	Refuses(message string) bool
	// ReadVectors reads an answer for a number of texts. failure is the error that the endpoint has sent instead, in
	// any form that servers send, or nil. err means that the answer does not follow the protocol. In both cases, v has
	// the usage if the answer has it.
	ReadVectors(answer []byte, texts int) (v Vectors, failure []byte, err error)
}

// Vectors is an answer with vectors.
type Vectors struct {
	// Values are the vectors of the texts, in the order of the texts and as JSON, such as a list of numbers. A value is
	// nil if it is missing.
	Values []json.RawMessage
	Usage  model.Usage
	// Model is the name of the model, or empty.
	Model string
}

// embed requests vectors. All errors are *model.Error. If the endpoint refuses a field that the request does not need,
// embed repeats the request without the field. If that succeeds, later requests lack the field, too.
//
//go:noinline
func (p *Provider) embed(ctx context.Context, req *model.Request) (*model.Reply, error) {
	plain := p.plainEmbeddings.Load()
	reply, err := p.embedOnce(ctx, req, plain)
	if err == nil || plain {
		return reply, err
	}
	protocol, ok := p.protocol.(Embedder)
	if e := model.AsError(err); !ok || e.Kind != model.InvalidRequest || e.Unsent || !protocol.Refuses(e.RemoteMessage) {
		return reply, err
	}
	reply, err = p.embedOnce(ctx, req, true)
	if err == nil {
		p.plainEmbeddings.Store(true)
	}
	return reply, err
}

// embedOnce sends one request for vectors.
func (p *Provider) embedOnce(ctx context.Context, req *model.Request, plain bool) (*model.Reply, error) {
	x := p.newExchange(ctx, jsonObject)
	x.embeds, x.first, x.requestID, x.observer, x.facts = true, p.firstTimeout(req), req.ID, req.Observer, req.Facts
	defer x.memory.release()
	reply, err := x.requestVectors(ctx, req, plain)
	if err != nil {
		return nil, x.classify(ctx, err, reply)
	}
	return &reply, nil
}

// requestVectors sends the request and reads its answer.
func (x *exchange) requestVectors(ctx context.Context, req *model.Request, plain bool) (reply model.Reply, err error) {
	protocol, ok := x.provider.protocol.(Embedder)
	if !ok {
		return reply, Unsendable("%s has no embeddings", x.provider.protocol.Name())
	}
	body, err := protocol.EmbeddingsBody(req, plain)
	if err != nil {
		return reply, err
	}
	if x.open(ctx, http.MethodPost, protocol.EmbeddingsPath(req.Model)); x.err == nil {
		x.payload = &payload{body: body, again: func() ([]byte, error) { return protocol.EmbeddingsBody(req, plain) }}
		x.out.Header.Set("Content-Type", jsonObject)
		x.payload.apply(x.out)
		x.resp, x.err = x.provider.bounded.RoundTrip(x.out) //nolint:bodyclose // because accept returns or closes it
	}
	in, err := x.accept(ctx)
	if err != nil {
		return reply, err
	}
	defer in.Close() //nolint:errcheck // because it was read
	answer, err := x.readVectorBody(in)
	if err != nil {
		return reply, err
	}
	answer = trimmed(answer)
	x.partArrived()
	defer fairgate.AcquireProcessor(ctx, len(answer))()
	read, failure, err := protocol.ReadVectors(onlyElement(answer), len(req.Embed.Texts))
	reply.Usage = read.Usage
	switch {
	case err != nil:
		unreadable := Malformed("the response does not follow %s%s", x.provider.protocol.Name(), x.contentTypeHint())
		unreadable.RemoteMessage = x.provider.clean(string(answer[:min(len(answer), maxRefusal)]))
		unreadable.MayBeBilled = x.payload.hasWaited()
		return reply, unreadable
	case failure != nil:
		return reply, x.embeddingsError(failure)
	}
	if x.facts != nil && len(read.Model) <= maxModelName {
		x.facts.Model = x.provider.redactor.Redact(strings.ToValidUTF8(read.Model, ""))
	}
	if reply.Vectors = vectorsOf(read.Values, len(req.Embed.Texts)); reply.Vectors == nil {
		unusable := Malformed("the endpoint sent no vector that can be used: check that the model is one for embeddings")
		unusable.MayBeBilled = slices.ContainsFunc(read.Values, IsPresent)
		return reply, unusable
	}
	reply.FinishReason = model.FinishStop
	return reply, nil
}

// embeddingsError returns the error that an endpoint has sent instead of vectors, in a response with a status of
// success.
func (x *exchange) embeddingsError(body []byte) error {
	failed, _ := x.bodyError(body, "the endpoint answers the request for embeddings with an error: check the path of baseURL and "+
		"the name of the model")
	return failed
}

// readVectorBody reads an answer. For an answer that is not small, it reserves memory.
func (x *exchange) readVectorBody(in io.Reader) ([]byte, error) {
	answer := make([]byte, 0, unreservedReply)
	for {
		if len(answer) == cap(answer) {
			if err := x.memory.hold(x.watch, len(answer), cap(answer)+1); err != nil {
				return nil, err
			}
			grown := make([]byte, len(answer), min(4*cap(answer), maxVectors+1))
			copy(grown, answer)
			answer = grown
		}
		n, err := in.Read(answer[len(answer):cap(answer)])
		answer = answer[:len(answer)+n]
		switch {
		case err == io.EOF:
			return answer, nil
		case err != nil:
			return nil, err
		}
	}
}

// vectorsOf returns the vectors of values, each scaled to unit length. A vector is nil if its value cannot be used, or
// if it does not have as many elements as the first usable vector. vectorsOf returns nil if no value can be used.
func vectorsOf(values []json.RawMessage, texts int) [][]float32 {
	all := make([][]float32, texts)
	dimensions := 0
	for i, value := range values[:min(len(values), texts)] {
		v := normalize(elements(value))
		if dimensions == 0 {
			dimensions = len(v)
		}
		if len(v) == dimensions {
			all[i] = v
		}
	}
	if dimensions == 0 {
		return nil
	}
	return all
}

// elements returns the elements of a vector. The value may be a list of numbers, a list with such a list, or the bytes
// of 32-bit numbers in base64. elements returns nil for any other value, except that a single number counts as
// a list of one number.
func elements(value json.RawMessage) []float32 {
	text := strings.TrimSpace(string(value))
	if encoded, isText := strings.CutPrefix(text, `"`); isText {
		return decodeBase64(strings.TrimSuffix(encoded, `"`))
	}
	for range 2 { // llama-cpp-python: github.com/abetlen/llama-cpp-python/issues/1588
		inner, begins := strings.CutPrefix(text, "[")
		inner, ends := strings.CutSuffix(inner, "]")
		if begins && ends {
			text = strings.TrimSpace(inner)
		}
	}
	n := strings.Count(text, ",") + 1
	if n > model.MaxDimensions {
		return nil
	}
	v := make([]float32, 0, n)
	for number := range strings.SplitSeq(text, ",") {
		f, err := strconv.ParseFloat(strings.TrimSpace(number), 32)
		if err != nil {
			return nil
		}
		v = append(v, float32(f))
	}
	return v
}

// decodeBase64 returns the elements of a vector in base64.
func decodeBase64(text string) []float32 {
	data, err := base64.StdEncoding.DecodeString(text)
	if err != nil || len(data)%4 != 0 || len(data)/4 > model.MaxDimensions {
		return nil
	}
	v := make([]float32, 0, len(data)/4)
	for ; len(data) > 0; data = data[4:] {
		v = append(v, math.Float32frombits(binary.LittleEndian.Uint32(data)))
	}
	return v
}

// normalize scales a vector to unit length and returns it. It returns nil if the vector has no direction.
func normalize(v []float32) []float32 {
	var squares float64
	for _, f := range v {
		squares += float64(f) * float64(f)
	}
	length := math.Sqrt(squares)
	if length == 0 || math.IsNaN(length) || math.IsInf(length, 0) {
		return nil
	}
	for i := range v {
		v[i] = float32(float64(v[i]) / length)
	}
	return v
}
