// Package anthropic implements the Messages protocol of Anthropic. It uses its own types for requests and answers
// instead of those of a library: see docs/architecture.md, Libraries.
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

// Config configures an endpoint.
type Config struct {
	endpoint.Config
	// Options describe how requests are written.
	Options Options
}

// Options describe how requests are written. The zero value suits every model.
type Options struct {
	// MaxOutput maps models to the maximum number of tokens of their replies, which is at least 1. It lacks the models
	// whose maximum is not known.
	MaxOutput map[string]int
	// Thinking is the form of the setting for reasoning.
	Thinking ThinkingForm
	// StrictSchemas marks the schemas of tools as strict, and sends the schema of the answer as output_config instead
	// of a tool that the model must call.
	StrictSchemas bool
	// ParallelCalls is false if the model may call one tool at a time only. If it is nil, the endpoint decides.
	ParallelCalls *bool
	// Extra are further fields of the body of a request. Their names differ from each other and from the names of other
	// fields.
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

// claude matches the names of Anthropic's models, also behind gateways. Other names, such as aliases of gateways, may
// be those of any model.
//
// withBudget matches the models up to version 4.5, which support only budgets. Version 4.6 deprecates budgets, and
// models since version 4.7 refuse them: github.com/docker/docker-agent/issues/3093.
//
// withoutTemperature matches the models since version 4.7, which refuse a temperature:
// github.com/UKGovernmentBEIS/inspect_ai/pull/3722 and github.com/earendil-works/pi/pull/7961.
var (
	claude             = regexp.MustCompile(`(?i)\bclaude-`)
	withBudget         = upTo(5)
	withoutTemperature = regexp.MustCompile(`(?i)\bclaude-[a-z]+-(4[-.]([7-9]|[1-9]\d)($|\D)|[5-9]($|\D))`)
)

// kimi matches the models of Moonshot, and kimiHost matches its hosts. Its thoughts may have no signature, and it has
// refused calls without their thoughts: github.com/anomalyco/opencode/issues/20427 and
// github.com/NousResearch/hermes-agent/pull/49143.
var (
	kimi     = regexp.MustCompile(`(?i)kimi`)
	kimiHost = regexp.MustCompile(`(?i)(^|\.)(moonshot\.(ai|cn)|kimi\.com)$`)
)

// upTo returns an expression for the models of Anthropic up to version 4 with this minor version.
func upTo(minor int) *regexp.Regexp {
	return regexp.MustCompile(fmt.Sprintf(`(?i)\bclaude-(instant|[23]|(opus|sonnet|haiku)-4($|[-.@:]([0-%d]($|\D)|20\d{6})))`, minor))
}

// refusesTemperature reports whether a model is known to refuse a temperature.
func refusesTemperature(name string) bool {
	return withoutTemperature.MatchString(name)
}

// isAdaptive reports whether a request sends the effort instead of a budget. Models of other makers support only
// budgets.
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
	// isAnthropic is true for the endpoint of Anthropic itself, and isKimi for that of Moonshot.
	isAnthropic, isKimi bool
}

// protocolOf returns the protocol for the endpoint of a configuration.
func protocolOf(cfg *Config) *protocol {
	p := &protocol{options: cfg.Options}
	if u, err := url.Parse(cfg.BaseURL); err == nil {
		p.isAnthropic = strings.EqualFold(u.Hostname(), "api.anthropic.com")
		p.isKimi = kimiHost.MatchString(u.Hostname())
	}
	return p
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
	return &decoder{
		answerTool: answersWithTool(req, &p.options),
		lasting:    !p.isAnthropic && !claude.MatchString(req.Model),
		unsigned:   p.isKimi || !p.isAnthropic && kimi.MatchString(req.Model),
	}
}
