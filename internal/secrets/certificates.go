package secrets

import (
	"context"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/netpolicy"
)

const (
	// maxAuthorities is the maximum length of the certificates of authorities, in bytes. All public authorities
	// together have about 220 KiB.
	maxAuthorities = 256 << 10
	// maxCertificate is the maximum length of a client certificate with those of its issuers, and of its private key,
	// in bytes.
	maxCertificate = 64 << 10
)

// Certificates returns the certificates of connections to a URL. It returns an *Error if a certificate is missing or
// unusable, or must not be used for this URL. It returns an error of another type if it could not read a Secret.
func (r Reader) Certificates(
	ctx context.Context, namespace string, spec *v1alpha1.ClientTLS, to string,
) (c netpolicy.Certificates, err error) {
	if spec == nil {
		return c, nil
	}
	if ref := spec.CABundleRef; ref != nil {
		if c.Authorities, _, err = r.value(ctx, namespace, *ref, "put the certificates of the authorities there, in PEM"); err != nil {
			return c, err
		}
		if len(c.Authorities) > maxAuthorities {
			return c, keyError(namespace, *ref, fmt.Sprintf("is %d bytes long, but the certificates of authorities may have at most %d: "+
				"leave out public authorities, which are trusted anyway", len(c.Authorities), maxAuthorities))
		}
		if _, err = c.TLS(); errors.Is(err, netpolicy.ErrLargeKey) {
			return c, keyError(namespace, *ref, fmt.Sprintf("has a certificate with an RSA key of more than %d bits: leave it out, "+
				"or replace it by one with a smaller key", netpolicy.MaxRSABits))
		}
		if err != nil {
			return c, keyError(namespace, *ref, "has no certificate in PEM: put the certificates of the authorities "+
				"there, as -----BEGIN CERTIFICATE-----")
		}
	}
	if ref := spec.ClientCertificateRef; ref != nil {
		c.Own, c.Key, err = r.pair(ctx, namespace, ref.Name, to)
	}
	return c, err
}

// pair returns the client certificate of a Secret and its private key, for connections to a URL.
func (r Reader) pair(ctx context.Context, namespace, name, to string) (certificate, key string, err error) {
	certificateRef := v1alpha1.SecretKeyReference{Name: name, Key: corev1.TLSCertKey}
	keyRef := v1alpha1.SecretKeyReference{Name: name, Key: corev1.TLSPrivateKeyKey}
	secret, err := r.secret(ctx, namespace, certificateRef)
	if err != nil {
		return "", "", err
	}
	if certificate, err = valueOf(secret, namespace, certificateRef, "put the client certificate there, in PEM"); err != nil {
		return "", "", err
	}
	if key, err = valueOf(secret, namespace, keyRef, "put the private key of the client certificate there, in PEM"); err != nil {
		return "", "", err
	}
	for ref, length := range map[v1alpha1.SecretKeyReference]int{certificateRef: len(certificate), keyRef: len(key)} {
		if length > maxCertificate {
			return "", "", keyError(namespace, ref, fmt.Sprintf("is %d bytes long, but may have at most %d: store only the "+
				"certificate, those of its issuers, and its key", length, maxCertificate))
		}
	}
	if err = checkHost(secret, namespace, keyRef, to); err != nil {
		return "", "", err
	}
	_, err = netpolicy.Certificates{Own: certificate, Key: key}.TLS()
	if errors.Is(err, netpolicy.ErrLargeKey) {
		return "", "", keyError(namespace, certificateRef, fmt.Sprintf("or its private key in tls.key has an RSA key of more than "+
			"%d bits: store a certificate with a smaller key", netpolicy.MaxRSABits))
	}
	if err != nil {
		return "", "", keyError(namespace, keyRef, "is not the private key of the certificate in tls.crt, both in PEM: "+
			"store a certificate with its key, as in Secrets of type kubernetes.io/tls")
	}
	return certificate, key, nil
}
