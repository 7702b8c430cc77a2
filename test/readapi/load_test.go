package readapi_test

import (
	"bufio"
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/readapi"
	"github.com/capstan-dev/capstan/internal/runtime/journal"
)

// openRequest sends a request and returns the connection, from which the caller can read the response.
func (s *testEnv) openRequest(ctx context.Context, path string, headers ...string) net.Conn {
	GinkgoHelper()
	dialer := &net.Dialer{Timeout: time.Second}
	conn, err := dialer.DialContext(ctx, "tcp", strings.TrimPrefix(s.server.url, "http://"))
	Expect(err).NotTo(HaveOccurred())
	DeferCleanup(conn.Close)
	Expect(conn.SetReadDeadline(time.Now().Add(patience))).To(Succeed())
	_, err = fmt.Fprintf(conn, "GET %s HTTP/1.1\r\nHost: x\r\n%s\r\n\r\n", path, strings.Join(headers, "\r\n"))
	Expect(err).NotTo(HaveOccurred())
	return conn
}

// appendLarge appends this number of large entries to the journal of a Turn, so that the buffers between server and
// reader cannot hold the journal. It returns the size of an entry.
func (s *testEnv) appendLarge(ctx context.Context, t *v1alpha1.Turn, entries int64) int {
	GinkgoHelper()
	text := noise(journal.MaxPayload / 2)
	for i := range entries {
		s.append(ctx, t, entry(i+1, journal.ModelReplied, `{"reply":{"text":"`+text+`"}}`))
	}
	return len(text)
}

// noise returns a text that does not compress well.
func noise(size int) string {
	data := make([]byte, size/2)
	_, _ = rand.Read(data) // Read never returns an error
	return hex.EncodeToString(data)
}

var _ = Describe("One reader", func() {
	It("can open only some of the streams, so that other readers can open streams", func(ctx SpecContext) {
		s := newTestEnv(ctx, func(o *readapi.Options) { o.Recheck = time.Minute })
		s.append(ctx, s.turn(ctx, "first"), story()[0])
		greedy, other := s.user(ctx, "greedy", logRule), s.user(ctx, "other", logRule)
		for range 16 {
			Expect(s.follow(ctx, greedy, "first").next(ctx).Seq).To(Equal(int64(1)))
		}
		refused := s.get(ctx, greedy, s.path("first", "journal"))
		Expect(refused.refusal(http.StatusServiceUnavailable)).To(ContainSubstring("too many journals are read at the same time"))
		Expect(refused.header.Get("Retry-After")).NotTo(BeEmpty())
		Expect(s.get(ctx, other, s.path("first", "journal")).lines()).To(HaveLen(1))
		s.server.stop()
	})

	It("can load only two artifacts at the same time, so that other readers can load artifacts", func(ctx SpecContext) {
		s := newTestEnv(ctx)
		content := noise(30 << 20)
		large, payload := journal.NewArtifact([]byte(content)), journal.NewArtifact([]byte(`{"text":"`+noise(1<<20)+`"}`))
		e := entry(1, journal.ModelReplied, "")
		e.Payload, e.Artifact, e.Artifacts = nil, payload.SHA256, []journal.Artifact{large, payload}
		s.append(ctx, s.turn(ctx, "first"), e)
		greedy, other := s.user(ctx, "greedy", logRule), s.user(ctx, "other", logRule)
		for range 4 { // two of the requests wait and are then rejected
			s.openRequest(ctx, s.path("first", "artifacts/"+large.SHA256), "Authorization: Bearer "+greedy)
		}
		refused := func() int { return s.get(ctx, greedy, s.path("first", "journal")).status }
		Eventually(refused).Should(Equal(http.StatusServiceUnavailable))
		Expect(s.get(ctx, other, s.path("first", "artifacts/"+large.SHA256)).body == content).To(BeTrue(), "another reader must get it")
		Expect(s.get(ctx, other, s.path("first", "journal")).lines()).To(HaveLen(1))
	})

	It("is disconnected if the permission is removed while a long journal is sent", func(ctx SpecContext) {
		s := newTestEnv(ctx)
		const entries = 400
		s.appendLarge(ctx, s.turn(ctx, "first"), entries)
		token := s.user(ctx, "reader", logRule)
		conn := s.openRequest(ctx, s.path("first", "journal"), "Authorization: Bearer "+token)
		response, err := http.ReadResponse(bufio.NewReader(conn), nil)
		Expect(err).NotTo(HaveOccurred())
		defer response.Body.Close() //nolint:errcheck // because it was only read
		Expect(response.StatusCode).To(Equal(http.StatusOK))

		account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: s.namespace, Name: "reader"}}
		Expect(apiClient.Delete(ctx, account)).To(Succeed())
		Eventually(func() int { return s.get(ctx, token, s.path("second", "journal")).status }).Should(Equal(http.StatusUnauthorized))
		body, _ := io.ReadAll(response.Body) // the server breaks the body off
		lines := strings.Split(strings.TrimSpace(string(body)), "\n")
		Expect(len(lines)).To(BeNumerically("<", entries))
		var last readapi.Error
		Expect(json.Unmarshal([]byte(lines[len(lines)-1]), &last)).To(Succeed())
		Expect(last.Status).To(Equal(http.StatusUnauthorized))
	}, NodeTimeout(2*time.Minute))

	It("that announces a body and never sends it does not block the server", func(ctx SpecContext) {
		s := newTestEnv(ctx)
		for _, header := range []string{"Content-Length: 10", "Transfer-Encoding: chunked"} {
			answer, err := io.ReadAll(s.openRequest(ctx, s.path("first", "journal"), header))
			Expect(err).NotTo(HaveOccurred(), "the server must close the connection")
			Expect(string(answer)).To(And(HavePrefix("HTTP/1.1 400 "), ContainSubstring("must not have a body"),
				ContainSubstring("Connection: close")))
		}
	})
})
