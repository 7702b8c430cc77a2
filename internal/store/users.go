package store

import "context"

type ofUsers struct{}

// OfUsers returns a context for calls that serve requests of users, such as lists of records. A store with few
// connections serves only some of these calls at the same time, so that the calls of Turns do not wait for them.
func OfUsers(ctx context.Context) context.Context { return context.WithValue(ctx, ofUsers{}, true) }

// IsOfUsers reports whether a context comes from OfUsers.
func IsOfUsers(ctx context.Context) bool { return ctx.Value(ofUsers{}) != nil }
