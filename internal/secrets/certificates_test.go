package secrets_test

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/asn1"
	"encoding/pem"
	"errors"
	"math/big"
	"testing"
	"time"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/secrets"
)

// modulus returns an odd number of this many bits. It is the modulus of no usable key.
func modulus(bits uint) *big.Int {
	n := new(big.Int).Lsh(big.NewInt(1), bits-1)
	return n.SetBit(n, 0, 1)
}

func toPEM(kind string, der []byte) string {
	return string(pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}))
}

// certificateOf returns a certificate with a public key, signed by another key.
func certificateOf(t *testing.T, public crypto.PublicKey, signer *ecdsa.PrivateKey) string {
	t.Helper()
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, public, signer)
	if err != nil {
		t.Fatal(err)
	}
	return toPEM("CERTIFICATE", der)
}

// TestLargeKeys checks that RSA keys are refused with which a signature, or its check, would take minutes.
func TestLargeKeys(t *testing.T) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	small, smallKey := certificateOf(t, key.Public(), key), toPEM("PRIVATE KEY", der)
	rsaCertificate := func(bits uint) string { return certificateOf(t, &rsa.PublicKey{N: modulus(bits), E: 65537}, key) }
	der, err = asn1.Marshal(struct {
		Version                     int
		N, E, D, P, Q, DP, DQ, Qinv *big.Int
	}{
		0, modulus(80_000), big.NewInt(65537), modulus(80_000), modulus(40_000), modulus(40_000), modulus(40_000),
		modulus(40_000), modulus(40_000),
	})
	if err != nil {
		t.Fatal(err)
	}
	largeKey := toPEM("RSA PRIVATE KEY", der)
	const (
		badAuthority = `key "ca.crt" of Secret "s" in namespace "demo" has a certificate with an RSA key of more than 8192 bits: ` +
			`leave it out, or replace it by one with a smaller key`
		badOwn = `key "tls.crt" of Secret "s" in namespace "demo" or its private key in tls.key has an RSA key of more than ` +
			`8192 bits: store a certificate with a smaller key`
	)
	for name, tc := range map[string]struct{ authorities, certificate, key, want string }{
		"usual":             {small + rsaCertificate(8192), small, smallKey, ""},
		"authority":         {small + rsaCertificate(8193), small, smallKey, badAuthority},
		"own certificate":   {small, rsaCertificate(80_000), smallKey, badOwn},
		"own key":           {small, small, largeKey, badOwn},
		"own key in a text": {small, small, "# the key\n" + smallKey + largeKey, badOwn},
	} {
		t.Run(name, func(t *testing.T) {
			read := readerOf(map[string]string{"ca.crt": tc.authorities, "tls.crt": tc.certificate, "tls.key": tc.key})
			_, err := read.Certificates(t.Context(), "demo", &v1alpha1.ClientTLS{
				CABundleRef:          &v1alpha1.SecretKeyReference{Name: "s", Key: "ca.crt"},
				ClientCertificateRef: &v1alpha1.ObjectReference{Name: "s"},
			}, "https://api.example")
			if e, ok := errors.AsType[*secrets.Error](err); ok != (tc.want != "") || ok && e.Reason != tc.want || !ok && err != nil {
				t.Errorf("Certificates: %v, want %q", err, tc.want)
			}
		})
	}
}
