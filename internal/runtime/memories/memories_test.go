package memories_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"

	"github.com/capstan-dev/capstan/internal/runtime/memories"
)

var now = time.Date(2026, 6, 11, 15, 4, 5, 0, time.UTC)

// memory returns a memory of Ada that was learned a number of days ago.
func memory(text string, days int) memories.Memory {
	m := memories.Memory{
		Namespace: "helpdesk", Agent: "desk", Scope: memories.User, Text: text, Requester: "ada", Session: "talk", SessionUID: "uid-talk",
		Turn: "first", TurnUID: "uid-first", Learned: now.AddDate(0, 0, -days), Expires: now.AddDate(0, 0, 90-days),
	}
	m.Identify()
	return m
}

// TestWordsOfCleanTexts checks that a memory, which is stored without invisible characters, has the words of the text
// from which it was learned.
func TestWordsOfCleanTexts(t *testing.T) {
	for _, text := range []string{
		"کاربر از نرم\u200cافزار استفاده می\u200cکند", "ශ්\u200dරී ලංකාව", "Kranken\u00adversicherung",
		"long\u200bword", "\ufeffe\u2060\u0301",
		"two\u2028lines", "\u202ereversed\u202c", "Ada \u00ad has a cat.",
	} {
		if diff := cmp.Diff(memories.Query(memories.Clean(text)), memories.Query(text)); diff != "" {
			t.Errorf("the words of %q: -clean +as written:\n%s", text, diff)
		}
	}
}

// TestExcerpt checks that an excerpt has about as many tokens in each language, and both ends of a long text.
func TestExcerpt(t *testing.T) {
	many := strings.Repeat
	for name, tc := range map[string]struct{ text, want string }{
		"short":                {"Where is the printer?", "Where is the printer?"},
		"long":                 {many("a", 3000) + many("b", 3000), many("a", 1000) + " " + many("b", 999)},
		"the longest memory":   {many("字", memories.MaxText), many("字", memories.MaxText)},
		"long, in Chinese":     {many("字", 700) + many("句", 700), many("字", 250) + " " + many("句", 249)},
		"long, two languages":  {many("ab字", 1000), many("ab字", 166) + "ab " + many("ab字", 166)},
		"no words":             {many("! ", 3000), ""},
		"bytes without a text": {"a\xff\xfeb", "ab"},
	} {
		if diff := cmp.Diff(tc.want, memories.Excerpt(tc.text)); diff != "" {
			t.Errorf("%s: -want +got:\n%s", name, diff)
		}
	}
}

// TestQuery checks that the query has the words of a question before, after or between long texts.
func TestQuery(t *testing.T) {
	var log strings.Builder
	for i := range 5000 {
		fmt.Fprintf(&log, "line%d ", i)
	}
	same := strings.Repeat("and so on ", 100)
	for name, text := range map[string]string{
		"after many words":            log.String() + "Where is the printer?",
		"before many words":           "Where is the printer? " + log.String(),
		"after few different words":   same + "Where is the printer?",
		"between few different words": same + "Where is the printer? " + same,
	} {
		got := memories.Query(text)
		if !slices.Contains(got, "printer") || len(got) > 128 || !slices.IsSorted(got) || len(slices.Compact(got)) != len(got) {
			t.Errorf("%s: the query is %q, want at most 128 sorted words with \"printer\"", name, got)
		}
	}
	if got := memories.Query("b a B, a"); !slices.Equal(got, []string{"a", "b"}) {
		t.Errorf("the query is %q, want each word once", got)
	}
}

// TestIdentifyLongTexts checks that two long texts with the same beginning have different IDs.
func TestIdentifyLongTexts(t *testing.T) {
	begin := strings.Repeat("東京の天気は晴れ", 20)
	a, b := memory(begin+"今日", 0), memory(begin+"明日", 0)
	a.Identify()
	b.Identify()
	if a.ID == b.ID {
		t.Error("two texts have the same ID")
	}
}

