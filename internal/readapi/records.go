package readapi

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"mime"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/access"
	"github.com/capstan-dev/capstan/internal/runtime/turnrecord"
	"github.com/capstan-dev/capstan/internal/store"
	"github.com/capstan-dev/capstan/internal/usage"
)

// RecordsTimeout is the time limit of one request for records, including its answer. A server may send the first byte
// of the answer just before this time is over, because it adds up all records first.
const RecordsTimeout = 2 * time.Minute

const (
	// maxSelector is the maximum size of the value of a parameter, in bytes.
	maxSelector = 1024
	// maxRecordsAnswer is the maximum size of an answer that a client reads, in bytes.
	maxRecordsAnswer = 32 << 20
	// deletesPerRequest is the number of records or memories after which a request stops deleting.
	deletesPerRequest = 10_000
)

// RecordPage is a page of records.
type RecordPage struct {
	Records []turnrecord.Record `json:"records"`
	// Next is the value of the parameter after for the next page. It is empty for the last page.
	Next string `json:"next,omitempty"`
}

// UsagePage is the usage of Turns, grouped by fields.
type UsagePage struct {
	By     []usage.Dimension `json:"by"`
	Groups []usage.Group     `json:"groups"`
	// DeletedUntil is set if records of the selected time were deleted because of their age or number. It is the latest
	// end of a Turn whose record was deleted. The groups then lack the usage of Turns that ended until this time.
	DeletedUntil *time.Time `json:"deletedUntil,omitempty"`
}

// UsageOf adds up the records that a query selects.
func UsageOf(ctx context.Context, records UsageRecords, q store.RecordQuery, by []usage.Dimension) (UsagePage, error) {
	sum := usage.NewSum(by)
	for record, err := range store.AllRecords(ctx, records, q) {
		if err == nil {
			err = sum.Add(record)
		}
		if err != nil {
			return UsagePage{}, err
		}
	}
	page := UsagePage{By: by, Groups: sum.Groups()}
	until, err := records.DeletedUntil(ctx, q.Namespace) // after the records, to include deletions in the meantime
	if err == nil && !until.IsZero() && !until.Before(q.Since) {
		page.DeletedUntil = &until
	}
	return page, err
}

// UsageRecords are the records that UsageOf adds up.
type UsageRecords interface {
	store.RecordPages
	DeletedUntil(ctx context.Context, namespace string) (time.Time, error)
}

// Deleted is the answer to a request that deletes records or memories.
type Deleted struct {
	// Deleted is the number of deleted records or memories. More is true if more of them may be left.
	Deleted int  `json:"deleted"`
	More    bool `json:"more,omitempty"`
}

// cursor returns the text of a position, for a URL.
func cursor(p store.RecordPosition) string {
	return strconv.FormatInt(p.Completed.UnixMicro(), 10) + "-" + p.UID
}

// parseCursor parses the text of a position.
func parseCursor(text string) (store.RecordPosition, bool) {
	completed, uid, _ := strings.Cut(text, "-")
	micro, err := strconv.ParseInt(completed, 10, 64)
	return store.RecordPosition{Completed: time.UnixMicro(micro).UTC(), UID: uid}, err == nil && uid != ""
}

// values returns the parameters of a query, except those for the namespace.
func values(q store.RecordQuery) url.Values {
	v := url.Values{}
	for column, value := range q.Conditions {
		if column != "namespace" {
			v.Set(column, value)
		}
	}
	if !q.Since.IsZero() {
		v.Set("since", q.Since.UTC().Format(time.RFC3339Nano))
	}
	if !q.Until.IsZero() {
		v.Set("until", q.Until.UTC().Format(time.RFC3339Nano))
	}
	if q.After.UID != "" {
		v.Set("after", cursor(q.After))
	}
	if q.Limit > 0 {
		v.Set("limit", strconv.Itoa(q.Limit))
	}
	return v
}

