package netpolicy

import (
	"crypto/rsa"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"strings"
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
	// parsedBytes is about the memory of a parsed certificate and its PEM together, as a multiple of the PEM.
	parsedBytes = 8
)

// MaxRSABits is the maximum size of an RSA key of Certificates, in bits. A signature with a much larger key, or the
// check of one, takes minutes of a processor, and nothing can stop it. crypto/tls has the same bound for servers.
const MaxRSABits = 8192

// maxKeyBytes is the maximum length of a private key in DER. An RSA key of MaxRSABits has about 4.6 KiB.
const maxKeyBytes = 5 << 10

// Memory returns an upper bound of the memory that the certificates and the settings of TLS take, in bytes.
func (c Certificates) Memory() int64 {
	bytes := int64(len(c.Authorities)+len(c.Own)+len(c.Key)) * parsedBytes
	if c.Authorities != "" {
		bytes += systemBytes
	}
	return bytes
}

// Errors of Certificates.TLS. ErrLargeKey means that a key of RSA has more than MaxRSABits.
var (
	ErrLargeKey    = errors.New("there is an RSA key that is too large")
	ErrAuthorities = errors.New("there is no certificate in PEM")
	ErrOwn         = errors.New("there is no certificate with its private key in PEM")
)

// TLS returns the settings of connections with these certificates. The error is ErrLargeKey, ErrAuthorities or ErrOwn.
func (c Certificates) TLS() (*tls.Config, error) {
	if hasLargeKey(c.Authorities) || hasLargeKey(c.Own) || hasLargeKey(c.Key) {
		return nil, ErrLargeKey // before anything computes with the key
	}
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

// hasLargeKey reports whether a text in PEM has a certificate or a private key with an RSA key of more than MaxRSABits.
// It skips blocks that it cannot parse.
func hasLargeKey(text string) bool {
	for rest := []byte(text); ; {
		var block *pem.Block
		if block, rest = pem.Decode(rest); block == nil {
			return false
		}
		if strings.HasSuffix(block.Type, "PRIVATE KEY") {
			if len(block.Bytes) > maxKeyBytes { // parsing the key would compute with it
				return true
			}
			continue
		}
		certificate, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			continue
		}
		if key, ok := certificate.PublicKey.(*rsa.PublicKey); ok && key.N.BitLen() > MaxRSABits {
			return true
		}
	}
}
