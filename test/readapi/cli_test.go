package readapi_test

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/capstan-dev/capstan/internal/cli"
	"github.com/capstan-dev/capstan/internal/cli/exit"
	"github.com/capstan-dev/capstan/internal/cli/terminal"
	"github.com/capstan-dev/capstan/internal/readapi"
	"github.com/capstan-dev/capstan/internal/runtime/journal"
	"github.com/capstan-dev/capstan/internal/turnstatus"
)

// outputBuffer keeps everything that is written to it. It is safe for concurrent use.
type outputBuffer struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (t *outputBuffer) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.text.Write(p)
}

func (t *outputBuffer) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.text.String()
}

// command is a run of the command line, and its output.
type command struct {
	out, err outputBuffer
	code     chan int
}

// capstan starts the command line without a terminal.
func capstan(ctx context.Context, args ...string) *command {
	c := &command{code: make(chan int, 1)}
	go func() {
		defer GinkgoRecover()
		c.code <- cli.Execute(ctx, terminal.Environment{
			Version: "v1.2.3", In: strings.NewReader(""), Out: &c.out, Err: &c.err, LookupEnv: os.LookupEnv, Now: time.Now,
		}, args)
	}()
	return c
}

// must waits for the end of a command and checks its exit code.
func (c *command) must(ctx context.Context, code int) *command {
	GinkgoHelper()
	Eventually(ctx, c.code).Should(Receive(Equal(code)), func() string { return "out: " + c.out.String() + "\nerr: " + c.err.String() })
	return c
}

// kubeconfig writes a kubeconfig for a user of the suite's API server.
func (s *testEnv) kubeconfig(user clientcmdapi.AuthInfo) string {
	GinkgoHelper()
	path := filepath.Join(GinkgoT().TempDir(), "kubeconfig")
	Expect(clientcmd.WriteToFile(clientcmdapi.Config{
		Clusters:       map[string]*clientcmdapi.Cluster{"c": {Server: apiConfig.Host, CertificateAuthorityData: apiConfig.CAData}},
		AuthInfos:      map[string]*clientcmdapi.AuthInfo{"u": &user},
		Contexts:       map[string]*clientcmdapi.Context{"x": {Cluster: "c", AuthInfo: "u", Namespace: s.namespace}},
		CurrentContext: "x",
	}, path)).To(Succeed())
	return path
}