// queryOf parses the parameters of a request. The namespace is the one in the path; it is empty for all namespaces.
func queryOf(r *http.Request, parameters ...string) (store.RecordQuery, *Error) {
	v, q := r.URL.Query(), store.RecordQuery{}
	if refused := checkParameters(v, append([]string{"turn", "agent", "session", "requester"}, parameters...)...); refused != nil {
		return q, refused
	}
	q.RecordSelector = store.RecordSelector{
		Namespace: r.PathValue("namespace"), Turn: v.Get("turn"), Agent: v.Get("agent"), Session: v.Get("session"),
		Requester: v.Get("requester"),
	}
	for name, field := range map[string]*time.Time{"since": &q.Since, "until": &q.Until} {
		if text := v.Get(name); text != "" {
			var err error
			if *field, err = time.Parse(time.RFC3339Nano, text); err != nil {
				return q, refuse(http.StatusBadRequest, "the parameter %s must be a time such as 2026-06-11T15:04:05Z", name)
			}
		}
	}
	if text := v.Get("after"); text != "" {
		var ok bool
		if q.After, ok = parseCursor(text); !ok {
			return q, refuse(http.StatusBadRequest, "the parameter after must be the value of next in an earlier page")
		}
	}
	var refused *Error
	q.Limit, refused = limitOf(v, store.MaxRecords)
	return q, refused
}

// checkParameters refuses parameters of a request that are unknown, given twice or too long, or that no text in a store
// can equal. PostgreSQL would refuse these, as if it had failed.
func checkParameters(v url.Values, known ...string) *Error {
	for name, all := range v {
		for _, value := range all {
			if !utf8.ValidString(value) || strings.ContainsRune(value, 0) {
				return refuse(http.StatusBadRequest, "the parameter %.100q must be UTF-8 without U+0000", name)
			}
		}
		if !slices.Contains(known, name) || len(all) != 1 || len(all[0]) > maxSelector {
			return refuse(http.StatusBadRequest, "the parameter %.100q must be one of %s, once, with at most %d bytes",
				name, strings.Join(known, ", "), maxSelector)
		}
	}
	return nil
}

// limitOf returns the parameter limit, or 0 if it is missing.
func limitOf(v url.Values, maximum int) (limit int, refused *Error) {
	text := v.Get("limit")
	if text == "" {
		return 0, nil
	}
	limit, err := strconv.Atoi(text)
	if err != nil || limit < 1 || limit > maximum {
		return 0, refuse(http.StatusBadRequest, "the parameter limit must be from 1 to %d", maximum)
	}
	return limit, nil
}

// kept is a kind of data about Turns that the store keeps.
type kept struct {
	// subresource is the subresource of turns on which users need permissions.
	subresource string
	// name is the name of the data in messages.
	name string
	// isServed is true if the server has the data.
	isServed bool
}

// keptRecords describes the records of Turns.
func (s *Server) keptRecords() kept { return kept{"records", "records of Turns", s.o.Records != nil} }

// keptMemories describes the memories that were learned from Turns.
func (s *Server) keptMemories() kept {
	return kept{"memories", "memories learned from Turns", s.o.Memories != nil}
}

