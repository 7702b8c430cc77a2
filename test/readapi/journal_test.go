package readapi_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/readapi"
	"github.com/capstan-dev/capstan/internal/redact"
	"github.com/capstan-dev/capstan/internal/runtime/journal"
	"github.com/capstan-dev/capstan/internal/store/sqlite"
	"github.com/capstan-dev/capstan/internal/translate"
	"github.com/capstan-dev/capstan/internal/turnstatus"
)

// read collects the entries that a follower receives.
type read struct {
	entries chan journal.Entry
	done    chan error
}

// follow follows the journal of a Turn.
func (s *testEnv) follow(ctx context.Context, token, turn string, change ...func(*readapi.Query)) *read {
	GinkgoHelper()
	base := &http.Transport{}
	DeferCleanup(base.CloseIdleConnections)
	transport, err := rest.HTTPWrappersForConfig(&rest.Config{BearerToken: token}, base)
	Expect(err).NotTo(HaveOccurred())
	client, err := readapi.NewClient(s.server.url, transport)
	Expect(err).NotTo(HaveOccurred())
	q := readapi.Query{Namespace: s.namespace, Name: turn, Follow: true}
	for _, f := range change {
		f(&q)
	}
	r := &read{entries: make(chan journal.Entry, 1000), done: make(chan error, 1)}
	go func() {
		defer GinkgoRecover()
		for e, err := range client.Journal(ctx, q) {
			if err != nil {
				r.done <- err
				return
			}
			r.entries <- e
		}
		r.done <- nil
	}()
	return r
}

func (r *read) next(ctx context.Context) journal.Entry {
	GinkgoHelper()
	var e journal.Entry
	Eventually(ctx, r.entries).Should(Receive(&e))
	return e
}

