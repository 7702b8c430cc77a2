package secrets

import (
	"fmt"

	"github.com/capstan-dev/capstan/internal/bytebudget"
	"github.com/capstan-dev/capstan/internal/netpolicy"
	"github.com/capstan-dev/capstan/internal/redact"
)

// CheckTotal returns an *Error if the credentials of an object are longer than MaxCredentials together.
func CheckTotal(credentials []string) error {
	total := 0
	for _, credential := range credentials {
		total += len(credential)
	}
	if total <= MaxCredentials {
		return nil
	}
	return &Error{Reason: fmt.Sprintf("spec.credentialsRef and spec.headers refer to credentials of %d bytes together, but those "+
		"of an object may have at most %d: use fewer or shorter credentials", total, MaxCredentials)}
}

// Reserve reserves memory for the use of an object's credentials, including earlier ones, and of its certificates. The
// caller must release the reservation when they are no longer in memory. If the namespace has no memory left, Reserve
// returns an *Error that wraps the error of the reservation.
func Reserve(account bytebudget.Account, credentials []string, c netpolicy.Certificates) (*bytebudget.Reservation, error) {
	r, err := account.TryReserve(redact.Memory(credentials) + c.Memory())
	if err != nil {
		return nil, &Error{
			Kind: NoMemory,
			Reason: "the manager has no memory left for the credentials and certificates of this object: a namespace may use a " +
				"share of it; use fewer ModelProviders and ToolServers or smaller certificate bundles, or raise the manager's memory limit",
			Err: err,
		}
	}
	return r, nil
}
