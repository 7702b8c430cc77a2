// Package memories makes the questions by which memories are learned from ended Turns, and ranks memories for later
// Turns. Stores keep the memories, and executors ask the models.
//
// The code, and not a model, decides who may use a memory:
//
//  1. The question about a user contains only the message that this user has written. No other text, such as the
//     result of a tool, can become a memory of a user.
//  2. The question about a Session also contains the answer and the results of tools. All that is learned from it stays
//     in the Session.
package memories

import (
	"crypto/sha256"
	"encoding/hex"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/capstan-dev/capstan/internal/runtime/ranking"
	"github.com/capstan-dev/capstan/internal/runtime/untrusted"
)

// Scope says which Turns may use a memory.
type Scope string

// The scopes, narrowest first.
const (
	// Session means that only later Turns of the same Session use the memory.
	Session Scope = "Session"
	// User means that only later Turns of the same verified requester use the memory, with the same Agent and in the
	// same namespace.
	User Scope = "User"
)

// The limits of memories.
const (
	// MaxText is the maximum length of a memory, in characters.
	MaxText = 500
	// MaxPerTurn is the maximum number of memories of each scope that are learned from one Turn.
	MaxPerTurn = 10
	// MaxOwnerBytes is the maximum size of the texts of all memories of an owner, in bytes.
	MaxOwnerBytes = 64 << 10
	// MaxItems is the maximum number of memories of an owner.
	MaxItems = 500
	// MaxNewest is the number of the newest memories of an owner that are ranked for each Turn, even if they do not
	// match its words.
	MaxNewest = 16
	// MaxNearest is the maximum number of memories of an owner that are ranked because of their vectors.
	MaxNearest = 16
	// maxWords is the maximum number of words of a query.
	maxWords = 128
	// maxQuery is the maximum length of the text of a query, in characters.
	maxQuery = 4000
)

// Memory is a text that was learned from a Turn.
type Memory struct {
	// ID is a hash of the owner and the words of the text, so an owner has each memory once.
	ID string `json:"id"`
	// Namespace is the namespace of the Turn. Agent is the name of its Agent.
	Namespace string `json:"namespace"`
	Agent     string `json:"agent"`
	Scope     Scope  `json:"scope"`
	// Text is one line of at most MaxText characters.
	Text string `json:"text"`
	// Confidence is the confidence of the model, from 0 to 100.
	Confidence int `json:"confidence"`
	// Requester is the name of the user who asked for the Turn. It is empty if it is not known.
	Requester string `json:"requester,omitempty"`
	// Session and SessionUID are the name and the UID of the Turn's Session. Both are empty if the Turn has none.
	// SessionUID is also empty once the memory is kept independently of the Session.
	Session    string `json:"session,omitempty"`
	SessionUID string `json:"sessionUID,omitempty"`
	// Turn and TurnUID are the name and the UID of the Turn. TurnUID is empty once the memory is kept independently of
	// the Turn.
	Turn    string `json:"turn"`
	TurnUID string `json:"turnUID"`
	// Model is the model that has extracted the memory, as PROVIDER/MODEL.
	Model string `json:"model"`
	// Learned is the time of the end of the Turn. Expires is the time from which the memory is no longer used. Both are
	// in UTC and to the microsecond.
	Learned time.Time `json:"learned"`
	Expires time.Time `json:"expires"`
	// Similarity is the similarity of the memory to the vector of a search. It is nil if it is not known.
	Similarity *float64 `json:"-"`
}

// Search describes a text for which memories are searched.
type Search struct {
	// Words are the words of the text, from Query.
	Words []string
	// Vector is the vector of the text. If it is empty, memories are found only by their words.
	Vector ranking.Vector
}

// Embedded is the vector of a memory.
type Embedded struct {
	// ID is the ID of the memory.
	ID     string
	Vector ranking.Vector
}

// Owner identifies the Turns that may use a memory.
type Owner struct {
	Namespace, Agent string
	Scope            Scope
	// ID is the UID of the Session, or the name of the user.
	ID string
}

// Owner returns the owner of a memory.
func (m *Memory) Owner() Owner {
	o := Owner{m.Namespace, m.Agent, m.Scope, m.SessionUID}
	if m.Scope == User {
		o.ID = m.Requester
	}
	return o
}

// Key identifies an owner. It consists of lower-case letters and digits, and begins with a letter.
func (o Owner) Key() string {
	return "o" + digest(o.Namespace, o.Agent, string(o.Scope), o.ID)
}

// Identify sets the ID of a memory from its other fields.
func (m *Memory) Identify() {
	m.ID = "m" + digest(m.Owner().Key(), normal(m.Text))
}

// digest returns a hash of texts, in hexadecimal.
func digest(texts ...string) string {
	h := sha256.New()
	for _, text := range texts {
		h.Write([]byte(strconv.Itoa(len(text)) + ":" + text))
	}
	return hex.EncodeToString(h.Sum(nil)[:16])
}

// Clean returns a text as one line of at most MaxText characters, without invisible characters.
func Clean(text string) string {
	text, _ = untrusted.Cap(untrusted.StripLine(text), MaxText)
	return text
}

// normal returns the form of a text by which memories are compared: its words, or the text itself if it has no words.
func normal(text string) string {
	if words := ranking.Words(text); len(words) > 0 {
		return strings.Join(words, " ")
	}
	return text
}

// maxExcerpt is the maximum length of a text that is turned into a vector: see width. Many models accept 512 tokens,
// and refuse longer texts.
const maxExcerpt = 2000

// width returns the length of a character as a part of an excerpt. Four letters of English are about one token, but
// outside of ASCII one character may be a token of its own.
func width(r rune) int {
	if r < utf8.RuneSelf {
		return 1
	}
	return 4
}

// Excerpt returns the part of a text that is turned into a vector: the beginning and the end of a long text, because
// people paste long texts after or before their question. Excerpt returns an empty text if the text has no words.
func Excerpt(text string) string {
	if headOf(text, maxExcerpt) < len(text) {
		tail := tailOf(text, maxExcerpt/2-1) // the space counts, too
		text = text[:headOf(text, maxExcerpt/2)] + " " + text[tail:]
	}
	if text = strings.ToValidUTF8(strings.TrimSpace(text), ""); len(ranking.Words(text)) == 0 {
		return ""
	}
	return text
}

// headOf returns the offset of the end of the longest beginning of a text with at most this width.
func headOf(text string, most int) int {
	for i, r := range text {
		if most -= width(r); most < 0 {
			return i
		}
	}
	return len(text)
}

// tailOf returns the offset of the longest end of a text with at most this width.
func tailOf(text string, most int) int {
	for i := len(text); i > 0; {
		r, size := utf8.DecodeLastRuneInString(text[:i])
		if most -= width(r); most < 0 {
			return i
		}
		i -= size
	}
	return 0
}

// Query returns the words of a text for which memories are searched, sorted and each once. For a long text, it returns
// the words of the beginning and the end.
func Query(text string) []string {
	if all := []rune(text); len(all) > maxQuery {
		text = string(all[:maxQuery/2]) + " " + string(all[len(all)-maxQuery/2:])
	}
	words := ranking.Words(text)
	query := map[string]bool{}
	for i := 0; i < len(words) && len(query) < maxWords/2; i++ {
		query[words[i]] = true
	}
	for i := len(words) - 1; i >= 0 && len(query) < maxWords; i-- {
		query[words[i]] = true
	}
	return slices.Sorted(maps.Keys(query))
}
