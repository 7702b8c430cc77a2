package turnstatus

import "github.com/capstan-dev/capstan/internal/writeerror"

// RejectionRemedy returns what a user can do so that the API server accepts the status of a Turn, as one sentence
// without its full stop. cause is the error of the write.
func RejectionRemedy(cause error) string {
	switch {
	case writeerror.IsDenied(cause): // a change of the Turn cannot help
		return "Correct the admission webhook or policy that the cause names"
	case writeerror.IsRejected(cause):
		return "Remove labels, annotations, ownerReferences, finalizers or managedFields, or delete the turn"
	}
	return "Remove the cause"
}
