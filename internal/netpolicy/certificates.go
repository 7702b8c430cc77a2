package netpolicy

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
)

// Certificates are the certificates of a client's TLS connections, in PEM. They can be compared with ==. With the zero
// value, the client trusts the authorities of the system and has no certificate of its own.
type Certificates struct {
	// Authorities are trusted in addition to those of the system.
	Authorities string
	// Own is the client's own certificate, followed by the certificates of its issuers. Key is the private key of the
	// client's certificate. Own and Key are both set, or both empty.
	Own, Key string
}

const (
	// systemBytes is about the memory of a copy of the system's authorities, in bytes.
	systemBytes = 64 << 10
	// parsedBytes is about the memory of a certificate, with its PEM, that was parsed, as a multiple of its PEM.
	parsedBytes = 8
)

// Memory returns an upper bound of the memory that the certificates and the settings of TLS take, in bytes.
func (c Certificates) Memory() int64 {
	bytes := int64(len(c.Authorities)+len(c.Own)+len(c.Key)) * parsedBytes
	if c.Authorities != "" {
		bytes += systemBytes
	}
	return bytes
}

// Errors of Certificates.TLS.
var (
	ErrAuthorities = errors.New("there is no certificate in PEM")
	ErrOwn         = errors.New("there is no certificate with its private key in PEM")
)

// TLS returns the settings of connections with these certificates. The error is ErrAuthorities or ErrOwn.
func (c Certificates) TLS() (*tls.Config, error) {
	cfg := &tls.Config{MinVersion: tls.VersionTLS12}
	if c.Authorities != "" {
		roots, err := x509.SystemCertPool()
		if err != nil {
			roots = x509.NewCertPool() // the system has none
		}
		if !roots.AppendCertsFromPEM([]byte(c.Authorities)) {
			return nil, ErrAuthorities
		}
		cfg.RootCAs = roots
	}
	if c.Own != "" || c.Key != "" {
		own, err := tls.X509KeyPair([]byte(c.Own), []byte(c.Key))
		if err != nil {
			return nil, ErrOwn // the original error may quote the Secret
		}
		cfg.Certificates = []tls.Certificate{own}
	}
	return cfg, nil
}
