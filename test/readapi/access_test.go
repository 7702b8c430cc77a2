package readapi_test

import (
	"net/http"
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

var _ = Describe("Who may read a journal", func() {
	It("depends on a token and the permissions of its user", func(ctx SpecContext) {
		s := newTestEnv(ctx)
		t := s.turn(ctx, "first")
		s.append(ctx, t, story()...)
		journalPath := s.path("first", "journal")

		By("rejecting a request without a token")
		none := s.get(ctx, "", journalPath)
		Expect(none.refusal(http.StatusUnauthorized)).To(ContainSubstring("the request has no bearer token"))
		Expect(none.header.Get("WWW-Authenticate")).To(Equal("Bearer"))

		By("rejecting an unknown token")
		Expect(s.get(ctx, "invented", journalPath).refusal(http.StatusUnauthorized)).To(ContainSubstring("rejects the token"))

		By("rejecting a user who may read the Turn but not its conversation")
		viewer := s.user(ctx, "viewer", rbacv1.PolicyRule{
			APIGroups: []string{"capstan.dev"},
			Resources: []string{"turns"}, Verbs: []string{"get", "list"},
		})
		refused := s.get(ctx, viewer, journalPath).refusal(http.StatusForbidden)
		Expect(refused).To(ContainSubstring(
			`"system:serviceaccount:` + s.namespace + `:viewer" may not read the conversation of Turn "first"`))
		Expect(refused).To(ContainSubstring("apiGroups [capstan.dev], resources [turns/log] and verbs [get]"))

		By("not revealing to that user which Turns exist")
		absent := s.get(ctx, viewer, s.path("absent", "journal")).refusal(http.StatusForbidden)
		Expect(strings.ReplaceAll(absent, "absent", "first")).To(Equal(refused))

		By("serving a user with the permission")
		reader := s.user(ctx, "reader", logRule)
		Expect(s.get(ctx, reader, journalPath).lines()).To(HaveLen(3))
		Expect(s.get(ctx, reader, s.path("absent", "journal")).refusal(http.StatusNotFound)).To(
			Equal(`there is no Turn "absent" in namespace "` + s.namespace + `"`))

		By("rejecting that user in another namespace")
		other := newTestEnv(ctx)
		other.append(ctx, other.turn(ctx, "first"), story()...)
		Expect(other.get(ctx, reader, other.path("first", "journal")).refusal(http.StatusForbidden)).To(ContainSubstring(other.namespace))
	})

	It("may be limited to one Turn", func(ctx SpecContext) {
		s := newTestEnv(ctx)
		for _, name := range []string{"first", "second"} {
			s.append(ctx, s.turn(ctx, name), story()...)
		}
		rule := logRule
		rule.ResourceNames = []string{"first"}
		token := s.user(ctx, "reader", rule)
		Expect(s.get(ctx, token, s.path("first", "journal")).lines()).To(HaveLen(3))
		s.get(ctx, token, s.path("second", "journal")).refusal(http.StatusForbidden)
	})

	It("is checked again soon: a new permission or an expired token takes effect within seconds", func(ctx SpecContext) {
		s := newTestEnv(ctx)
		s.append(ctx, s.turn(ctx, "first"), story()...)
		token := s.user(ctx, "reader")
		status := func() int { return s.get(ctx, token, s.path("first", "journal")).status }
		Expect(status()).To(Equal(http.StatusForbidden))
		s.allow(ctx, "reader", logRule)
		Eventually(status).Should(Equal(http.StatusOK))

		account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: s.namespace, Name: "reader"}}
		Expect(apiClient.Delete(ctx, account)).To(Succeed(), "the tokens of a deleted account are invalid")
		Eventually(status).Should(Equal(http.StatusUnauthorized))
	})

	It("is not checked for an invalid request", func(ctx SpecContext) {
		s := newTestEnv(ctx)
		s.turn(ctx, "first")
		token := s.user(ctx, "reader", logRule)
		for path, want := range map[string]string{
			s.path("first", "journal?after=-1"):                         "after must be the seq of an entry",
			s.path("first", "journal?after=x"):                          "after must be the seq of an entry",
			s.path("first", "journal?follow=perhaps"):                   "follow must be true or false",
			s.path("first", "journal?redact=2"):                         "redact must be true or false",
			s.path("FIRST", "journal"):                                  "must be valid names of Kubernetes objects",
			"/v1/namespaces/no_name/turns/first/journal":                "must be valid names of Kubernetes objects",
			s.path("first", "artifacts/..."):                            "named by its SHA-256",
			s.path("first", "artifacts/"+strings.Repeat("A", 64)):       "named by its SHA-256",
			s.path("first", "artifacts/"+strings.Repeat("a", 64)+"%2F"): "named by its SHA-256",

			s.path("first", "artifacts/"+strings.Repeat("a", 64)+"?redact=true"):    "an artifact cannot be redacted",
			s.path("first", "artifacts/"+strings.Repeat("a", 64)+"?redact=perhaps"): "redact must be true or false",
		} {
			Expect(s.get(ctx, token, path).refusal(http.StatusBadRequest)).To(ContainSubstring(want), path)
		}
		for _, path := range []string{"/", "/v1", s.path("first", ""), s.path("first", "status"), "/v2" + s.path("first", "journal")} {
			Expect(s.get(ctx, token, path).refusal(http.StatusNotFound)).To(ContainSubstring("this API has no such path"), path)
		}
	})
})