// authorized calls serve for requests of users who have a verb on the data of the namespace in the path, or of all
// namespaces if the path has none. It sends the JSON of the value that serve returns.
func (s *Server) authorized(k kept, verb string, serve func(context.Context, *http.Request) (any, *Error)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		namespace := r.PathValue("namespace")
		if namespace != "" && len(validation.IsDNS1123Label(namespace)) > 0 {
			s.answer(w, r, refuse(http.StatusBadRequest, "the namespace must be a valid name of a Kubernetes object"))
			return
		}
		user, refusal := s.o.Access.Check(r.Context(), r, access.Right{
			Verb: verb, Group: v1alpha1.GroupVersion.Group, Version: v1alpha1.GroupVersion.Version, Resource: "turns",
			Subresource: k.subresource, Namespace: namespace,
		})
		if refusal != nil {
			s.answer(w, r, s.keptRefusal(k, refusal, verb, namespace))
			return
		}
		leave, refused := s.enter(r, namespace, user)
		if refused != nil {
			s.answer(w, r, refused)
			return
		}
		defer leave()
		if !k.isServed {
			s.answer(w, r, refuse(http.StatusNotFound, "this server has no %s", k.name))
			return
		}
		ctx, cancel := context.WithTimeout(r.Context(), RecordsTimeout)
		defer cancel()
		if verb == "list" { // lists can be long; other requests must not wait for them
			ctx = store.OfLists(ctx)
		}
		value, refused := serve(ctx, r)
		if refused != nil {
			s.answer(w, r, refused)
			return
		}
		if err := http.NewResponseController(w).SetWriteDeadline(deadlineIn(s.o.WriteTimeout)); err != nil {
			panic(http.ErrAbortHandler)
		}
		h := w.Header()
		h.Set("Content-Type", "application/json")
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("Cache-Control", "no-store")
		// The answer may be large, so it is encoded only once, and without the six bytes for each of <, > and &.
		encoder := json.NewEncoder(w)
		encoder.SetEscapeHTML(false)
		if err := encoder.Encode(value); err != nil {
			panic(http.ErrAbortHandler) // the client is gone
		}
	}
}

// keptRefusal returns the refusal for the client. For a user who lacks a permission, it names the permission.
func (s *Server) keptRefusal(k kept, refusal *access.Refusal, verb, namespace string) *Error {
	if refusal.Status != http.StatusForbidden {
		return &Error{Status: refusal.Status, Message: refusal.Message}
	}
	where := "in all namespaces: this requires a ClusterRole that is bound by a ClusterRoleBinding"
	if namespace != "" {
		where = fmt.Sprintf("in namespace %q: this requires a role that is bound there", namespace)
	}
	return refuse(refusal.Status, "user %q may not %s %s %s, with a rule with apiGroups [%s], resources [turns/%s] and verbs [%s]%s",
		refusal.User, map[string]string{"list": "read", "delete": "delete"}[verb], k.name, where, v1alpha1.GroupVersion.Group,
		k.subresource, verb, s.keptRole(verb))
}

// keptRole returns the part of a message that names the role with a verb on data about Turns, or an empty text if this
// installation has no such role.
func (s *Server) keptRole(verb string) string {
	if s.o.RolePrefix == "" || verb != "list" {
		return ""
	}
	return ", such as the ClusterRole " + s.o.RolePrefix + "-turn-reader"
}

func (s *Server) serveRecords(ctx context.Context, r *http.Request) (any, *Error) {
	q, refused := queryOf(r, "since", "until", "after", "limit")
	if refused != nil {
		return nil, refused
	}
	all, more, err := s.o.Records.Records(ctx, q)
	if err != nil {
		return nil, failureOf(err)
	}
	for i := range all {
		s.redactComments(&all[i])
	}
	page := RecordPage{Records: all}
	if more {
		page.Next = cursor(store.PositionOf(&all[len(all)-1]))
	}
	if all == nil {
		page.Records = []turnrecord.Record{}
	}
	return page, nil
}

// redactComments removes credentials from the comments in a record, because the process that has stored a comment may
// not have known the credential. The other texts are names, numbers, hashes, reasons and values from specs, which are
// never redacted. A tool with a credential in its name is never offered to a model.
func (s *Server) redactComments(r *turnrecord.Record) {
	clean := s.cleanFor(r.Namespace, r.Agent)
	r.Feedback = slices.Clone(r.Feedback) // the store may use the list, too
	for i := range r.Feedback {
		r.Feedback[i].Comment = clean(r.Feedback[i].Comment)
	}
}

// cleanFor returns a function that removes credentials from texts about a Turn, as v1alpha1.Turn.CredentialNamespaces
// says: those of the Turn's namespace, and those of the namespace of its Agent. agent is NAME, or NAMESPACE/NAME for an
// Agent of another namespace.
func (s *Server) cleanFor(namespace, agent string) func(text string) string {
	namespaces := []string{namespace}
	if owner, _, ok := strings.Cut(agent, "/"); ok {
		namespaces = append(namespaces, owner)
	}
	return s.o.Credentials.RedactFunc(namespaces...)
}