var _ = Describe("The command line with a read API server", func() {
	It("prints a journal and exports it, without conversation texts unless a flag asks for them", func(ctx SpecContext) {
		s := newTestEnv(ctx)
		t := s.turn(ctx, "first")
		whole := journal.NewArtifact([]byte("the whole output"))
		entries := story()
		entries[1].Artifacts = []journal.Artifact{whole}
		s.append(ctx, t, entries...)
		flags := []string{"-n", s.namespace, "--server", s.server.url, "--token", s.user(ctx, "reader", logRule)}

		logs := capstan(ctx, append([]string{"logs", "first"}, flags...)...).must(ctx, exit.OK)
		Expect(logs.out.String()).To(HavePrefix("Turn helpdesk/first\n  run 1    executor capstan-0, epoch 1, 2026-04-09T12:00:01Z\n"))
		Expect(logs.out.String()).To(ContainSubstring("| a secret word\n"))
		Expect(logs.err.String()).To(BeEmpty())

		redacted := capstan(ctx, append([]string{"export", "turn", "first"}, flags...)...).must(ctx, exit.OK)
		Expect(redacted.out.String()).To(And(Not(ContainSubstring("secret")), ContainSubstring(`"redacted":true`)))
		content := capstan(ctx, append([]string{"export", "turn", "first", "--with-content"}, flags...)...).must(ctx, exit.OK)
		Expect(content.out.String()).To(ContainSubstring("a secret word"))
		output := capstan(ctx, append([]string{"export", "turn", "first", "--artifact", whole.SHA256}, flags...)...).must(ctx, exit.OK)
		Expect(output.out.String()).To(Equal("the whole output"))

		By("reporting errors")
		absent := capstan(ctx, append([]string{"logs", "absent"}, flags...)...).must(ctx, exit.Failed)
		Expect(absent.err.String()).To(ContainSubstring(`there is no Turn "absent"`))
		flags[len(flags)-1] = s.user(ctx, "stranger")
		refused := capstan(ctx, append([]string{"logs", "first"}, flags...)...).must(ctx, exit.Failed)
		Expect(refused.err.String()).To(ContainSubstring("the ClusterRole team-capstan-turn-reader"))

		By("reporting that a journal is empty")
		s.turn(ctx, "second")
		flags[len(flags)-1] = s.user(ctx, "third", logRule)
		nothing := capstan(ctx, append([]string{"logs", "second"}, flags...)...).must(ctx, exit.OK)
		Expect(nothing.err.String()).To(ContainSubstring("note: the journal of Turn second is empty: the Turn has not run"))
	})

	It("uses the identity of the kubeconfig, for every kind of credential", func(ctx SpecContext) {
		s := newTestEnv(ctx)
		s.append(ctx, s.turn(ctx, "first"), story()...)
		token := s.user(ctx, "reader", logRule)
		file := filepath.Join(GinkgoT().TempDir(), "token")
		Expect(os.WriteFile(file, []byte(token), 0o600)).To(Succeed())
		plugin := filepath.Join(GinkgoT().TempDir(), "plugin")
		Expect(os.WriteFile(plugin, []byte("#!/bin/sh\necho '"+
			`{"apiVersion":"client.authentication.k8s.io/v1","kind":"ExecCredential","status":{"token":"`+token+`"}}'`+"\n"),
			0o700)).To(Succeed())
		for name, user := range map[string]clientcmdapi.AuthInfo{
			"a token": {Token: token},
			"a file":  {TokenFile: file},
			"a plug-in": {Exec: &clientcmdapi.ExecConfig{
				APIVersion: "client.authentication.k8s.io/v1", Command: plugin, InteractiveMode: clientcmdapi.NeverExecInteractiveMode,
			}},
		} {
			got := capstan(ctx, "logs", "first", "--kubeconfig", s.kubeconfig(user), "--server", s.server.url).must(ctx, exit.OK)
			Expect(got.out.String()).To(ContainSubstring("Completed: the model answered"), name)
		}
		certificate := clientcmdapi.AuthInfo{ClientCertificateData: apiConfig.CertData, ClientKeyData: apiConfig.KeyData}
		got := capstan(ctx, "logs", "first", "--kubeconfig", s.kubeconfig(certificate), "--server", s.server.url).must(ctx, exit.Failed)
		Expect(got.err.String()).To(And(HavePrefix("capstan: "),
			ContainSubstring("the kubeconfig has no bearer token (it may have a client certificate), and no "+
				"token could be created for ServiceAccount "+s.namespace+"/capstan-turn-reader"),
			ContainSubstring("not found"), ContainSubstring("docs/access.md")))
		none := capstan(ctx, "logs", "first", "--kubeconfig", s.kubeconfig(certificate), "--server", s.server.url,
			"--service-account", "").must(ctx, exit.Failed)
		Expect(none.err.String()).To(ContainSubstring(
			"the manager accepts only tokens: set --service-account to a ServiceAccount of the Turn's namespace"))

		By("creating a token of a ServiceAccount if the kubeconfig has a certificate")
		s.user(ctx, "capstan-turn-reader")
		blind := capstan(ctx, "logs", "first", "--kubeconfig", s.kubeconfig(certificate), "--server",
			s.server.url).must(ctx, exit.Failed)
		Expect(blind.err.String()).To(ContainSubstring(
			`"system:serviceaccount:`+s.namespace+`:capstan-turn-reader" may not read the conversation of Turn`),
			"the administrator's own permissions do not count")
		s.allow(ctx, "capstan-turn-reader", logRule)
		Eventually(func() string {
			c := capstan(ctx, "logs", "first", "--kubeconfig", s.kubeconfig(certificate), "--server", s.server.url)
			Eventually(c.code).Should(Receive())
			return c.out.String()
		}).Should(ContainSubstring("Completed: the model answered"))

		By("recording the user of the certificate as the approver")
		s.createWaitingTurn(ctx, "second", map[string]string{"call_1": `{"id":1}`})
		atTerminal(ctx, "y\n", "approve", "second", "--kubeconfig", s.kubeconfig(certificate), "--server", s.server.url,
			"--wait-seconds", "0").must(ctx, exit.OK)
		Expect(s.approvals(ctx)).To(HaveExactElements(HaveField("Spec.DecidedBy", Not(HavePrefix("system:serviceaccount:")))))
	})

	It("continues at the same entry when another server takes over", func(ctx SpecContext) {
		s := newTestEnv(ctx)
		t := s.turn(ctx, "first")
		s.append(ctx, t, story()[:2]...)
		c := capstan(ctx, "logs", "-f", "first", "-n", s.namespace, "--server", s.server.url, "--token", s.user(ctx, "reader", logRule))
		Eventually(c.out.String).Should(ContainSubstring("a secret word"))
		s.server.stop()
		Eventually(c.err.String).Should(ContainSubstring("Reading continues in "))
		s.append(ctx, t, story()[2])
		s.options.Address = strings.TrimPrefix(s.server.url, "http://")
		s.serve(ctx)
		c.must(ctx, exit.OK)
		Expect(strings.Count(c.out.String(), "a secret word")).To(Equal(1), "nothing is printed twice")
		Expect(c.out.String()).To(ContainSubstring("Completed: the model answered\n"))
	})

	It("prints why the Turn that it follows waits, if the user may get the Turn", func(ctx SpecContext) {
		s := newTestEnv(ctx)
		t := s.turn(ctx, "first")
		turnstatus.Bind(t, turnstatus.Binding{Executor: "capstan-0"}, time.Now())
		turnstatus.ReportProgress(t, turnstatus.Run{}, &turnstatus.RunWait{Provider: "demo"}, time.Now())
		Expect(apiClient.Status().Update(ctx, t)).To(Succeed())
		get := rbacv1.PolicyRule{APIGroups: []string{"capstan.dev"}, Resources: []string{"turns"}, Verbs: []string{"get"}}
		path := s.kubeconfig(clientcmdapi.AuthInfo{Token: s.user(ctx, "viewer", logRule, get)})
		follow := []string{"logs", "-f", "first", "--server", s.server.url, "--kubeconfig"}
		viewer := capstan(ctx, append(follow, path)...)
		reader := capstan(ctx, append(follow, s.kubeconfig(clientcmdapi.AuthInfo{Token: s.user(ctx, "reader", logRule)}))...)
		const why = `Queued: bound to executor "capstan-0", and waiting for ModelProvider "demo": its rate limits or its ` +
			"circuit breaker hold the next request back\n"
		Eventually(ctx, viewer.err.String).Should(Equal(why))
		s.append(ctx, t, story()...)
		Expect(viewer.must(ctx, exit.OK).err.String()).To(Equal(why), "the reason is printed once")
		Expect(reader.must(ctx, exit.OK).err.String()).To(BeEmpty())
	})

	It("completes names of Turns from the cluster", func(ctx SpecContext) {
		s := newTestEnv(ctx)
		s.turn(ctx, "first")
		rule := rbacv1.PolicyRule{APIGroups: []string{"capstan.dev"}, Resources: []string{"turns"}, Verbs: []string{"list"}}
		path := s.kubeconfig(clientcmdapi.AuthInfo{Token: s.user(ctx, "viewer", rule)})
		got := capstan(ctx, "__complete", "logs", "--kubeconfig", path, "").must(ctx, exit.OK)
		Expect(got.out.String()).To(HavePrefix("first\n"))
	})
})

