// Package modeltest is the contract suite for adapters of models. A server sends the answers of a corpus to an adapter.
// The corpus has a directory for each service. Its answers have the forms that real services send, as documentation,
// source code or public issues show. Some answers were made up in such a form, for example to break in the middle.
package modeltest

import (
	"bufio"
	"bytes"
	"embed"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"math"
	"net/http"
	"net/http/httptest"
	"path"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/capstan-dev/capstan/internal/runtime/model"
)

//go:embed corpus
var corpus embed.FS

// Name is the name of the provider that adapters under test must have. Messages contain it.
const Name = "demo"

// Exchange is one answer of a service, and the reply or the error that an adapter must return for it.
type Exchange struct {
	// Name is the name of the file, without its extension.
	Name string
	// Source names the documentation, source code or issue from which the form of the answer was taken.
	Source string
	// Attached are the media types of the attachments of the request, and Sent is the content that its last message
	// must have, as JSON. Both are empty if the request has no attachments.
	Attached []string
	Sent     json.RawMessage
	// Texts is the number of texts of a request for vectors, and 0 for any other request. Vectors are the vectors that
	// the adapter must return, rounded to two decimals.
	Texts   int
	Vectors [][]float32
	// Status, Header and Body are the answer.
	Status int
	Header http.Header
	Body   []byte
	// Cut is true if the connection breaks after the body.
	Cut bool
	// Reply is the reply that the adapter must return, or nil if it must fail with Error.
	Reply *model.Reply
	Error *Failure
}

// Failure is the part of a model.Error that matters.
type Failure struct {
	Kind model.ErrorKind `json:"kind"`
	// Message is the message for people.
	Message string `json:"message"`
	// Remote is the text of the service.
	Remote string `json:"remote,omitempty"`
	// RetryAfter is a duration such as 30s, or empty.
	RetryAfter string `json:"retryAfter,omitempty"`
	// Usage is the usage that the service reported.
	Usage model.Usage `json:"usage,omitzero"`
}

// Directories returns the names of the directories of the corpus.
func Directories() ([]string, error) {
	entries, err := corpus.ReadDir("corpus")
	if err != nil {
		return nil, err
	}
	names := make([]string, 0, len(entries))
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names, nil
}

// Load reads the exchanges of a directory, in the order of their names.
func Load(directory string) ([]Exchange, error) {
	files, err := fs.Glob(corpus, path.Join("corpus", directory, "*.http"))
	if err != nil {
		return nil, err
	}
	all := make([]Exchange, 0, len(files))
	for _, file := range files {
		data, err := corpus.ReadFile(file)
		if err != nil {
			return nil, err
		}
		x, err := Parse(data)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", file, err)
		}
		x.Name = strings.TrimSuffix(path.Base(file), ".http")
		all = append(all, x)
	}
	return all, nil
}

// Parse reads a file of the corpus: fields, a blank line, and the answer as it is sent over HTTP/1.1. The line breaks
// of the head may be LF alone; the body is used unchanged. The fields are:
//   - source, which names where the form of the answer was taken from;
//   - reply or error, as JSON;
//   - end with the value cut, if the connection breaks after the body;
//   - attached and sent, if the request has attachments: their media types, separated by commas, and the content that
//     the last message of the request must have, as JSON;
//   - texts and vectors, if the request asks for vectors: the number of texts, and the vectors of the reply, as JSON.
func Parse(file []byte) (Exchange, error) {
	fields, answer, ok := bytes.Cut(file, []byte("\n\n"))
	if !ok {
		return Exchange{}, errors.New("no blank line follows the fields: add one before the answer")
	}
	var x Exchange
	for line := range strings.Lines(string(fields)) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), ": ")
		var err error
		switch name {
		case "source":
			x.Source = value
		case "attached":
			x.Attached = strings.Split(value, ", ")
		case "sent":
			err = json.Unmarshal([]byte(value), &x.Sent)
		case "texts":
			x.Texts, err = strconv.Atoi(value)
		case "vectors":
			err = json.Unmarshal([]byte(value), &x.Vectors)
		case "end":
			x.Cut = value == "cut"
		case "reply":
			err = decodeStrictly(value, &x.Reply)
		case "error":
			err = decodeStrictly(value, &x.Error)
		default:
			err = errors.New("the field is unknown")
		}
		if err != nil {
			return Exchange{}, fmt.Errorf("field %q: %w", name, err)
		}
	}
	if (x.Attached == nil) != (x.Sent == nil) {
		return Exchange{}, errors.New("a file with attached needs sent, and a file with sent needs attached")
	}
	if x.Source == "" || (x.Reply == nil) == (x.Error == nil) {
		return Exchange{}, errors.New("a file needs source, and either reply or error")
	}
	in := bytes.NewReader(answer)
	head := bufio.NewReader(in)
	resp, err := http.ReadResponse(head, nil)
	if err != nil {
		return Exchange{}, fmt.Errorf("failed to read the head of the answer: %w", err)
	}
	x.Status, x.Header = resp.StatusCode, resp.Header
	// The body is the rest of the file, even if it is shorter than its Content-Length. Find it before Close, which may
	// read a part of it.
	x.Body = answer[len(answer)-in.Len()-head.Buffered():]
	_ = resp.Body.Close() // it was not read
	return x, nil
}

// decodeStrictly reads JSON. It fails if the JSON has an unknown field.
func decodeStrictly(text string, into any) error {
	d := json.NewDecoder(strings.NewReader(text))
	d.DisallowUnknownFields()
	return d.Decode(into)
}

