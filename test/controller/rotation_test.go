package controller_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/capstan-dev/capstan/api/v1alpha1"
)

// clientCertificate returns the data of a Secret of type kubernetes.io/tls with a certificate of this name.
func clientCertificate(name string) map[string][]byte {
	GinkgoHelper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	Expect(err).NotTo(HaveOccurred())
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name}, NotAfter: time.Now().Add(time.Hour),
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, private.Public(), private)
	Expect(err).NotTo(HaveOccurred())
	key, err := x509.MarshalPKCS8PrivateKey(private)
	Expect(err).NotTo(HaveOccurred())
	return map[string][]byte{
		corev1.TLSCertKey:       pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}),
		corev1.TLSPrivateKeyKey: pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: key}),
	}
}

var _ = Describe("A changed Secret", func() {
	It("replaces the key and the client certificate of a running manager", func(ctx SpecContext) {
		s := newTestEnv(ctx, `apiKeys: [first-key, second-key]`)
		var last atomic.Value // the identity in the newest request for a reply
		web := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.Method == http.MethodPost {
				last.Store(r.TLS.PeerCertificates[0].Subject.CommonName + ", " + r.Header.Get("Authorization"))
			}
			s.fake.ServeHTTP(w, r)
		}))
		web.TLS = &tls.Config{ClientAuth: tls.RequireAnyClientCert, MinVersion: tls.VersionTLS12}
		web.EnableHTTP2 = true
		web.StartTLS()
		DeferCleanup(web.Close)

		s.run()
		const certificate = "client"
		authority := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: web.Certificate().Raw})
		s.create(ctx, newSecret(secretName, "first-key"), newProfile(profile), newAgent(agent),
			&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "authority"}, Data: map[string][]byte{"ca.crt": authority}},
			&corev1.Secret{
				ObjectMeta: metav1.ObjectMeta{Name: certificate}, Type: corev1.SecretTypeTLS, Data: clientCertificate("first"),
			},
			s.newProvider(provider, func(p *v1alpha1.ModelProvider) {
				p.Spec.BaseURL = web.URL + "/v1"
				p.Spec.TLS = &v1alpha1.ClientTLS{
					CABundleRef:          &v1alpha1.SecretKeyReference{Name: "authority", Key: "ca.crt"},
					ClientCertificateRef: &v1alpha1.ObjectReference{Name: certificate},
				}
			}))
		turns := 0
		ask := func() any {
			turns++
			name := fmt.Sprintf("turn-%d", turns)
			s.create(ctx, newTurn(name))
			s.awaitState(ctx, name, v1alpha1.TurnReasonCompleted)
			return last.Load()
		}
		Expect(ask()).To(Equal("first, Bearer first-key"))

		change(ctx, s, secretName, &corev1.Secret{}, func(o *corev1.Secret) { o.StringData = map[string]string{keyName: "second-key"} })
		change(ctx, s, certificate, &corev1.Secret{}, func(o *corev1.Secret) { o.Data = clientCertificate("second") })
		Eventually(ask).WithContext(ctx).WithTimeout(patience).WithPolling(time.Second).Should(Equal("second, Bearer second-key"))
	}, SpecTimeout(2*patience))
})
