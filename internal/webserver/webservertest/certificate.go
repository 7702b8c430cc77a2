// Package webservertest has certificates in files, and a check for inotify, for tests of servers.
package webservertest

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"math/big"
	"os"
	"path/filepath"
	"testing"
)

// Pair is a certificate and its key.
type Pair struct {
	// Certificate and Key are in PEM.
	Certificate, Key []byte
	// Serial identifies the certificate.
	Serial int64
}

// NewPair returns a new certificate with a serial number. No client trusts it.
func NewPair(tb testing.TB, serial int64) Pair {
	tb.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		tb.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(serial)}
	certificate, certErr := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	private, keyErr := x509.MarshalPKCS8PrivateKey(key)
	if err := errors.Join(certErr, keyErr); err != nil {
		tb.Fatal(err)
	}
	return Pair{
		Certificate: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: certificate}),
		Key:         pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private}), Serial: serial,
	}
}

// Files are the files of a server's certificate and of its key.
type Files struct {
	Certificate, Key string
}

// WriteFiles writes a pair into files of a temporary directory.
func WriteFiles(tb testing.TB, p Pair) Files {
	tb.Helper()
	dir := tb.TempDir()
	f := Files{Certificate: filepath.Join(dir, "tls.crt"), Key: filepath.Join(dir, "tls.key")}
	Replace(tb, f.Certificate, p.Certificate)
	Replace(tb, f.Key, p.Key)
	return f
}

// Replace replaces a file in one step, as the kubelet does.
func Replace(tb testing.TB, file string, data []byte) {
	tb.Helper()
	if err := errors.Join(os.WriteFile(file+".new", data, 0o600), os.Rename(file+".new", file)); err != nil {
		tb.Fatal(err)
	}
}

// Presented returns the serial number of the certificate that a server presents to a new connection.
func Presented(tb testing.TB, address string) int64 {
	tb.Helper()
	dialer := tls.Dialer{Config: &tls.Config{InsecureSkipVerify: true}} //nolint:gosec // because only the serial number matters
	conn, err := dialer.DialContext(tb.Context(), "tcp", address)
	if err != nil {
		tb.Fatal(err)
	}
	defer conn.Close() //nolint:errcheck // because nothing was written
	return conn.(*tls.Conn).ConnectionState().PeerCertificates[0].SerialNumber.Int64()
}
