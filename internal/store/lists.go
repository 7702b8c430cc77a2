package store

import "context"

type ofLists struct{}

// OfLists returns a context for calls that serve lists for users, such as lists of records, which can be long. A store
// with few connections serves only some of these calls at the same time, so that the calls of Turns and the other
// requests of users do not wait for them.
func OfLists(ctx context.Context) context.Context { return context.WithValue(ctx, ofLists{}, true) }

// IsOfLists reports whether a context comes from OfLists.
func IsOfLists(ctx context.Context) bool { return ctx.Value(ofLists{}) != nil }
