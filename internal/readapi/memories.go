package readapi

import (
	"cmp"
	"context"
	"net/http"
	"net/url"
	"slices"
	"strconv"

	"github.com/capstan-dev/capstan/internal/runtime/memories"
	"github.com/capstan-dev/capstan/internal/store"
)

// MemoryPage is a page of memories.
type MemoryPage struct {
	Memories []memories.Memory `json:"memories"`
	// Next is the value of the parameter after for the next page. It is empty for the last page.
	Next string `json:"next,omitempty"`
}

// memoryCursor returns the text of a position, for a URL.
func memoryCursor(p store.MemoryPosition) string {
	return cursor(store.RecordPosition{Completed: p.Learned, UID: p.ID})
}

// memorySelectors are the parameters that select memories.
var memorySelectors = []string{"turn", "agent", "session", "requester", "scope", "id"}

// memoryQuery parses the parameters of a request. The namespace is the one in the path; it is empty for all namespaces.
func memoryQuery(r *http.Request, parameters ...string) (q store.MemoryQuery, refused *Error) {
	v := r.URL.Query()
	if refused := checkParameters(v, slices.Concat(memorySelectors, parameters)...); refused != nil {
		return q, refused
	}
	q.MemorySelector = store.MemorySelector{
		Namespace: r.PathValue("namespace"), Turn: v.Get("turn"), Agent: v.Get("agent"), Session: v.Get("session"),
		Requester: v.Get("requester"), Scope: memories.Scope(v.Get("scope")), ID: v.Get("id"),
	}
	if s := q.Scope; s != "" && s != memories.Session && s != memories.User {
		return q, refuse(http.StatusBadRequest, "the parameter scope must be %s or %s", memories.Session, memories.User)
	}
	if text := v.Get("after"); text != "" {
		position, ok := parseCursor(text)
		if !ok {
			return q, refuse(http.StatusBadRequest, "the parameter after must be the value of next in an earlier page")
		}
		q.After = store.MemoryPosition{Learned: position.Completed, ID: position.UID}
	}
	q.Limit, refused = limitOf(v, store.MaxMemories)
	return q, refused
}

// serveMemories returns a page of memories, without the credentials that this process uses.
func (s *Server) serveMemories(ctx context.Context, r *http.Request) (any, *Error) {
	q, refused := memoryQuery(r, "after", "limit")
	if refused != nil {
		return nil, refused
	}
	q.Limit = cmp.Or(q.Limit, store.MaxMemories)
	all, err := s.o.Memories.ListMemories(ctx, q)
	if err != nil {
		return nil, failureOf(err)
	}
	page := MemoryPage{Memories: all}
	if len(all) == q.Limit {
		page.Next = memoryCursor(store.MemoryPositionOf(&all[len(all)-1]))
	}
	for i := range all {
		all[i].Text = s.cleanFor(all[i].Namespace, all[i].Agent)(all[i].Text)
	}
	if all == nil {
		page.Memories = []memories.Memory{}
	}
	return page, nil
}

// deleteMemories deletes the memories of a namespace that the parameters select.
func (s *Server) deleteMemories(ctx context.Context, r *http.Request) (any, *Error) {
	q, refused := memoryQuery(r)
	if refused != nil {
		return nil, refused
	}
	if q.Turn == "" && q.Session == "" && q.Requester == "" && q.ID == "" {
		return nil, refuse(http.StatusBadRequest, "select the memories to delete by the parameter turn, session, requester or id")
	}
	var out Deleted
	for out.Deleted < deletesPerRequest {
		n, err := s.o.Memories.DeleteMemories(ctx, q.MemorySelector, s.o.Now(), store.MaxMemories)
		if err != nil {
			return nil, failureOf(err)
		}
		if out.Deleted += n; n < store.MaxMemories {
			return out, nil
		}
	}
	out.More = true
	return out, nil
}

// memoryValues returns the parameters of a query, except those for the namespace.
func memoryValues(q store.MemoryQuery) url.Values {
	v := url.Values{}
	for column, value := range q.Conditions {
		if column != "namespace" {
			v.Set(column, value)
		}
	}
	if q.After.ID != "" {
		v.Set("after", memoryCursor(q.After))
	}
	if q.Limit > 0 {
		v.Set("limit", strconv.Itoa(q.Limit))
	}
	return v
}

// Memories returns a page of memories. An empty namespace in the query means all namespaces.
func (c *Client) Memories(ctx context.Context, q store.MemoryQuery) (page MemoryPage, err error) {
	return page, c.exchange(ctx, http.MethodGet, q.Namespace, "memories", memoryValues(q), &page)
}

// DeleteMemories deletes memories of a namespace.
func (c *Client) DeleteMemories(ctx context.Context, s store.MemorySelector) (out Deleted, err error) {
	return out, c.exchange(ctx, http.MethodDelete, s.Namespace, "memories", memoryValues(store.MemoryQuery{MemorySelector: s}), &out)
}
