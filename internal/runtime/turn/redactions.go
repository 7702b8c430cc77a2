package turn

import (
	"cmp"
	"maps"
	"slices"

	"github.com/capstan-dev/capstan/internal/runtime/journal"
)

// MaxRedactions is the maximum number of rules in a result.
const MaxRedactions = 16

// Redaction is the number of texts that a rule has removed.
type Redaction struct {
	// Rule is the name of a pattern, or a JSON path.
	Rule    string `json:"rule"`
	Matches int64  `json:"matches"`
}

// redactions is the payload of the entry for the texts that rules have removed. It has no text.
type redactions struct {
	Redactions []Redaction `json:"redactions"`
}

// withRedactions adds an entry with the matches of rules since the last write. The redacted texts are in the same write
// or were dropped, so each match counts once, even if the run is killed. The matches in the input for the messages are
// only added to the write that has this input, because the next run of a killed run redacts the input again. The write
// of the end of the Turn needs no such entry, because the result contains the matches. withRedactions also returns the
// matches: if the write fails, they belong to the next write, for example after a budget has refused a request.
func (r *run) withRedactions(records []journal.Record) (all []journal.Record, found map[string]int64) {
	if slices.ContainsFunc(records, isEnd) {
		return records, nil
	}
	found = r.takeRedactions()
	if slices.ContainsFunc(records, hasInput) {
		found, r.inInput = sum(found, r.inInput), nil
	}
	if len(found) == 0 {
		return records, nil
	}
	return append(slices.Clip(records), journal.Record{Kind: journal.TextRedacted, Payload: redactions{sorted(found)}}), found
}

// hasInput reports whether a record has the input for the messages, or messages that were made from it.
func hasInput(e journal.Record) bool {
	return e.Kind == journal.PreparationInput || e.Kind == journal.Prepared
}

// matchesOf returns the matches of rules in the texts that read reads. Earlier matches belong to the next write.
func (r *run) matchesOf(read func()) map[string]int64 {
	if r.in.Redactions == nil {
		read()
		return nil
	}
	r.unrecorded = r.takeRedactions()
	read()
	return r.in.Redactions()
}

// readInput counts the matches of rules in a part of the input for the messages, which read reads.
func (r *run) readInput(read func()) { r.inInput = sum(r.inInput, r.matchesOf(read)) }

// takeRedactions returns the matches since it was last called, and those of a failed write.
func (r *run) takeRedactions() map[string]int64 {
	found := r.unrecorded
	r.unrecorded = nil
	if r.in.Redactions == nil {
		return found
	}
	return sum(found, r.in.Redactions())
}

// sum returns the matches of both maps, and changes neither.
func sum(a, b map[string]int64) map[string]int64 {
	if len(a) == 0 {
		return b
	}
	all := maps.Clone(a)
	for rule, n := range b {
		all[rule] += n
	}
	return all
}

// allRedactions returns the matches of the whole Turn, of at most MaxRedactions rules: those with the most matches.
func (r *run) allRedactions() []Redaction {
	return sorted(sum(sum(r.replayed.redactions, r.inInput), r.takeRedactions()))
}

// sorted returns the matches of at most MaxRedactions rules: those with the most matches, in the order of the rules.
func sorted(found map[string]int64) []Redaction {
	var all []Redaction
	for rule, n := range found {
		all = append(all, Redaction{rule, n})
	}
	slices.SortFunc(all, func(a, b Redaction) int {
		return cmp.Or(cmp.Compare(b.Matches, a.Matches), cmp.Compare(a.Rule, b.Rule))
	})
	all = all[:min(len(all), MaxRedactions)]
	slices.SortFunc(all, func(a, b Redaction) int { return cmp.Compare(a.Rule, b.Rule) })
	return all
}

// applyRedactions folds an entry into the state.
func (p *replayed) applyRedactions(e journal.Entry) error {
	var in *redactions
	if err := readPayload(e, &in); err != nil {
		return err
	}
	if p.redactions == nil {
		p.redactions = map[string]int64{}
	}
	for _, redaction := range in.Redactions {
		p.redactions[redaction.Rule] += redaction.Matches
	}
	return nil
}