// TestIdentify checks that two memories have the same ID if and only if they have the same owner and the same words.
func TestIdentify(t *testing.T) {
	base := memory("Prefers short answers.", 0)
	for name, tc := range map[string]struct {
		change func(*memories.Memory)
		same   bool
	}{
		"another form":      {func(m *memories.Memory) { m.Text = "prefers  SHORT answers" }, true},
		"another Turn":      {func(m *memories.Memory) { m.TurnUID, m.Turn = "uid-second", "second" }, true},
		"another Session":   {func(m *memories.Memory) { m.SessionUID = "uid-other" }, true},
		"another text":      {func(m *memories.Memory) { m.Text = "Prefers long answers." }, false},
		"another user":      {func(m *memories.Memory) { m.Requester = "bob" }, false},
		"another Agent":     {func(m *memories.Memory) { m.Agent = "other" }, false},
		"another namespace": {func(m *memories.Memory) { m.Namespace = "sales" }, false},
		"another scope":     {func(m *memories.Memory) { m.Scope = memories.Session }, false},
		"moved letters":     {func(m *memories.Memory) { m.Namespace, m.Agent = "helpdeskd", "esk" }, false},
	} {
		other := base
		tc.change(&other)
		other.Identify()
		if same := other.ID == base.ID; same != tc.same {
			t.Errorf("%s: the IDs are equal: %t, want %t", name, same, tc.same)
		}
	}
	if len(base.ID) > 64 {
		t.Errorf("the ID %q has more than the 64 characters that status.preparation.provenance.usedMemoryIDs allows", base.ID)
	}
}

func TestClean(t *testing.T) {
	got := memories.Clean("a\n\u202eb\x1b[31m " + strings.Repeat("ö", 1000))
	if strings.ContainsAny(got, "\n\x1b\u202e") || utf8.RuneCountInString(got) != memories.MaxText {
		t.Errorf("Clean = %q, want one line of %d characters", got, memories.MaxText)
	}
}

func TestRank(t *testing.T) {
	all := []memories.Memory{
		memory("Ada's printer is an HP 4000.", 40), memory("Ada prefers short answers.", 1), memory("Ada lives in Bern.", 2),
		memory("The printer of the office is in room 7.", 3), memory("Ada has a cat.", 95),
	}
	session := memory("Ada lives in Bern", 0)
	session.Scope = memories.Session
	session.Identify()
	texts := func(query string, limit int) (got []string) {
		before := 2.0
		for _, r := range memories.Rank(append(all, session), query, now, limit) {
			if r.Relevance < 0 || r.Relevance > 1 || r.Relevance > before {
				t.Errorf("the relevance of %q is %f after %f, want it decreasing from 1 to 0", r.Text, r.Relevance, before)
			}
			before = r.Relevance
			got = append(got, r.Text)
		}
		return got
	}
	if diff := cmp.Diff([]string{"Ada's printer is an HP 4000.", "The printer of the office is in room 7."},
		texts("Which model is Ada's printer?", 2)); diff != "" {
		t.Errorf("memories about the printer: -want +got:\n%s", diff)
	}
	want := []string{
		"Ada prefers short answers.", "Ada lives in Bern.", "The printer of the office is in room 7.", "Ada's printer is an HP 4000.",
	}
	if diff := cmp.Diff(want, texts("?", 9)); diff != "" {
		t.Errorf("without words, want unexpired memories, newest first, each once: -want +got:\n%s", diff)
	}
	if got := texts("printer", 0); len(got) > 0 {
		t.Errorf("Rank with limit 0 = %v, want none", got)
	}
}

// TestRankByMeaning checks that a memory without a common word is found by its similarity, and that common words still
// count.
func TestRankByMeaning(t *testing.T) {
	of := func(text string, age int, similarity ...float64) memories.Memory {
		m := memory(text, age)
		if len(similarity) > 0 {
			m.Similarity = &similarity[0]
		}
		return m
	}
	for name, tc := range map[string]struct {
		all  []memories.Memory
		want []string
	}{
		"the meaning without a common word": {
			[]memories.Memory{of("Likes bicycles.", 1, 0.1), of("Has an HP 4000.", 40, 0.6), of("Is in Oslo.", 2, 0.2)},
			[]string{"Has an HP 4000.", "Is in Oslo.", "Likes bicycles."},
		},
		"the words and the meaning": {
			[]memories.Memory{of("The printer is new.", 1, 0.5), of("The printer is broken.", 1, 0.9), of("Has an HP 4000.", 1, 0.8)},
			[]string{"The printer is broken.", "The printer is new.", "Has an HP 4000."},
		},
		"a memory without a vector, by its words": {
			[]memories.Memory{of("The printer is new.", 1), of("Has an HP 4000.", 1, 0.8), of("Is in Oslo.", 1, 0.1)},
			[]string{"The printer is new.", "Has an HP 4000.", "Is in Oslo."},
		},
	} {
		t.Run(name, func(t *testing.T) {
			var got []string
			for _, r := range memories.Rank(tc.all, "the printer", now, 9) {
				if got = append(got, r.Text); r.Relevance < 0 || r.Relevance > 1 {
					t.Errorf("the relevance of %q is %f, want 0 to 1", r.Text, r.Relevance)
				}
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}
}
