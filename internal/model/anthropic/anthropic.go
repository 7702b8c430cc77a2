// Package anthropic is the Messages protocol of Anthropic. Its types of requests and answers are its own: see
// docs/architecture.md, Libraries.
package anthropic

import (
	"fmt"
	"net/http"
	"net/url"
	"regexp"
	"strings"

	"github.com/capstan-dev/capstan/internal/model/endpoint"
	"github.com/capstan-dev/capstan/internal/runtime/model"
)

// Version is the version of the protocol, which each request names unless the configuration has another one.
const Version = "2023-06-01"

const (
	versionHeader = "Anthropic-Version"
	keyHeader     = "X-Api-Key"
)

// Config of an endpoint.
type Config struct {
	endpoint.Config
	// Options say how requests are written.
	Options Options
}

// Options say how requests are written. The zero value suits every model.
type Options struct {
	// MaxOutput is the maximum number of tokens of a reply, by model, where it is known. It is at least 1.
	MaxOutput map[string]int
	// Thinking is the form of the setting for reasoning.
	Thinking ThinkingForm
	// StrictSchemas marks the schemas of tools as strict, and sends the schema of the answer as output_config instead
	// of a tool that the model must call.
	StrictSchemas bool
	// ParallelCalls is false if the model may call one tool at a time only. If it is nil, the endpoint decides.
	ParallelCalls *bool
	// Extra are further fields of a request's body. Their names differ from each other and from those of other fields.
	Extra []model.ExtraField
}

// ThinkingForm is the form of the setting for reasoning.
type ThinkingForm int

const (
	// ThinkingByModel uses the form that the model is known to accept.
	ThinkingByModel ThinkingForm = iota
	// ThinkingBudget sends a number of tokens.
	ThinkingBudget
	// ThinkingAdaptive sends the effort, and lets the model decide about the number of tokens.
	ThinkingAdaptive
)

// claude recognizes the models of Anthropic, also behind gateways, and withBudget those up to version 4.5, which know
// only budgets. Later models are deprecating budgets and refuse them since version 4.7:
// github.com/docker/docker-agent/issues/3093. withoutTemperature recognizes those since version 4.7, which refuse a
// temperature: github.com/UKGovernmentBEIS/inspect_ai/pull/3722 and github.com/earendil-works/pi/pull/7961. Other
// names, such as aliases of gateways, say nothing.
var (
	claude             = regexp.MustCompile(`(?i)\bclaude-`)
	withBudget         = upTo(5)
	withoutTemperature = regexp.MustCompile(`(?i)\bclaude-[a-z]+-(4[-.]([7-9]|[1-9]\d)($|\D)|[5-9]($|\D))`)
)

// upTo returns an expression for the models of Anthropic up to version 4 with this minor version.
func upTo(minor int) *regexp.Regexp {
	return regexp.MustCompile(fmt.Sprintf(`(?i)\bclaude-(instant|[23]|(opus|sonnet|haiku)-4($|[-.@:]([0-%d]($|\D)|20\d{6})))`, minor))
}

// refusesTemperature reports whether a model is known to refuse a temperature.
func refusesTemperature(name string) bool {
	return withoutTemperature.MatchString(name)
}

// isAdaptive reports whether a model gets its effort instead of a budget. Models of others know only budgets.
func (o *Options) isAdaptive(name string) bool {
	switch o.Thinking {
	case ThinkingBudget:
		return false
	case ThinkingAdaptive:
		return true
	case ThinkingByModel:
	}
	return claude.MatchString(name) && !withBudget.MatchString(name)
}

// New returns the provider of an endpoint. It sends nothing. Close closes its idle connections.
func New(cfg Config) *endpoint.Provider { return endpoint.New(cfg.Config, protocolOf(&cfg)) }

// protocol implements endpoint.Protocol.
type protocol struct {
	options Options
	// isAnthropic is true for the endpoint of Anthropic itself.
	isAnthropic bool
}

// protocolOf returns the protocol as an endpoint expects it.
func protocolOf(cfg *Config) *protocol {
	u, err := url.Parse(cfg.BaseURL)
	return &protocol{cfg.Options, err == nil && strings.EqualFold(u.Hostname(), "api.anthropic.com")}
}

// Name returns the name of the protocol.
func (*protocol) Name() string { return "the Messages protocol of Anthropic" }

// Path returns the path of messages.
func (*protocol) Path(string) string { return "/messages" }

// ModelsPath returns the path of the list of models.
func (*protocol) ModelsPath() string { return "/models" }

// SetHeaders sends the key and the version.
func (*protocol) SetHeaders(h http.Header, apiKey, _ string) {
	if apiKey != "" {
		h.Set(keyHeader, apiKey)
	}
	if h.Get(versionHeader) == "" {
		h.Set(versionHeader, Version)
	}
}

// Body returns the request with its markers for the cache.
func (p *protocol) Body(req *model.Request, c *endpoint.Contents) ([]byte, error) {
	return bodyOf(req, p, c)
}

// NewDecoder returns a decoder of one answer.
func (p *protocol) NewDecoder(req *model.Request) endpoint.Decoder {
	return &decoder{answerTool: answersWithTool(req, &p.options)}
}