// ServeHTTP sends the answer.
func (x *Exchange) ServeHTTP(w http.ResponseWriter, _ *http.Request) {
	maps.Copy(w.Header(), x.Header)
	if x.Cut { // announce one byte more than is sent, so that the client reads an unexpected end
		w.Header().Set("Content-Length", strconv.Itoa(len(x.Body)+1))
	}
	w.WriteHeader(x.Status)
	_, _ = w.Write(x.Body) // the test notices if the client is gone
	if x.Cut {
		_ = http.NewResponseController(w).Flush() // likewise
		panic(http.ErrAbortHandler)
	}
}

// Run sends the answer of each exchange of a directory to an adapter, and checks the adapter's reply or error. start
// returns an adapter with the name Name for a base URL.
func Run(t *testing.T, directory string, start func(t *testing.T, baseURL string) model.Provider) {
	t.Helper()
	all, err := Load(directory)
	if err != nil {
		t.Fatal(err)
	}
	for i := range all {
		t.Run(directory+"/"+all[i].Name, func(t *testing.T) { all[i].run(t, start) })
	}
}

// run checks the reply or the error of one exchange.
func (x *Exchange) run(t *testing.T, start func(t *testing.T, baseURL string) model.Provider) {
	t.Helper()
	var sent []byte
	web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		sent, _ = io.ReadAll(r.Body) // lastContent fails if the body is incomplete
		x.ServeHTTP(w, r)
	}))
	t.Cleanup(web.Close)
	req := x.request()
	got, err := start(t, web.URL+"/v1").Generate(t.Context(), req)
	if unchanged := x.request(); !cmp.Equal(unchanged.Messages, req.Messages) || !cmp.Equal(unchanged.Tools, req.Tools) {
		t.Errorf("the adapter has changed the messages or tools of its request to %+v and %+v", req.Messages, req.Tools)
	}
	if x.Sent != nil {
		if diff := cmp.Diff(decoded(t, x.Sent), lastContent(t, sent)); diff != "" {
			t.Errorf("the request differs from %s: -want +got:\n%s", x.Source, diff)
		}
	}
	if got != nil && got.Release != nil {
		got.Release()
		got.Release = nil
	}
	if x.Reply != nil {
		if got != nil {
			if diff := cmp.Diff(x.Vectors, rounded(got.Vectors)); diff != "" {
				t.Errorf("the vectors of %s differ: -want +got:\n%s", x.Source, diff)
			}
			got.Vectors = nil
		}
		if diff := cmp.Diff(x.Reply, got); diff != "" || err != nil {
			t.Errorf("the answer of %s was read wrongly (error %v): -want +got:\n%s", x.Source, err, diff)
		}
		return
	}
	e, ok := errors.AsType[*model.Error](err)
	if !ok {
		t.Fatalf("the answer of %s gives %+v, %v; want a *model.Error", x.Source, got, err)
	}
	failure := Failure{Kind: e.Kind, Message: e.Message, Remote: e.RemoteMessage, Usage: e.Usage}
	if e.RetryAfter != 0 {
		failure.RetryAfter = e.RetryAfter.Round(time.Millisecond).String()
	}
	if diff := cmp.Diff(*x.Error, failure); diff != "" {
		t.Errorf("the error of %s: -want +got:\n%s", x.Source, diff)
	}
}

// rounded rounds vectors to two decimals and returns them.
func rounded(all [][]float32) [][]float32 {
	for _, v := range all {
		for i := range v {
			v[i] = float32(math.Round(float64(v[i])*100) / 100)
		}
	}
	return all
}

// request returns the request of an exchange. The content of an attachment is its media type.
func (x *Exchange) request() *model.Request {
	if x.Texts > 0 {
		return &model.Request{Model: "small", Embed: &model.Embed{Texts: slices.Repeat([]string{"hello"}, x.Texts)}}
	}
	req := Request()
	last := &req.Messages[len(req.Messages)-1]
	for _, mediaType := range x.Attached {
		last.Attachments = append(last.Attachments, model.Attachment{
			Name: "plan", MediaType: mediaType, SHA256: mediaType, Bytes: int64(len(mediaType)),
		})
	}
	req.Content = func(a *model.Attachment) ([]byte, error) { return []byte(a.MediaType), nil }
	return req
}

// lastContent returns the content of the last message of a body.
func lastContent(t *testing.T, body []byte) any {
	t.Helper()
	var req struct {
		Messages []struct{ Content json.RawMessage }
	}
	if err := json.Unmarshal(body, &req); err != nil || len(req.Messages) == 0 {
		t.Fatalf("the body %s has no messages (error %v)", body, err)
	}
	return decoded(t, req.Messages[len(req.Messages)-1].Content)
}

func decoded(t *testing.T, text json.RawMessage) (value any) {
	t.Helper()
	if err := json.Unmarshal(text, &value); err != nil {
		t.Fatalf("%s is not JSON: %v", text, err)
	}
	return value
}

// Request returns the request to which the answers of the corpus reply. It has one tool.
func Request() *model.Request {
	return &model.Request{
		Model: "small",
		Messages: []model.Message{
			{Role: model.RoleSystem, Name: "system_prompt", Content: "Be brief."},
			{Role: model.RoleUser, Name: "user_message", Content: "hello"},
		},
		Tools: []model.Tool{{
			Name: "count", Description: "Counts.",
			Parameters: json.RawMessage(`{"type":"object","properties":{"n":{"type":"integer"}}}`),
		}},
	}
}
