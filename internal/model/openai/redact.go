package openai

import "github.com/capstan-dev/capstan/internal/redact"

// maxDetail bounds the part of a message that an endpoint wrote, in code points.
const maxDetail = 300

// clean makes a text of the endpoint fit for a message: one line, printable, bounded, and without secrets, which some
// endpoints repeat.
func (p *Provider) clean(text string) string { return p.redactor.Line(text, maxDetail) }

// redactorOf knows the key and the values of secret headers.
func redactorOf(cfg *Config) *redact.Redactor {
	secrets := []string{cfg.APIKey}
	for _, h := range cfg.Headers {
		if h.Secret {
			secrets = append(secrets, h.Value)
		}
	}
	return redact.New(secrets...)
}
