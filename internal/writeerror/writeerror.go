// Package writeerror says what a failed write to the API server means.
package writeerror

import (
	"errors"
	"net/http"
	"regexp"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// ChangedNothing reports whether the API server has refused a write or a deletion, so that it changed nothing. This
// does not prove that the object exists: Forbidden, for example, is also the answer for an object that is gone. Of the
// codes 4xx, ChangedNothing returns false for three: NotFound, because the object is gone; RequestTimeout, because the
// request may have succeeded; and TooManyRequests, because the request is repeated soon.
func ChangedNothing(err error) bool {
	if IsTooLarge(err) {
		return true
	}
	var status apierrors.APIStatus
	if !errors.As(err, &status) {
		return false
	}
	switch code := status.Status().Code; code {
	case http.StatusNotFound, http.StatusRequestTimeout, http.StatusTooManyRequests:
		return false
	default:
		return code >= 400 && code < 500
	}
}

// IsRefused reports whether the API server has answered a write with a refusal: it has changed nothing, admission has
// denied the write, or a webhook that admission needs does not work. If IsRefused returns false, there may have been no
// answer, for example in an outage of the API server, or an answer that only asks for a repetition.
func IsRefused(err error) bool {
	return ChangedNothing(err) || IsDenied(err) || IsFailedWebhook(err)
}

// IsFailedWebhook reports whether the API server has refused a request because it could not call an admission webhook.
// The API server has no reason of its own for this, but its message has not changed for years. If the message changes,
// IsFailedWebhook returns false, so callers must be safe then.
func IsFailedWebhook(err error) bool {
	status, ok := errors.AsType[*apierrors.StatusError](err)
	return ok && strings.HasPrefix(status.ErrStatus.Message, "Internal error occurred: failed calling webhook ")
}

// IsRejected reports whether the API server rejects the object as it is, so that a repetition of the write cannot
// succeed until the object, or a rule of admission, is changed. A denial by admission is a rejection if ChangedNothing
// is true for it, unless its code is that of a conflict, or the cause is a policy that could not be evaluated. Another
// Forbidden is no rejection: a missing permission does not depend on the object.
//
// A denial may pass although nothing is changed, for example if a webhook denies requests while it cannot look
// something up. So a caller that would lose much should give up at once only if IsUnstorable, and repeat a denied write
// for some time.
func IsRejected(err error) bool {
	return IsUnstorable(err) || judge(err) == denied && ChangedNothing(err) && !apierrors.IsConflict(err)
}

// IsUnstorable reports whether the API server cannot store the object, because it is invalid or too large. It returns
// false for a denial by admission, also if a policy has denied the object as invalid, which is its default reason.
func IsUnstorable(err error) bool {
	return (apierrors.IsInvalid(err) || IsTooLarge(err)) && !IsDenied(err)
}

// The beginnings of the messages about a denial by admission. The API server has no reason of its own for denials: a
// webhook and a policy choose the code, and Forbidden is also the answer to a missing permission. The message about a
// policy is also in a cause. If these messages change, a denial counts as an error that may pass.
var (
	deniedByWebhook = regexp.MustCompile(`^admission webhook "[^"]*" `)
	deniedByPolicy  = regexp.MustCompile(`^(ValidatingAdmissionPolicy|policy) ['"][^'"]*['"]( with binding '[^']*')? denied request: `)
)

// notEvaluated is how the text of a policy begins if the policy or its binding could not be evaluated, for example
// because the API server does not know the kind of its parameters yet.
const notEvaluated = "failed to configure "

// IsDenied reports whether admission has denied a request: a webhook, a ValidatingAdmissionPolicy or a
// MutatingAdmissionPolicy. Admission comes before the storage, so the request has changed nothing. The API server also
// denies a request if a policy cannot be evaluated.
func IsDenied(err error) bool { return judge(err) != notJudged }

// judgement is what admission says about a request.
type judgement int

const (
	notJudged judgement = iota
	undecided           // a policy that must be evaluated cannot be
	denied
)

// judge returns the judgement that an error expresses.
func judge(err error) judgement {
	status, ok := errors.AsType[*apierrors.StatusError](err)
	if !ok {
		return notJudged
	}
	s := status.ErrStatus
	if deniedByWebhook.MatchString(s.Message) {
		return denied
	}
	if s.Details == nil {
		return notJudged
	}
	found := notJudged
	for _, c := range s.Details.Causes {
		switch begin := deniedByPolicy.FindString(c.Message); {
		case begin == "":
		case strings.HasPrefix(c.Message[len(begin):], notEvaluated):
			found = max(found, undecided)
		default:
			return denied
		}
	}
	return found
}

// tooLarge are the messages about an object that etcd does not store because of its size: the first is that of etcd
// itself, whose limit is --max-request-bytes, 1.5 MiB by default. The second is that of its client in the API server,
// whose limit is 2 MiB. The API server passes them on as internal errors, without a reason of their own.
var tooLarge = []string{"etcdserver: request is too large", "trying to send message larger than max"}

// IsTooLarge reports whether an object was refused because of its size: by the API server, whose limit for a request is
// 3 MiB, or by etcd.
func IsTooLarge(err error) bool {
	if err == nil {
		return false
	}
	if apierrors.IsRequestEntityTooLargeError(err) {
		return true
	}
	for _, message := range tooLarge {
		if strings.Contains(err.Error(), message) {
			return true
		}
	}
	return false
}
