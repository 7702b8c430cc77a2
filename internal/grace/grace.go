// Package grace says how long known facts are used while the API server forbids to read them again.
package grace

import (
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// Period is how long known facts are used from the first refusal on. An API server that starts forbids everything until
// it has loaded its roles. A permission that was withdrawn must take effect.
const Period = 5 * time.Minute

// Refusal holds when the API server began to forbid to read a fact. The zero value means that the newest answer was the
// fact. It must be guarded like the fact, and a successful read needs a new one.
type Refusal struct{ since time.Time }

// Bridges reports whether the known fact may be used although it could not be read again, and records a refusal. err is
// a refusal (Forbidden) or a temporary error. Temporary errors do not count as an end of the refusal, because they can
// come after it, too.
func (r *Refusal) Bridges(err error, now time.Time) bool {
	if apierrors.IsForbidden(err) && r.since.IsZero() {
		r.since = now
	}
	return r.since.IsZero() || now.Sub(r.since) < Period
}
