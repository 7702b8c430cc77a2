package webserver

import (
	"bytes"
	"crypto/tls"
	"sync"
	"time"

	"github.com/go-logr/logr"
)

// reloadInterval is how long a certificate is used before its files are read again.
const reloadInterval = 10 * time.Second

// Certificate is a server's certificate from files that may be replaced while the server runs. The first handshake
// after an interval of 10 seconds reads the files again. If they cannot be used, for example because they are being
// written, the server keeps the previous certificate. Certificate does not use inotify, because the processes of a node
// share a small number of inotify instances, and a server must also start when none is left.
type Certificate struct {
	certFile, keyFile string
	now               func() time.Time
	log               logr.Logger

	mu   sync.Mutex
	pair *tls.Certificate
	// read is when the files were last read.
	read time.Time
	// failure is the last failure that was logged. It is empty if the files could be used.
	failure string
}

// NewCertificate reads a certificate and its key from PEM files. now returns the current time.
func NewCertificate(certFile, keyFile string, now func() time.Time, log logr.Logger) (*Certificate, error) {
	pair, err := tls.LoadX509KeyPair(certFile, keyFile)
	if err != nil {
		return nil, err
	}
	return &Certificate{certFile: certFile, keyFile: keyFile, now: now, log: log, pair: &pair, read: now()}, nil
}

// Get returns the certificate. It is a function for tls.Config.GetCertificate, and is safe for concurrent use.
func (c *Certificate) Get(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := c.now()
	if age := now.Sub(c.read); age < 0 || age >= reloadInterval { // the clock may have been set back
		c.read = now
		c.reload()
	}
	return c.pair, nil
}

// reload reads the files again. It logs a failure only once, not at each interval.
func (c *Certificate) reload() {
	pair, err := tls.LoadX509KeyPair(c.certFile, c.keyFile)
	if err != nil {
		if err.Error() != c.failure {
			c.failure = err.Error()
			c.log.Error(err, "Failed to read the certificate again: new connections get the previous one",
				"certificate", c.certFile, "key", c.keyFile)
		}
		return
	}
	isNew := !bytes.Equal(pair.Certificate[0], c.pair.Certificate[0])
	c.pair, c.failure = &pair, ""
	if isNew {
		c.log.Info("Using a new certificate", "certificate", c.certFile)
	}
}
