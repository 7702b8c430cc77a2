// Package readapi serves the journals of Turns to people and programs over HTTP, and reads what it serves:
//
//	GET /v1/namespaces/{namespace}/turns/{name}/journal?after=N&follow=true&redact=true
//	GET /v1/namespaces/{namespace}/turns/{name}/artifacts/{sha256}
//
// The journal comes as JSON lines, one entry a line. Who asks is whom the API server takes the bearer token for, and gets
// what the API server grants: get on turns/log of the group capstan.dev. The header X-Capstan-Turn-Uid of a journal is the UID
// of its Turn.
package readapi

import (
	"encoding/json"
	"fmt"
	"net"
	"net/url"
	"time"

	"github.com/capstan-dev/capstan/internal/runtime/journal"
)

// DefaultPort is the port that a manager serves on where nothing else was chosen.
const DefaultPort = 8082

// Annotations of the Lease of an executor, by which people find the server of its process.
const (
	// AddressAnnotation is the URL of the server, where somebody else can use it: on the machine of a manager that runs
	// outside a cluster.
	AddressAnnotation = "capstan.dev/read-address"
	// PortAnnotation is the port of the executor's pod that leads to the server, where it is to be forwarded.
	PortAnnotation = "capstan.dev/read-port"
)

// turnUIDHeader of a journal names the Turn whose it is, since another may have its name later.
const turnUIDHeader = "X-Capstan-Turn-Uid"

// line is an entry on the wire. A line with an error is the last one: what follows could not be read.
type line struct {
	Seq     int64           `json:"seq"`
	Epoch   int64           `json:"epoch"`
	Kind    journal.Kind    `json:"kind"`
	Version int             `json:"version"`
	Time    time.Time       `json:"time"`
	Payload json.RawMessage `json:"payload,omitempty"`
	// Artifact is the SHA-256 of the artifact that the payload was read from; empty for most.
	Artifact string `json:"artifact,omitempty"`
}

// Marshal returns an entry, whose payload is there, as it is on the wire: JSON without a line feed.
func Marshal(e journal.Entry) ([]byte, error) {
	data, err := json.Marshal(line{
		Seq: e.Seq, Epoch: e.Epoch, Kind: e.Kind, Version: e.Version, Time: e.Time, Payload: e.Payload, Artifact: e.Artifact,
	})
	if err != nil {
		return nil, fmt.Errorf("failed to marshal entry %d: %w", e.Seq, err)
	}
	return data, nil
}

func (l line) entry() journal.Entry {
	return journal.Entry{Seq: l.Seq, Epoch: l.Epoch, Kind: l.Kind, Version: l.Version, Time: l.Time, Payload: l.Payload, Artifact: l.Artifact}
}

// Error is a refusal or a failure, on the wire {"error": "...", "status": 403}.
type Error struct {
	// Status is that of HTTP.
	Status int `json:"status"`
	// Message says what is wrong and what to do.
	Message string `json:"error"`
}

// Error returns the message.
func (e *Error) Error() string { return e.Message }

func refuse(status int, format string, args ...any) *Error {
	return &Error{Status: status, Message: fmt.Sprintf(format, args...)}
}

// CheckAddress fails if a server must not listen at an address, or at one for TLS, each host:port, or "0" or empty for none: beyond this
// machine a token must not cross a network in the clear, so there must be a certificate and its key.
func CheckAddress(address, tlsAddress, certFile, keyFile string) error {
	if (certFile == "") != (keyFile == "") {
		return fmt.Errorf("--read-tls-cert-file %q and --read-tls-key-file %q must be given together", certFile, keyFile)
	}
	if listens(tlsAddress) {
		if _, _, err := net.SplitHostPort(tlsAddress); err != nil {
			return fmt.Errorf("--read-tls-bind-address %q must be host:port, :port, or 0 for none", tlsAddress)
		}
		if certFile == "" {
			return fmt.Errorf("--read-tls-bind-address %q needs a certificate: give --read-tls-cert-file and --read-tls-key-file", tlsAddress)
		}
		certFile = "" // it is not for the other address
	}
	if !listens(address) {
		return nil
	}
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return fmt.Errorf("--read-bind-address %q must be host:port, :port, or 0 for none", address)
	}
	if certFile == "" && !IsLoopback(host) {
		return fmt.Errorf("--read-bind-address %q is not of this machine alone, and has no TLS: give --read-tls-cert-file and --read-tls-key-file, "+
			"since tokens must not cross a network in the clear, or take 127.0.0.1:%d and forward the port", address, DefaultPort)
	}
	return nil
}

// listens reports whether an address is one, and not none.
func listens(address string) bool { return address != "" && address != "0" }

// CheckServer fails if a token must not be sent to a URL.
func CheckServer(server string) error {
	u, err := url.Parse(server)
	switch {
	case err != nil || u.Host == "" || (u.Scheme != "http" && u.Scheme != "https"):
		return fmt.Errorf("%q must be a URL such as https://capstan.example:8443 or http://127.0.0.1:%d", server, DefaultPort)
	case u.Scheme == "http" && !IsLoopback(u.Hostname()):
		return fmt.Errorf("%q must begin with https: a token must not cross a network in the clear", server)
	}
	return nil
}

// IsLoopback reports whether a host, a name or an IP address, is that of the loopback interface.
func IsLoopback(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || (ip != nil && ip.IsLoopback())
}