// serveUsage returns the usage of Turns. It redacts nothing, because the answer has only numbers, and names of objects,
// models and requesters.
func (s *Server) serveUsage(ctx context.Context, r *http.Request) (any, *Error) {
	q, refused := queryOf(r, "since", "until", "by")
	if refused != nil {
		return nil, refused
	}
	by, err := usage.ParseDimensions(cmp.Or(r.URL.Query().Get("by"), string(usage.Agent)))
	if err != nil {
		return nil, refuse(http.StatusBadRequest, "the parameter by: %s", err)
	}
	page, err := UsageOf(ctx, s.o.Records, q, by)
	switch {
	case errors.Is(err, usage.ErrTooManyGroups):
		return nil, refuse(http.StatusBadRequest, "%s", err)
	case err != nil:
		return nil, failureOf(err)
	}
	return page, nil
}

func (s *Server) deleteRecords(ctx context.Context, r *http.Request) (any, *Error) {
	q, refused := queryOf(r)
	if refused != nil {
		return nil, refused
	}
	if q.Turn == "" && q.Session == "" && q.Requester == "" {
		return nil, refuse(http.StatusBadRequest, "select the records to delete by the parameter turn, session or requester")
	}
	var out Deleted
	for out.Deleted < deletesPerRequest {
		n, err := s.o.Records.DeleteRecords(ctx, q.RecordSelector, store.MaxRecords)
		if err != nil {
			return nil, failureOf(err)
		}
		if out.Deleted += n; n < store.MaxRecords {
			return out, nil
		}
	}
	out.More = true
	return out, nil
}

// Records returns a page of records. An empty namespace in the query means all namespaces.
func (c *Client) Records(ctx context.Context, q store.RecordQuery) (page RecordPage, err error) {
	return page, c.exchange(ctx, http.MethodGet, q.Namespace, "records", values(q), &page)
}

// Usage returns the usage of the selected Turns.
func (c *Client) Usage(ctx context.Context, q store.RecordQuery, by []usage.Dimension) (page UsagePage, err error) {
	v := values(q)
	var names []string
	for _, d := range by {
		names = append(names, string(d))
	}
	v.Set("by", strings.Join(names, ","))
	return page, c.exchange(ctx, http.MethodGet, q.Namespace, "usage", v, &page)
}

// DeleteRecords deletes records of a namespace.
func (c *Client) DeleteRecords(ctx context.Context, s store.RecordSelector) (out Deleted, err error) {
	return out, c.exchange(ctx, http.MethodDelete, s.Namespace, "records", values(store.RecordQuery{RecordSelector: s}), &out)
}

// exchange sends a request without a body, and decodes the JSON of the answer.
func (c *Client) exchange(ctx context.Context, method, namespace, path string, v url.Values, out any) error {
	ctx, cancel := context.WithTimeout(ctx, RecordsTimeout)
	defer cancel()
	u := c.base.JoinPath("v1", path)
	if namespace != "" {
		u = c.base.JoinPath("v1", "namespaces", url.PathEscape(namespace), path)
	}
	u.RawQuery = v.Encode()
	r, err := http.NewRequestWithContext(ctx, method, u.String(), http.NoBody)
	if err != nil {
		return fmt.Errorf("failed to create the request: %w", err)
	}
	response, err := c.http.Do(r)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrBroken, err)
	}
	kind, _, _ := mime.ParseMediaType(response.Header.Get("Content-Type"))
	if response.StatusCode != http.StatusOK || kind != "application/json" {
		return c.refusal(response)
	}
	defer response.Body.Close() //nolint:errcheck // because the rest of the body does not matter
	decoder := json.NewDecoder(http.MaxBytesReader(nil, response.Body, maxRecordsAnswer))
	if err := decoder.Decode(out); err != nil {
		if _, large := errors.AsType[*http.MaxBytesError](err); large {
			return fmt.Errorf("the answer has more than %d bytes: select fewer records", maxRecordsAnswer)
		}
		return fmt.Errorf("%w: %w", ErrBroken, err)
	}
	return nil
}
