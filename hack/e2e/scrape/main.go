// Command scrape requests a URL over TLS with the token of its Pod's ServiceAccount, as a Prometheus in the cluster
// does. It prints the status and the body of the answer. The cluster's authority must have issued the server's
// certificate.
package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

const (
	// account is the directory with the token of the ServiceAccount and the certificate of the cluster's authority.
	account = "/var/run/secrets/kubernetes.io/serviceaccount"
	// patience is the time until the server must answer: a new Service may take some seconds.
	patience = 30 * time.Second
	// requestTimeout is the time limit of one request.
	requestTimeout = 10 * time.Second
	pollInterval   = 500 * time.Millisecond
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	err := run(ctx, account, os.Args[1:], os.Stdout)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "scrape:", err)
		os.Exit(1)
	}
}

// run requests the URL in args with the files in the directory of a ServiceAccount.
func run(ctx context.Context, account string, args []string, out io.Writer) error {
	if len(args) != 1 {
		return errors.New("usage: scrape URL")
	}
	token, err := os.ReadFile(filepath.Join(account, "token"))
	if err != nil {
		return err
	}
	authority, err := os.ReadFile(filepath.Join(account, "ca.crt"))
	if err != nil {
		return err
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(authority) {
		return errors.New("the ServiceAccount has no certificate of the cluster's authority")
	}
	web := &http.Client{Timeout: requestTimeout, Transport: &http.Transport{
		TLSClientConfig: &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12},
	}}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for {
		answer, err := get(ctx, web, args[0], strings.TrimSpace(string(token)))
		if err == nil {
			_, err = io.WriteString(out, answer)
			return err
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(pollInterval):
		}
	}
}

// get returns the status and the body of an answer. It returns an error if there is no answer, or if the server cannot
// answer now.
func get(ctx context.Context, web *http.Client, url, token string) (string, error) {
	//nolint:gosec // because the URL is an argument of the program, and the test chooses it
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return "", err
	}
	request.Header.Set("Authorization", "Bearer "+token)
	response, err := web.Do(request) //nolint:gosec // see above
	if err != nil {
		return "", err
	}
	defer func() { _ = response.Body.Close() }() // the body was read
	body, err := io.ReadAll(response.Body)
	if err != nil {
		return "", err
	}
	if response.StatusCode == http.StatusServiceUnavailable {
		return "", fmt.Errorf("HTTP %d: %s", response.StatusCode, body)
	}
	return fmt.Sprintf("HTTP %d\n%s", response.StatusCode, body), nil
}
