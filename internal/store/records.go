package store

import (
	"context"
	"errors"
	"time"

	"github.com/capstan-dev/capstan/internal/runtime/turnrecord"
)

// ErrNoRecord is returned if a Turn has no record.
var ErrNoRecord = errors.New("there is no record of the turn")

// ErrTurnDeleted is returned for a comment on a Turn that was deleted.
var ErrTurnDeleted = errors.New("the turn was deleted, and comments are kept only as long as their turn: give a score without a comment")

// Records keeps one record of each Turn that has ended, even after the journal of the Turn was purged. The append that
// ends a Turn stores its record: see journal.Entry.
type Records interface {
	// AddRecords adds records of Turns that ended without an entry in a journal. If a Turn already has a record, the
	// new record is ignored. AddRecords returns the number of added records.
	AddRecords(ctx context.Context, records ...turnrecord.Record) (added int, err error)

	// Unrecorded returns the given UIDs that have no record, in any order.
	Unrecorded(ctx context.Context, uids []string) ([]string, error)

	RecordPages

	// PurgeRecords deletes up to limit records of Turns that ended before a time, oldest first. It returns the number
	// of deleted records, even with an error; fewer than limit means that there are no more.
	PurgeRecords(ctx context.Context, before time.Time, limit int) (purged int, err error)

	// TrimRecords deletes up to limit records of the namespace that has the most records, oldest first. It keeps at
	// least maxRecords records of this namespace. After limit records were deleted, the next call may continue with
	// the same namespace. TrimRecords returns the number of deleted records, even with an error; 0 means that no
	// namespace has more than maxRecords records.
	TrimRecords(ctx context.Context, maxRecords, limit int) (trimmed int, err error)

	// DeletedUntil considers the Turns of a namespace whose records PurgeRecords or TrimRecords has deleted. It returns
	// the latest time at which one of these Turns ended, or the zero time if no record was deleted. An empty namespace
	// means all namespaces.
	DeletedUntil(ctx context.Context, namespace string) (time.Time, error)

	// DeleteRecords deletes up to limit records that a selector selects. It returns the number of deleted records,
	// even with an error; fewer than limit means that there are no more.
	DeleteRecords(ctx context.Context, s RecordSelector, limit int) (deleted int, err error)

	// AddFeedback adds feedback to the record of a Turn, given by its namespace, its name and its UID, and replaces
	// earlier feedback of the same person. If uid is empty, AddFeedback uses the newest record with this name. Retire
	// deletes the comments on a Turn, and keeps the scores. AddFeedback returns ErrNoRecord if there is no record,
	// ErrTurnDeleted for a comment if the journal of the Turn is retired, and another error if the record is full.
	AddFeedback(ctx context.Context, namespace, turn, uid string, f turnrecord.Feedback) error
}

// RecordPages reads records page by page.
type RecordPages interface {
	// Records returns a page of the records that a query selects, newest first: at most MaxRecords and, except for its
	// last record, less than PageRecordBytes. more reports whether there may be records after the page.
	Records(ctx context.Context, q RecordQuery) (page []turnrecord.Record, more bool, err error)
}

const (
	// MaxRecords is the maximum number of records that Records returns.
	MaxRecords = 500
	// PageRecordBytes limits the total size of the JSON of a page of records, as it is stored. The record that reaches
	// the limit is the last one of the page. A usual page of MaxRecords is smaller, but the comments on one Turn can
	// have 200 KiB, and the read API has many pages in memory at the same time.
	PageRecordBytes = 1 << 20
)

// RecordQuery selects records and a page of them.
type RecordQuery struct {
	RecordSelector
	// Since and Until limit the time at which a Turn ended: Since is included, and Until is not. A zero time is no
	// limit.
	Since, Until time.Time
	// After is the position of the last record of the previous page. The zero value selects the first page.
	After RecordPosition
	// Limit is the maximum number of records; 0 or more than MaxRecords means MaxRecords.
	Limit int
	// Commented selects only the records that have a comment.
	Commented bool
}

// MaxPage returns the maximum number of records of a page of the query.
func (q RecordQuery) MaxPage() int {
	if q.Limit <= 0 {
		return MaxRecords
	}
	return min(q.Limit, MaxRecords)
}

// RecordPosition is the position of a record in the order of Records.
type RecordPosition struct {
	Completed time.Time
	UID       string
}

// PositionOf returns the position of a record.
func PositionOf(r *turnrecord.Record) RecordPosition { return RecordPosition{r.Completed, r.UID} }

// RecordSelector selects records by their fields. An empty field selects any value.
type RecordSelector struct {
	Namespace, Turn, Agent, Session, Requester string
}

// Selects reports whether the selector selects a record.
func (s RecordSelector) Selects(r *turnrecord.Record) bool {
	is := func(want, got string) bool { return want == "" || want == got }
	return is(s.Namespace, r.Namespace) && is(s.Turn, r.Turn) && is(s.Agent, r.Agent) && is(s.Session, r.Session) &&
		is(s.Requester, r.Requester)
}

// Conditions yields the columns that the selector limits, with their values.
func (s RecordSelector) Conditions(yield func(column, value string) bool) {
	for _, c := range []struct{ column, value string }{
		{"namespace", s.Namespace},
		{"turn", s.Turn},
		{"agent", s.Agent},
		{"session", s.Session},
		{"requester", s.Requester},
	} {
		if c.value != "" && !yield(c.column, c.value) {
			return
		}
	}
}

// AllRecords yields all records that a query selects, page by page. No query is open while the consumer works.
func AllRecords(ctx context.Context, s RecordPages, q RecordQuery) func(yield func(*turnrecord.Record, error) bool) {
	return func(yield func(*turnrecord.Record, error) bool) {
		q.Limit = MaxRecords
		for {
			page, more, err := s.Records(ctx, q)
			if err != nil {
				yield(nil, err)
				return
			}
			for i := range page {
				if !yield(&page[i], nil) {
					return
				}
			}
			if !more {
				return
			}
			q.After = PositionOf(&page[len(page)-1])
		}
	}
}
