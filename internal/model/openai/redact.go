package openai

import (
	"github.com/capstan-dev/capstan/internal/redact"
	"github.com/capstan-dev/capstan/internal/runtime/model"
)

// maxDetail bounds the part of a message that an endpoint wrote, in code points.
const maxDetail = 300

// clean makes a text of the endpoint fit for a message: one line, printable, bounded, and without secrets, which some
// endpoints repeat.
func (p *Provider) clean(text string) string { return p.redactor.Line(text, maxDetail) }

// cleanReply takes the secrets out of all that the endpoint wrote. It must see the whole reply: a stream cuts a secret into pieces.
func (p *Provider) cleanReply(reply *model.Reply) {
	reply.Redact(p.redactor.Whole)
}

// redactorOf knows the key and the values of secret headers, and those of before.
func redactorOf(cfg *Config) *redact.Redactor {
	return redact.New(append(cfg.Secrets(), cfg.Earlier...)...)
}

// Secrets returns the key and the values of secret headers.
func (cfg *Config) Secrets() []string {
	var secrets []string
	if cfg.APIKey != "" {
		secrets = append(secrets, cfg.APIKey)
	}
	for _, h := range cfg.Headers {
		if h.Secret {
			secrets = append(secrets, h.Value)
		}
	}
	return secrets
}
