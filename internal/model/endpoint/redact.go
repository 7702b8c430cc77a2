package endpoint

import (
	"context"
	"slices"

	"github.com/capstan-dev/capstan/internal/fairgate"
	"github.com/capstan-dev/capstan/internal/netpolicy"
	"github.com/capstan-dev/capstan/internal/redact"
	"github.com/capstan-dev/capstan/internal/runtime/model"
)

// maxDetail bounds the text of the endpoint in an error, in code points. Services name the remedy at the end of several
// hundred, and gateways put the text of their provider behind their own.
const maxDetail = 900

// clean makes a text of the endpoint safe for a message: one line, printable, bounded, and without secrets, which
// some endpoints repeat.
func (p *Provider) clean(text string) string { return p.redactor.Line(text, maxDetail) }

// cleanReply removes the secrets from all texts of the endpoint. It must run on the whole reply, because a stream
// may cut a secret into pieces.
func (p *Provider) cleanReply(ctx context.Context, reply *model.Reply) {
	reply.Redact(fairgate.Fairly(ctx, p.redactor.Redact))
}

// redactorOf returns a redactor for the key, the token, the secret headers, the earlier secrets, and the passwords of
// proxies.
func redactorOf(cfg *Config) *redact.Redactor {
	return redact.New(slices.Concat(cfg.Secrets(), cfg.Earlier, netpolicy.ProxySecrets())...)
}

// Secrets returns the key, the token and the values of secret headers.
func (cfg *Config) Secrets() []string {
	var secrets []string
	for _, credential := range []string{cfg.APIKey, cfg.BearerToken} {
		if credential != "" {
			secrets = append(secrets, credential)
		}
	}
	for _, h := range cfg.Headers {
		if h.Secret {
			secrets = append(secrets, h.Value)
		}
	}
	return secrets
}
