// Package readapi serves the journals, the records and the memories of Turns to people and programs over HTTP. It also
// has the client for that API:
//
//	GET /v1/namespaces/{namespace}/turns/{name}/journal?after=N&follow=true&redact=true
//	GET /v1/namespaces/{namespace}/turns/{name}/artifacts/{sha256}
//
//	GET /v1/namespaces/{namespace}/records?agent=A&session=S&requester=R&turn=T&since=TIME&after=NEXT&limit=N
//	GET /v1/namespaces/{namespace}/usage?by=agent,model&since=TIME and the same selectors
//	DELETE /v1/namespaces/{namespace}/records?session=S
//
//	GET /v1/namespaces/{namespace}/memories?agent=A&session=S&requester=R&turn=T&scope=User&id=ID&after=NEXT&limit=N
//	DELETE /v1/namespaces/{namespace}/memories?requester=R and the same selectors
//
//	POST /v1/namespaces/{namespace}/turns/{name}/feedback with {"score": "0.8", "comment": "..."}
//
// Records and usage also take until=TIME. GET /v1/records, GET /v1/usage and GET /v1/memories are for all namespaces.
// Records and usage need the verb list on turns/records, and memories on turns/memories. A deletion needs the verb
// delete. Feedback needs the verb create on turns/feedback.
//
// The journal is a stream of JSON lines, one line for each entry. The API server authenticates the bearer token of
// a request and authorizes its user, who needs the verb get on turns/log of the group capstan.dev. The header
// X-Capstan-Turn-Uid of a journal is the UID of its Turn.
package readapi

import (
	"encoding/json"
	"fmt"
	"net"
	"net/url"
	"time"

	"github.com/capstan-dev/capstan/internal/runtime/journal"
)

// DefaultPort is the default port of a manager's read API.
const DefaultPort = 8082

// Annotations of an executor's Lease, by which clients find the read API of the executor's process.
const (
	// AddressAnnotation is the URL of the server, if clients on the same machine can use it directly because the
	// manager runs outside a cluster.
	AddressAnnotation = "capstan.dev/read-address"
	// PortAnnotation is the port of the server in the executor's Pod, if clients must forward a port.
	PortAnnotation = "capstan.dev/read-port"
)

// turnUIDHeader is the header of a journal that identifies its Turn, because another Turn may have the same name
// later.
const turnUIDHeader = "X-Capstan-Turn-Uid"

// line is an entry on the wire. A line with an error is the last one: the entries after it could not be read.
type line struct {
	Seq     int64           `json:"seq"`
	Epoch   int64           `json:"epoch"`
	Kind    journal.Kind    `json:"kind"`
	Version int             `json:"version"`
	Time    time.Time       `json:"time"`
	Payload json.RawMessage `json:"payload,omitempty"`
	// Artifact is the SHA-256 of the artifact that holds the payload. It is empty for most entries.
	Artifact string `json:"artifact,omitempty"`
}

// Marshal returns an entry as it is on the wire: JSON without a line feed. The entry must have its payload.
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
	return journal.Entry{
		Seq: l.Seq, Epoch: l.Epoch, Kind: l.Kind, Version: l.Version, Time: l.Time, Payload: l.Payload,
		Artifact: l.Artifact,
	}
}

// Error is a refusal or a failure. On the wire it is {"error": "...", "status": 403}.
type Error struct {
	// Status is the HTTP status.
	Status int `json:"status"`
	// Message describes the problem and what to do.
	Message string `json:"error"`
}

// Error returns the message.
func (e *Error) Error() string { return e.Message }

func refuse(status int, format string, args ...any) *Error {
	return &Error{Status: status, Message: fmt.Sprintf(format, args...)}
}

// CheckAddress returns an error if a server must not listen at these addresses. Each address is host:port, or "0" or
// empty for none. tlsAddress is the address for TLS. Tokens must not cross a network unencrypted, so an address that
// other machines can reach requires a certificate and its key.
func CheckAddress(address, tlsAddress, certFile, keyFile string) error {
	if (certFile == "") != (keyFile == "") {
		return fmt.Errorf("--read-tls-cert-file %q and --read-tls-key-file %q must be set together", certFile, keyFile)
	}
	if listens(tlsAddress) {
		if _, _, err := net.SplitHostPort(tlsAddress); err != nil {
			return fmt.Errorf("--read-tls-bind-address %q must be host:port, :port, or 0 for none", tlsAddress)
		}
		if certFile == "" {
			return fmt.Errorf("--read-tls-bind-address %q needs a certificate: set --read-tls-cert-file and --read-tls-key-file",
				tlsAddress)
		}
		certFile = "" // the certificate is only for tlsAddress
	}
	if !listens(address) {
		return nil
	}
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return fmt.Errorf("--read-bind-address %q must be host:port, :port, or 0 for none", address)
	}
	if certFile == "" && !IsLoopback(host) {
		return fmt.Errorf("--read-bind-address %q is reachable from other machines and has no TLS: set "+
			"--read-tls-cert-file and --read-tls-key-file, "+
			"because tokens must not cross a network unencrypted, or use 127.0.0.1:%d and forward the port", address, DefaultPort)
	}
	return nil
}

// listens reports whether an address is set.
func listens(address string) bool { return address != "" && address != "0" }

// CheckServer returns an error if a token must not be sent to a URL.
func CheckServer(server string) error {
	u, err := url.Parse(server)
	switch {
	case err != nil || u.Host == "" || (u.Scheme != "http" && u.Scheme != "https"):
		return fmt.Errorf("%q must be a URL such as https://capstan.example or http://127.0.0.1:%d", server, DefaultPort)
	case u.Scheme == "http" && !IsLoopback(u.Hostname()):
		return fmt.Errorf("%q must begin with https: a token must not cross a network unencrypted", server)
	}
	return nil
}

// IsLoopback reports whether a host name or IP address belongs to the loopback interface.
func IsLoopback(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || (ip != nil && ip.IsLoopback())
}
