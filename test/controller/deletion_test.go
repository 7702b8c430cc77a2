package controller_test

import (
	"context"
	"database/sql"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/klauspost/compress/zstd"
	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/runtime/turnrecord"
	"github.com/capstan-dev/capstan/internal/store"
	"github.com/capstan-dev/capstan/internal/store/sqlite"
)

// deletionMarker is in every text of people, models and tools in the first test, and in the memories of the second. It
// is one word, so that an index of words contains it whole.
const deletionMarker = "quokka4711"

// tablesWith returns the tables of a running manager's store that contain a word in any column of any row, sorted.
func (m *runningManager) tablesWith(ctx context.Context, word string) func(Gomega) []string {
	return func(g Gomega) []string {
		found := []string{}
		for _, table := range m.rows(ctx, g, "SELECT name FROM sqlite_master WHERE type = 'table'") {
			if strings.Contains(m.rows(ctx, g, `SELECT * FROM "`+table[0]+`"`).text(), word) {
				found = append(found, table[0])
			}
		}
		slices.Sort(found)
		return found
	}
}

// dump contains the columns of rows.
type dump [][]string

// text returns all columns in lower case, like an index of words.
func (d dump) text() string {
	var b strings.Builder
	for _, row := range d {
		b.WriteString(strings.Join(row, " ") + "\n")
	}
	return strings.ToLower(b.String())
}

// rows returns the rows of a query to a running manager's store, with each column as text, decompressed.
func (m *runningManager) rows(ctx context.Context, g Gomega, query string) dump {
	db, err := sql.Open("sqlite", "file:"+m.options.DataDir+"/journal.db?mode=ro&_pragma=busy_timeout(10000)")
	g.Expect(err).NotTo(HaveOccurred())
	defer func() { g.Expect(db.Close()).To(Succeed()) }()
	found, err := db.QueryContext(ctx, query)
	g.Expect(err).NotTo(HaveOccurred(), query)
	defer func() { g.Expect(found.Close()).To(Succeed()) }()
	columns, err := found.Columns()
	g.Expect(err).NotTo(HaveOccurred())
	decoder, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(1))
	g.Expect(err).NotTo(HaveOccurred())
	defer decoder.Close()
	var all dump
	for found.Next() {
		values, into := make([]sql.RawBytes, len(columns)), make([]any, len(columns))
		for i := range values {
			into[i] = &values[i]
		}
		g.Expect(found.Scan(into...)).To(Succeed(), query)
		row := make([]string, len(values))
		for i := range values {
			if row[i] = string(values[i]); strings.HasPrefix(row[i], "\x28\xb5\x2f\xfd") { // compressed
				content, err := decoder.DecodeAll(values[i], nil)
				g.Expect(err).NotTo(HaveOccurred())
				row[i] = string(content)
			}
		}
		all = append(all, row)
	}
	g.Expect(found.Err()).NotTo(HaveOccurred(), query)
	return all
}

