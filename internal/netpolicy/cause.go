package netpolicy

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"syscall"
)

// Cause returns why a connection failed, in a text of this program, or an empty text for an unknown error. The text of
// the error itself may quote the server: for example the first line of a server that does not speak HTTP, or the names
// in a certificate. The author of an object may read its status, and must not learn from it about servers that only
// this process can reach.
func Cause(err error) string {
	if short, ok := errors.AsType[*Shortage](err); ok {
		return short.Error()
	}
	if name, ok := errors.AsType[*net.DNSError](err); ok {
		switch {
		case name.IsNotFound:
			return fmt.Sprintf("lookup %s: no such host", name.Name)
		case name.IsTimeout:
			return fmt.Sprintf("lookup %s: no answer in time", name.Name)
		}
		return fmt.Sprintf("lookup %s failed", name.Name)
	}
	if number, ok := errors.AsType[syscall.Errno](err); ok {
		return number.Error()
	}
	if invalid, ok := errors.AsType[x509.CertificateInvalidError](err); ok {
		if invalid.Reason == x509.Expired {
			return "x509: certificate has expired or is not yet valid"
		}
		return "x509: certificate is invalid"
	}
	if invalid, ok := errors.AsType[*invalidProxyError](err); ok {
		return invalid.Error()
	}
	if alert, ok := errors.AsType[tls.AlertError](err); ok {
		return alert.Error()
	}
	if op, ok := errors.AsType[*net.OpError](err); ok && op.Op == "remote error" {
		return op.Err.Error() // an alert of the server, in a text of crypto/tls
	}
	_, isAuthority := errors.AsType[x509.UnknownAuthorityError](err)
	_, isHost := errors.AsType[x509.HostnameError](err)
	_, isTrust := errors.AsType[*tls.CertificateVerificationError](err)
	_, isRecord := errors.AsType[tls.RecordHeaderError](err)
	switch {
	case errors.Is(err, errHandshake):
		return errHandshake.Error()
	case isAuthority:
		return "x509: certificate signed by unknown authority"
	case isHost:
		return "x509: certificate is for another host"
	case isTrust:
		return "x509: certificate cannot be verified"
	case isRecord:
		return "tls: the server does not speak TLS"
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, net.ErrClosed):
		return "the connection was closed"
	case errors.Is(err, os.ErrDeadlineExceeded), errors.Is(err, context.DeadlineExceeded):
		return "no answer in time"
	case errors.Is(err, ErrUnprocessed): // last, because it may wrap the reason why the request was not sent again
		return ErrUnprocessed.Error()
	case errors.Is(err, errSent):
		return errSent.Error()
	}
	return ""
}
