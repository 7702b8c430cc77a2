package controller_test

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/capstan-dev/capstan/internal/manager"
)

// tokenOf returns a token of a ServiceAccount with these audiences.
func (s *testEnv) tokenOf(ctx context.Context, account string, audiences ...string) string {
	GinkgoHelper()
	clientset, err := kubernetes.NewForConfig(apiConfig)
	Expect(err).NotTo(HaveOccurred())
	token, err := clientset.CoreV1().ServiceAccounts(s.namespace).CreateToken(ctx, account,
		&authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{Audiences: audiences}}, metav1.CreateOptions{})
	Expect(err).NotTo(HaveOccurred())
	return token.Status.Token
}

var _ = Describe("The metrics of a manager that other machines can reach", func() {
	// scrape requests the metrics over TLS, with this token unless token is empty. It returns the status and the body.
	scrape := func(ctx context.Context, url, token string) (int, string, error) {
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
		if err != nil {
			return 0, "", err
		}
		if token != "" {
			request.Header.Set("Authorization", "Bearer "+token)
		}
		client := http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}
		defer client.CloseIdleConnections()
		response, err := client.Do(request)
		if err != nil {
			return 0, "", err
		}
		body, err := io.ReadAll(response.Body)
		return response.StatusCode, string(body), errors.Join(err, response.Body.Close())
	}
	// serve starts a manager that accepts these audiences. It creates two ServiceAccounts: one may read metrics,
	// the other may not. It returns the address of the metrics.
	serve := func(ctx context.Context, audiences ...string) (s *testEnv, address string) {
		GinkgoHelper()
		s = newTestEnv(ctx, ``)
		m := s.run(func(o *manager.Options) { o.MetricsBindAddress, o.TokenAudiences = "0.0.0.0:0", audiences })
		_, port, err := net.SplitHostPort(m.servedAt(ctx, "metrics"))
		Expect(err).NotTo(HaveOccurred())
		for _, name := range []string{"reader", "other"} {
			s.create(ctx, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: name}})
		}
		role := &rbacv1.ClusterRole{
			ObjectMeta: metav1.ObjectMeta{Name: s.namespace + "-metrics"},
			Rules:      []rbacv1.PolicyRule{{NonResourceURLs: []string{"/metrics"}, Verbs: []string{"get"}}},
		}
		binding := &rbacv1.ClusterRoleBinding{
			ObjectMeta: metav1.ObjectMeta{Name: role.Name},
			RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role.Name},
			Subjects:   []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: s.namespace, Name: "reader"}},
		}
		Expect(apiClient.Create(ctx, role)).To(Succeed())
		DeferCleanup(func(ctx SpecContext) { Expect(apiClient.Delete(ctx, role)).To(Succeed()) })
		Expect(apiClient.Create(ctx, binding)).To(Succeed())
		DeferCleanup(func(ctx SpecContext) { Expect(apiClient.Delete(ctx, binding)).To(Succeed()) })
		address = "https://127.0.0.1:" + port + "/metrics"
		Eventually(func() (int, error) {
			status, _, err := scrape(ctx, address, "")
			return status, err
		}).WithContext(ctx).Should(Equal(http.StatusUnauthorized))
		return s, address
	}

	It("are served over TLS only to users with the permission to read them", func(ctx SpecContext) {
		s, address := serve(ctx)
		reader := s.tokenOf(ctx, "reader")
		Eventually(func() (string, error) { // the API server needs a moment to see the binding
			_, body, err := scrape(ctx, address, reader)
			return body, err
		}).WithContext(ctx).Should(ContainSubstring("go_goroutines"))

		status, body, err := scrape(ctx, address, s.tokenOf(ctx, "other"))
		Expect(err).NotTo(HaveOccurred())
		Expect(status).To(Equal(http.StatusForbidden))
		Expect(body).To(And(ContainSubstring("nonResourceURLs [/metrics]"), Not(ContainSubstring("go_goroutines"))))
		status, _, err = scrape(ctx, address, s.tokenOf(ctx, "reader", "another-service"))
		Expect(err).NotTo(HaveOccurred())
		Expect(status).To(Equal(http.StatusUnauthorized), "a token for another service must not be accepted")

		client := http.Client{Timeout: 5 * time.Second}
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http"+address[len("https"):], http.NoBody)
		Expect(err).NotTo(HaveOccurred())
		response, err := client.Do(request)
		Expect(err).NotTo(HaveOccurred())
		Expect(response.Body.Close()).To(Succeed())
		Expect(response.StatusCode).To(Equal(http.StatusBadRequest), "plain HTTP must not be served")
	}, SpecTimeout(patience))

	It("are served for tokens with the manager's audiences", func(ctx SpecContext) {
		s, address := serve(ctx, "capstan")
		for _, tc := range []struct {
			audiences []string
			want      int
		}{
			{[]string{"capstan"}, http.StatusOK},
			{nil, http.StatusUnauthorized},
			{[]string{"vault"}, http.StatusUnauthorized},
			{[]string{"vault", "capstan"}, http.StatusOK},
		} {
			token := s.tokenOf(ctx, "reader", tc.audiences...)
			Eventually(func() (int, error) {
				status, _, err := scrape(ctx, address, token)
				return status, err
			}).WithContext(ctx).Should(Equal(tc.want), "for a token with the audiences %v", tc.audiences)
		}
	}, SpecTimeout(patience))
})
