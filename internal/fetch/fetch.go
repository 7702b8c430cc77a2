// Package fetch reads contents from URLs that users name.
package fetch

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"time"

	"github.com/cenkalti/backoff/v5"

	"github.com/capstan-dev/capstan/internal/netpolicy"
)

const (
	// connectTimeout bounds the time to connect, and timeout bounds the time of one attempt.
	connectTimeout = 10 * time.Second
	timeout        = 30 * time.Second
	// attempts is the number of attempts if the server is overloaded or cannot be reached.
	attempts = 3
	// anyType is the media type that servers declare if they do not know the type of a content.
	anyType = "application/octet-stream"
)

// Fetcher fetches contents. Its zero value connects to the addresses of the built-in policy.
type Fetcher struct {
	// Policy decides which addresses may be connected to.
	Policy *netpolicy.Policy
	// TLS has the certificate authorities. If it is nil, the authorities of the system are trusted.
	TLS *tls.Config
}

// For returns a function that returns Fetch with the policy of a namespace.
func For(p *netpolicy.Policy) func(namespace string) func(ctx context.Context, url, mediaType string, most int) ([]byte, error) {
	return func(namespace string) func(context.Context, string, string, int) ([]byte, error) {
		return (&Fetcher{Policy: p.ForNamespace(namespace)}).Fetch
	}
}

// Fetch returns the content of an https URL. most is the maximum length of the content, in bytes. The server must
// declare mediaType, application/octet-stream, or no media type. The error never quotes the server.
func (f *Fetcher) Fetch(ctx context.Context, url, mediaType string, most int) ([]byte, error) {
	transport := netpolicy.Transport(f.Policy, connectTimeout, f.TLS)
	transport.ForceAttemptHTTP2 = false // one large response is faster with the larger buffers of HTTP/1.1
	f.Policy.UseProxy(transport)
	defer transport.CloseIdleConnections()
	client := &http.Client{Transport: transport, CheckRedirect: netpolicy.CheckRedirect}
	wait := backoff.NewExponentialBackOff()
	wait.InitialInterval, wait.MaxInterval = 200*time.Millisecond, 2*time.Second
	return backoff.Retry(ctx, func() ([]byte, error) {
		content, err := get(ctx, client, url, mediaType, most)
		if _, isTemporary := errors.AsType[*temporaryError](err); err != nil && !isTemporary {
			err = backoff.Permanent(err)
		}
		return content, err
	}, backoff.WithBackOff(wait), backoff.WithMaxTries(attempts))
}

// temporaryError means that another attempt may succeed.
type temporaryError struct{ error }

// Unwrap returns the cause.
func (e *temporaryError) Unwrap() error { return e.error }

// get makes one attempt.
func get(ctx context.Context, client *http.Client, url, mediaType string, most int) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return nil, errors.New("the URL is not valid")
	}
	req.Header.Set("Accept", mediaType)
	req.Header.Set("User-Agent", "capstan")
	resp, err := client.Do(req)
	if err != nil {
		return nil, explain(req, err)
	}
	defer resp.Body.Close() //nolint:errcheck // because it was only read
	if err := check(resp, mediaType, most); err != nil {
		return nil, err
	}
	content, err := io.ReadAll(io.LimitReader(resp.Body, int64(most)+1))
	switch {
	case err != nil:
		return nil, explain(req, err)
	case len(content) > most:
		return nil, tooLarge(most)
	}
	return content, nil
}

// check returns why the content of a response must not be read, or nil.
func check(resp *http.Response, mediaType string, most int) error {
	switch status := resp.StatusCode; {
	case status == http.StatusTooManyRequests || status >= http.StatusInternalServerError:
		return &temporaryError{fmt.Errorf("the server answered with status %d: try again later", status)}
	case status != http.StatusOK:
		return fmt.Errorf("the server answered with status %d: correct the URL", status)
	}
	if err := netpolicy.CheckPlain(resp); err != nil {
		return err
	}
	if resp.ContentLength > int64(most) {
		return tooLarge(most)
	}
	declared := resp.Header.Get("Content-Type")
	if declared == "" {
		return nil
	}
	if got, _, err := mime.ParseMediaType(declared); err != nil || got != mediaType && got != anyType {
		return fmt.Errorf("the server does not declare its content as %s: correct mediaType or the URL", mediaType)
	}
	return nil
}

func tooLarge(most int) error {
	return fmt.Errorf("the content may have at most %d bytes: use a smaller one", most)
}

// explain returns the error of a failed request in a text of Capstan, because an error of the library may quote the
// server.
func explain(req *http.Request, err error) error {
	if refused, ok := errors.AsType[*netpolicy.Refused](err); ok && refused.Temporary {
		return &temporaryError{refused}
	} else if ok {
		return refused
	}
	if short, ok := errors.AsType[*netpolicy.Shortage](err); ok {
		return &temporaryError{short}
	}
	if failed, ok := errors.AsType[*netpolicy.ProxyError](err); ok && failed.IsTemporary() {
		return &temporaryError{failed}
	} else if ok {
		return failed
	}
	if errors.Is(err, netpolicy.ErrRedirect) {
		return errors.New("the server redirects to another server, or too often: use the URL of the content itself")
	}
	cause := netpolicy.Cause(err)
	if cause == "" {
		cause = "the connection failed"
	}
	remote := "server"
	if proxy := netpolicy.FailedProxy(req, err); proxy != "" {
		remote = "proxy " + proxy
	}
	return &temporaryError{fmt.Errorf("the %s cannot be reached: %s", remote, cause)}
}
