package netpolicy

import (
	"crypto/x509"
	"fmt"
)

// LoadAuthorities reads the certificate authorities of the system. A process must call it before its first TLS
// connection: package crypto/x509 reads them once. If it had no free file descriptor then, no certificate would be
// trusted until a restart. A system without authorities is no error.
func LoadAuthorities() error {
	if _, err := x509.SystemCertPool(); err != nil {
		return fmt.Errorf("failed to read the certificate authorities of the system; check the limit of open files, SSL_CERT_FILE "+
			"and SSL_CERT_DIR: %w", err)
	}
	return nil
}