var _ = Describe("A server that other machines can reach", func() {
	It("has a certificate, which the command line checks", func(ctx SpecContext) {
		cert, key := certificate()
		s := newTestEnv(ctx, func(o *readapi.Options) { o.CertFile, o.KeyFile = cert, key })
		s.append(ctx, s.turn(ctx, "first"), story()...)
		Expect(s.server.url).To(HavePrefix("https://127.0.0.1:"))
		flags := []string{"logs", "first", "-n", s.namespace, "--server", s.server.url, "--token", s.user(ctx, "reader", logRule)}
		capstan(ctx, append(flags, "--server-ca-file", cert)...).must(ctx, exit.OK)
		unknown := capstan(ctx, flags...).must(ctx, exit.Failed)
		Expect(unknown.err.String()).To(ContainSubstring("certificate signed by unknown authority"))
	})

	It("loads a new certificate without a restart, and serves HTTP without TLS to this machine", func(ctx SpecContext) {
		cert, key := certificate()
		s := newTestEnv(ctx, func(o *readapi.Options) { o.TLSAddress, o.CertFile, o.KeyFile = "127.0.0.1:0", cert, key })
		s.append(ctx, s.turn(ctx, "first"), story()...)
		Expect(s.server.url).To(HavePrefix("http://127.0.0.1:"))
		Expect(s.server.tls).To(HavePrefix("https://127.0.0.1:"))
		token := s.user(ctx, "reader", logRule)
		capstan(ctx, "logs", "first", "-n", s.namespace, "--server", s.server.url, "--token", token).must(ctx, exit.OK)
		exitCodeWithCA := func(file string) int {
			c := capstan(ctx, "logs", "first", "-n", s.namespace, "--server", s.server.tls, "--token", token, "--server-ca-file", file)
			var code int
			Eventually(c.code).Should(Receive(&code))
			return code
		}
		Expect(exitCodeWithCA(cert)).To(Equal(exit.OK))
		newCert, newKey := certificate()
		Expect(exitCodeWithCA(newCert)).To(Equal(exit.Failed))
		// The server must notice each of the two renames, because the kubelet also updates files by renames.
		for from, to := range map[string]string{newCert: cert, newKey: key} {
			data, err := os.ReadFile(from)
			Expect(err).NotTo(HaveOccurred())
			Expect(os.WriteFile(to+".new", data, 0o600)).To(Succeed())
			Expect(os.Rename(to+".new", to)).To(Succeed())
		}
		Eventually(func() int { return exitCodeWithCA(newCert) }).Should(Equal(exit.OK))
	})

	It("does not start without a certificate", func(ctx SpecContext) {
		_, err := readapi.Listen(ctx, readapi.Options{Address: ":0", Now: time.Now})
		Expect(err).To(MatchError(ContainSubstring("set --read-tls-cert-file and --read-tls-key-file")))
	})
})

// certificate writes a certificate for this machine and its key.
func certificate() (certFile, keyFile string) {
	GinkgoHelper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	Expect(err).NotTo(HaveOccurred())
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		IsCA: true, BasicConstraintsValid: true,
	}
	cert, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	Expect(err).NotTo(HaveOccurred())
	private, err := x509.MarshalPKCS8PrivateKey(key)
	Expect(err).NotTo(HaveOccurred())
	dir := GinkgoT().TempDir()
	write := func(name, kind string, data []byte) string {
		path := filepath.Join(dir, name)
		Expect(os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: data}), 0o600)).To(Succeed(), fmt.Sprint(name))
		return path
	}
	return write("tls.crt", "CERTIFICATE", cert), write("tls.key", "PRIVATE KEY", private)
}
