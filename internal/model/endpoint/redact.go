package endpoint

import (
	"context"
	"math"
	"slices"
	"strings"

	"github.com/capstan-dev/capstan/internal/fairgate"
	"github.com/capstan-dev/capstan/internal/netpolicy"
	"github.com/capstan-dev/capstan/internal/redact"
	"github.com/capstan-dev/capstan/internal/runtime/model"
)

// maxDetail bounds the text of the endpoint in an error, in code points. Some services name the remedy after several
// hundred code points, and gateways put the text of their provider after their own.
const maxDetail = 900

// clean makes a text of the endpoint safe for a message: one line, printable, bounded, and without secrets, which
// some endpoints repeat.
func (p *Provider) clean(text string) string {
	return p.proxyRedactor.Line(p.redactor.Line(text, math.MaxInt), maxDetail)
}

// cleanReply removes the secrets from all texts of the endpoint. It must run on the whole reply, because a stream
// may cut a secret into pieces.
func (p *Provider) cleanReply(ctx context.Context, reply *model.Reply) {
	reply.Redact(fairgate.Fairly(ctx, p.redactor.Redact))
}

// redactorOf returns the redactor of replies and errors, which removes the key, the token, the secret headers and the
// earlier secrets.
func redactorOf(cfg *Config) *redact.Redactor {
	return redact.New(slices.Concat(cfg.Secrets(), cfg.Earlier)...)
}

// proxyRedactorOf returns the redactor of errors that removes the password of the proxy, if the proxy sees whole
// requests: then it can answer with errors of its own, and repeat the password in them. Replies need no such redactor,
// because they come from the endpoint, which does not receive the password. It would even help a tenant to guess the
// password: the tenant's endpoint could put millions of guesses into a reply, and only the right one would be removed.
func proxyRedactorOf(cfg *Config) *redact.Redactor {
	if strings.HasPrefix(strings.ToLower(cfg.BaseURL), "http:") {
		return redact.New(netpolicy.ProxySecrets()...)
	}
	return redact.New()
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