var _ = Describe("A journal", func() {
	It("is served as JSON lines, after any entry, with or without conversation texts", func(ctx SpecContext) {
		s := newTestEnv(ctx)
		t := s.turn(ctx, "first")
		s.append(ctx, t, story()...)
		token := s.user(ctx, "reader", logRule)

		whole := s.get(ctx, token, s.path("first", "journal"))
		Expect(whole.header.Get("Content-Type")).To(Equal("application/jsonl"))
		Expect(whole.header.Get("Cache-Control")).To(Equal("no-store"))
		Expect(whole.header.Get("X-Capstan-Turn-Uid")).To(Equal(string(t.UID)))
		first, _, _ := strings.Cut(whole.body, "\n")
		Expect(first).To(MatchJSON(`{"seq":1,"epoch":1,"kind":"run.started","version":1,"time":"2026-04-09T12:00:01Z",
			"payload":{"executor":"capstan-0","namespace":"helpdesk","name":"first"}}`))
		Expect(whole.body).To(ContainSubstring("a secret word"))
		Expect(whole.lines()).To(HaveLen(3))

		rest := s.get(ctx, token, s.path("first", "journal?after=2")).lines()
		Expect(rest).To(HaveLen(1))
		Expect(rest[0]).To(HaveKeyWithValue("kind", "finalized"))
		Expect(s.get(ctx, token, s.path("first", "journal?after=3&follow=true")).lines()).To(BeEmpty(), "nothing comes after the end")

		redacted := s.get(ctx, token, s.path("first", "journal?redact=true"))
		Expect(redacted.lines()).To(HaveLen(3))
		Expect(redacted.body).NotTo(ContainSubstring("secret"))
		Expect(redacted.body).To(ContainSubstring(`"redacted":true,"bytes":13`))
		Expect(redacted.body).To(ContainSubstring(`"stop":"Completed"`))
	})

	It("contains payloads that are kept as artifacts, and serves the artifacts by themselves", func(ctx SpecContext) {
		s := newTestEnv(ctx)
		t := s.turn(ctx, "first")
		token := s.user(ctx, "reader", logRule)
		text := strings.Repeat("a long story. ", 400_000)
		payload, err := json.Marshal(map[string]string{"text": text})
		Expect(err).NotTo(HaveOccurred())
		kept, output := journal.NewArtifact(payload), journal.NewArtifact([]byte("the whole output"))
		e := entry(1, journal.ModelReplied, "")
		e.Payload, e.Artifact, e.Artifacts = nil, kept.SHA256, []journal.Artifact{kept, output}
		s.append(ctx, t, e)

		lines := s.get(ctx, token, s.path("first", "journal")).lines()
		Expect(lines).To(HaveLen(1))
		Expect(lines[0]).To(HaveKeyWithValue("artifact", kept.SHA256))
		Expect(lines[0]["payload"]).To(Equal(map[string]any{"text": text}))
		Expect(s.get(ctx, token, s.path("first", "journal?redact=true")).body).To(And(
			Not(ContainSubstring("story")), Not(ContainSubstring(kept.SHA256)), ContainSubstring(fmt.Sprintf(`"bytes":%d`, len(text)))))

		content := s.get(ctx, token, s.path("first", "artifacts/"+output.SHA256))
		Expect(content.status).To(Equal(http.StatusOK))
		Expect(content.body).To(Equal("the whole output"))
		Expect(content.header.Get("X-Content-Type-Options")).To(Equal("nosniff"))
		Expect(s.get(ctx, token, s.path("first", "artifacts/"+kept.SHA256)).body).To(Equal(string(payload)))
		unknown := strings.Repeat("0", 64)
		Expect(s.get(ctx, token, s.path("first", "artifacts/"+unknown)).refusal(http.StatusNotFound)).To(
			ContainSubstring("has no artifact " + unknown))

		By("not serving the artifact as an artifact of another Turn")
		s.turn(ctx, "second")
		s.get(ctx, token, s.path("second", "artifacts/"+output.SHA256)).refusal(http.StatusNotFound)
	})

	It("has no credentials, even if an earlier version of Capstan recorded one", func(ctx SpecContext) {
		const credential, hidden = "sk-a-key-of-the-model", "s\u200bk-a-key-of-the-mo\u200bdel"
		known := redact.NewSet()
		s := newTestEnv(ctx, func(o *readapi.Options) { o.Credentials = known })
		t := s.turn(ctx, "first")
		token := s.user(ctx, "reader", logRule)
		text := "The key is " + credential + ", or " + hidden + "."
		payload, err := json.Marshal(map[string]any{
			"step": 1, "provider": "demo", "model": "small",
			"reply": map[string]string{"text": text},
		})
		Expect(err).NotTo(HaveOccurred())
		output := journal.NewArtifact([]byte(text))
		e := entry(1, journal.ModelReplied, string(payload))
		e.Artifacts = []journal.Artifact{output}
		s.append(ctx, t, e)
		journalPath, artifactPath := s.path("first", "journal"), s.path("first", "artifacts/"+output.SHA256)
		Expect(s.get(ctx, token, journalPath).body).To(ContainSubstring(credential),
			"a text that no provider or server uses as a credential is not redacted")

		known.Put(s.namespace, "ModelProvider/demo", []string{credential})
		for _, path := range []string{journalPath, artifactPath} {
			shown := s.get(ctx, token, path)
			Expect(shown.status).To(Equal(http.StatusOK))
			Expect(shown.body).To(And(ContainSubstring("The key is [redacted], or [redacted]."),
				Not(ContainSubstring(credential)), Not(ContainSubstring(hidden))))
		}
	})

	It("belongs to the newest Turn with the name", func(ctx SpecContext) {
		s := newTestEnv(ctx)
		token := s.user(ctx, "reader", logRule)
		old := s.turn(ctx, "first")
		s.append(ctx, old, story()...)
		Expect(apiClient.Delete(ctx, old)).To(Succeed())
		s.append(ctx, s.turn(ctx, "first"), entry(1, journal.RunStarted, `{"executor":"capstan-1"}`))
		body := s.get(ctx, token, s.path("first", "journal")).body
		Expect(body).To(ContainSubstring("capstan-1"))
		Expect(body).NotTo(ContainSubstring("secret"))
	})

	It("of a newer version is rejected with advice", func(ctx SpecContext) {
		s := newTestEnv(ctx)
		token := s.user(ctx, "reader", logRule)
		e := entry(1, journal.RunStarted, `{}`)
		e.Version = journal.PayloadVersion + 1
		s.append(ctx, s.turn(ctx, "first"), e)
		Expect(s.get(ctx, token, s.path("first", "journal")).refusal(http.StatusInternalServerError)).To(
			ContainSubstring("run that version, or a later one"))
	})
})