var _ = Describe("What a Turn leaves in the store", func() {
	It("is deleted with its Turn and its Session: also memories, evaluations, and long texts that are stored separately",
		func(ctx SpecContext) {
			s, host := newTestEnv(ctx, `rules:
- {when: {systemContains: You judge}, reply: {text: '{"score": 95, "reason": "It names the `+deletionMarker+`."}'}}
- when: {systemContains: `+aboutUser+`}
  reply: {text: '{"memories": [{"content": "Likes the `+deletionMarker+`.", "scope": "User", "confidence": 90}]}'}
- when: {systemContains: `+aboutSession+`}
  reply: {text: '{"memories": [{"content": "Talks about the `+deletionMarker+`.", "scope": "Session", "confidence": 90}]}'}
- {when: {toolMessages: 0}, reply: {toolCalls: [{name: search}]}}
- {reply: {text: "About the `+deletionMarker+`. ", repeat: 4000}}`), newFakeToolServer()
			host.offer("search", readOnly, answering(strings.Repeat("The "+deletionMarker+" is an animal. ", 2000)))
			m := s.run(trustRequesters, evaluationSlots(2))
			s.create(ctx, newSecret(secretName, apiKey), s.newProvider(provider), newProfile(profile, judgedBy()),
				newAgent(agent, withTools("desk"), learns(v1alpha1.LearnedScopeUser, v1alpha1.LearnedScopeSession), evaluating()),
				newSession(), newToolServer("desk", host.url, reading("search")))
			awaitText(ctx, s, &v1alpha1.Agent{}, agent, offered, HaveSuffix("[search]"))
			for _, name := range []string{"first", "second"} {
				s.create(ctx, newTurn(name, requestedBy("ada"), asking("What is a "+deletionMarker+"?", inSession)))
				s.awaitState(ctx, name, v1alpha1.TurnReasonCompleted)
				s.awaitVerdicts(ctx, name)
			}
			Eventually(m.learned(ctx)).WithContext(ctx).Should(HaveLen(2))
			m = m.restartedAfter(ctx, func(kept *sqlite.Store) {
				Expect(kept.AddFeedback(ctx, s.namespace, "first", "", turnrecord.Feedback{
					User: "ada", Score: "1", Comment: "I like the " + deletionMarker, Time: time.Now(),
				})).To(Succeed())
			})
			full := m.tablesWith(ctx, deletionMarker)(Default)
			Expect(len(full)).To(BeNumerically(">=", 6), fmt.Sprintf("before, the tables with it are %q", full))
			Expect(full).To(ContainElement("turn_record"), "the comment of a person")

			Expect(apiClient.Delete(ctx, s.turn(ctx, "first"))).To(Succeed())
			Expect(apiClient.Delete(ctx, s.turn(ctx, "second"))).To(Succeed())
			Eventually(m.learned(ctx)).WithContext(ctx).Should(BeEmpty())
			Eventually(m.tablesWith(ctx, deletionMarker)).WithContext(ctx).Should(Equal([]string{"artifact"}),
				"the Session has the conversation")
			Expect(apiClient.Delete(ctx, s.session(ctx))).To(Succeed())
			Eventually(m.tablesWith(ctx, deletionMarker)).WithContext(ctx).Should(BeEmpty())
		}, SpecTimeout(3*patience))

	It("contains no memory of a user whose memories are deleted", func(ctx SpecContext) {
		s := newTestEnv(ctx, `rules:
- when: {systemContains: `+aboutUser+`}
  reply: {text: '{"memories": [{"content": "Likes the `+deletionMarker+`.", "scope": "User", "confidence": 90}]}'}
- {reply: {text: "Yes."}}`)
		m := s.run(trustRequesters, evaluationSlots(2))
		s.create(ctx, s.basics(learns(v1alpha1.LearnedScopeUser))...)
		for _, name := range []string{"ada", "bob"} {
			s.create(ctx, newTurn(name, requestedBy(name), asking("Do you like animals?")))
			s.awaitState(ctx, name, v1alpha1.TurnReasonCompleted)
		}
		Eventually(m.learned(ctx)).WithContext(ctx).Should(HaveLen(2))
		Expect(m.tablesWith(ctx, deletionMarker)(Default)).To(ContainElement("memory"))
		const observations = "SELECT * FROM observation"
		Expect(m.rows(ctx, Default, observations)).To(HaveLen(2))
		m = m.restartedAfter(ctx, func(kept *sqlite.Store) {
			for _, name := range []string{"ada", "bob"} {
				n, err := kept.DeleteMemories(ctx, store.MemorySelector{Namespace: s.namespace, Requester: name}, time.Now(), 10)
				Expect(n, err).To(Equal(1))
			}
		})
		Expect(m.tablesWith(ctx, deletionMarker)(Default)).To(BeEmpty())
		Expect(m.rows(ctx, Default, observations)).To(BeEmpty(), "the observations of these Turns")
	}, SpecTimeout(2*patience))
})

// restartedAfter stops a manager, changes its store, and starts it again.
func (m *runningManager) restartedAfter(ctx context.Context, change func(*sqlite.Store)) *runningManager {
	GinkgoHelper()
	m.stop()
	kept, err := sqlite.Open(ctx, m.options.DataDir+"/journal.db")
	Expect(err).NotTo(HaveOccurred())
	change(kept)
	Expect(kept.Close()).To(Succeed())
	return start(m.options) //nolint:contextcheck // because a manager lives until it is stopped
}