var _ = Describe("Following a journal", func() {
	It("shows each entry when it is written, and ends with the last one", func(ctx SpecContext) {
		s := newTestEnv(ctx)
		t := s.turn(ctx, "first")
		token := s.user(ctx, "reader", logRule)
		r := s.follow(ctx, token, "first")
		for _, e := range story() {
			Consistently(r.entries, 3*polling).ShouldNot(Receive(), "entry %d is not there yet", e.Seq)
			s.append(ctx, t, e)
			Expect(r.next(ctx).Seq).To(Equal(e.Seq))
		}
		Eventually(r.done).Should(Receive(BeNil()))
	})

	It("ends when a Turn that was never bound has finished", func(ctx SpecContext) {
		s := newTestEnv(ctx)
		t := s.turn(ctx, "first")
		r := s.follow(ctx, s.user(ctx, "reader", logRule), "first")
		Consistently(r.done, 10*polling).ShouldNot(Receive())
		end(ctx, t)
		Eventually(r.done).Should(Receive(BeNil()))
	})

	// followEnded ends a Turn that was handed back, at the given time, while a reader follows its journal. It returns
	// the reader, who has the two entries of the run.
	followEnded := func(ctx SpecContext, s *testEnv, t *v1alpha1.Turn, at time.Time) *read {
		GinkgoHelper()
		s.append(ctx, t, story()[:2]...)
		r := s.follow(ctx, s.user(ctx, "reader", logRule), t.Name)
		Expect(r.next(ctx).Seq).To(Equal(int64(1)))
		Expect(r.next(ctx).Seq).To(Equal(int64(2)))
		t.Status.Executor = &v1alpha1.ExecutorBinding{Epoch: 1, JournalEntries: new(int64(2)), JournalComplete: true}
		turnstatus.End(t, v1alpha1.TurnReasonCancelled, "the turn was cancelled", at)
		Expect(apiClient.Status().Update(ctx, t)).To(Succeed())
		return r
	}

	It("shows the entry that the leader adds after the end of a Turn without an executor", func(ctx SpecContext) {
		s := newTestEnv(ctx)
		t := s.turn(ctx, "first")
		r := followEnded(ctx, s, t, time.Now())
		Consistently(r.done, 15*polling).ShouldNot(Receive(), "the last entry is not there yet")
		s.append(ctx, t, story()[2])
		Expect(r.next(ctx).Kind).To(Equal(journal.Finalized))
		Eventually(r.done).Should(Receive(BeNil()))
	})

	It("ends without a last entry when the record of the Turn was made without one", func(ctx SpecContext) {
		s := newTestEnv(ctx, func(o *readapi.Options) { o.Records = o.Journal.(*sqlite.Store) })
		t := s.turn(ctx, "first")
		r := followEnded(ctx, s, t, time.Now())
		Consistently(r.done, 15*polling).ShouldNot(Receive(), "the record is not there yet")
		record, ok := translate.Record(t, nil)
		Expect(ok).To(BeTrue())
		Expect(s.store.AddRecords(ctx, record)).To(Equal(1))
		Eventually(r.done).Should(Receive(BeNil()))
		Expect(r.entries).NotTo(Receive())
	})

	It("does not wait for the last entry of a Turn that ended long ago", func(ctx SpecContext) {
		s := newTestEnv(ctx)
		r := followEnded(ctx, s, s.turn(ctx, "first"), time.Now().Add(-2*time.Hour))
		Eventually(r.done).Should(Receive(BeNil()))
	})

	It("ends with the existing entries when the Turn was deleted", func(ctx SpecContext) {
		s := newTestEnv(ctx)
		t := s.turn(ctx, "first")
		s.append(ctx, t, story()[:2]...)
		r := s.follow(ctx, s.user(ctx, "reader", logRule), "first")
		Expect(r.next(ctx).Seq).To(Equal(int64(1)))
		Expect(r.next(ctx).Seq).To(Equal(int64(2)))
		Expect(apiClient.Delete(ctx, t)).To(Succeed())
		Eventually(r.done).Should(Receive(BeNil()))
	})

	It("ends when the permission is removed", func(ctx SpecContext) {
		s := newTestEnv(ctx)
		s.append(ctx, s.turn(ctx, "first"), story()[:2]...)
		r := s.follow(ctx, s.user(ctx, "reader", logRule), "first")
		Expect(r.next(ctx).Seq).To(Equal(int64(1)))
		account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: s.namespace, Name: "reader"}}
		Expect(apiClient.Delete(ctx, account)).To(Succeed())
		var err error
		Eventually(r.done).Should(Receive(&err))
		refused, ok := errors.AsType[*readapi.Error](err)
		Expect(ok).To(BeTrue(), "want a refusal, have %v", err)
		Expect(refused.Status).To(Equal(http.StatusUnauthorized))
	})

	It("is interrupted when the server stops, so that the reader connects to another server", func(ctx SpecContext) {
		s := newTestEnv(ctx)
		s.append(ctx, s.turn(ctx, "first"), story()[:2]...)
		r := s.follow(ctx, s.user(ctx, "reader", logRule), "first")
		Expect(r.next(ctx).Seq).To(Equal(int64(1)))
		s.server.stop()
		Eventually(r.done).Should(Receive(MatchError(readapi.ErrBroken)))
	})

	It("stays connected while there are no entries", func(ctx SpecContext) {
		s := newTestEnv(ctx, func(o *readapi.Options) { o.Beat = polling })
		t := s.turn(ctx, "first")
		s.append(ctx, t, story()[:1]...)
		token := s.user(ctx, "reader", logRule)
		ended := make(chan answer, 1)
		go func() {
			defer GinkgoRecover()
			ended <- s.get(ctx, token, s.path("first", "journal?follow=true"))
		}()
		Consistently(ended, 20*polling).ShouldNot(Receive())
		s.append(ctx, t, story()[1:]...)
		var got answer
		Eventually(ended).Should(Receive(&got))
		Expect(got.lines()).To(HaveLen(3))
		Expect(got.body).To(ContainSubstring("\n\n"), "blank lines show that the server is alive")
	})
})

var _ = Describe("A slow reader", func() {
	It("is disconnected, and its stream is free for other readers", func(ctx SpecContext) {
		// The timeout applies to the second reader as well, who must not be dropped because this machine is busy.
		s := newTestEnv(ctx, func(o *readapi.Options) { o.WriteTimeout = 5 * time.Second })
		t := s.turn(ctx, "first")
		token := s.user(ctx, "reader", logRule)
		const entries = 400
		size := s.appendLarge(ctx, t, entries)
		conn := s.openRequest(ctx, s.path("first", "journal"), "Authorization: Bearer "+token)

		By("closing the connection of the reader that does not read")
		Eventually(func() error { _, err := conn.Write([]byte("\r\n")); return err }).Should(HaveOccurred())
		Expect(conn.SetReadDeadline(time.Now().Add(patience))).To(Succeed())
		var got bytes.Buffer
		_, _ = got.ReadFrom(conn)
		Expect(got.Len()).To(BeNumerically("<", entries*size), "the rest must not be in a buffer of the server")

		By("serving a reader that reads")
		Expect(s.get(ctx, token, s.path("first", "journal")).lines()).To(HaveLen(entries))
	}, NodeTimeout(2*time.Minute))
})
