// Package secrets reads values from keys of Secrets to which objects of the API refer, and the tokens of workload
// identities.
package secrets

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/grace"
	"github.com/capstan-dev/capstan/internal/netpolicy"
)

// Reader reads a Secret. Its error satisfies apierrors.IsNotFound if the Secret does not exist.
type Reader func(ctx context.Context, key types.NamespacedName) (*corev1.Secret, error)

// AllowedHosts is an annotation of Secrets. It names the hosts to which the Secret's values may be sent, as a list
// of [SCHEME://]HOST[:PORT], separated by commas. A host that begins with "*." stands for all hosts below it.
// Without the annotation the values may be sent to any host.
const AllowedHosts = "capstan.dev/allowed-hosts"

// MaxCredential is the maximum length of a value that is sent in a header, in bytes and without surrounding white
// space. Servers accept headers of at most 8 to 16 KiB. In addition, the search for a credential in texts needs about
// ten times the credential's length in memory.
const MaxCredential = 16 << 10

// MaxCredentials is the maximum length of all credentials of one object together, in bytes: most servers accept less in
// the headers of a request.
const MaxCredentials = 32 << 10

// Kind classifies the errors of this package.
type Kind int

// The kinds of errors.
const (
	// Missing means that a Secret does not exist, or lacks the key or a usable value, or that a workload token is not
	// offered or cannot be read.
	Missing Kind = iota
	// OtherHost means that the Secret's annotation, or the manager's flag for workload tokens, does not allow the host.
	OtherHost
	// ReservedHeader means that the object sets a header that it must not set.
	ReservedHeader
	// NoMemory means that the process has no memory for the credentials and certificates of the object.
	NoMemory
)

// Error means that a Secret or a workload token is missing, has no usable value or must not be sent, that a header must
// not be set, or that there is no memory for the credentials.
type Error struct {
	// Kind is the class of the error.
	Kind Kind
	// Secret and Key name the value. They are empty for an error that does not concern a Secret.
	Secret, Key string
	// Reason names the cause and says how to correct it.
	Reason string
	// Err is the error of the reservation if Kind is NoMemory. Otherwise it is nil.
	Err error
}

// Error returns the reason.
func (e *Error) Error() string { return e.Reason }

// Unwrap returns Err.
func (e *Error) Unwrap() error { return e.Err }

// Header returns the value of a key for an HTTP header of a request to a URL, without surrounding white space. It
// returns an *Error if the value is missing, cannot be sent in a header, or must not be sent to this URL. It returns an
// error of another type if it could not read the Secret.
func (r Reader) Header(ctx context.Context, namespace string, ref v1alpha1.SecretKeyReference, to string) (string, error) {
	value, secret, err := r.value(ctx, namespace, ref, "put the credential there")
	if err != nil {
		return "", err
	}
	if err := checkHost(secret, namespace, ref, to); err != nil {
		return "", err
	}
	if len(value) > MaxCredential {
		return "", keyError(namespace, ref, fmt.Sprintf("is %d bytes long, but a credential may have at most %d: store the credential "+
			"alone",
			len(value), MaxCredential))
	}
	if !isHeaderValue(value) {
		return "", keyError(namespace, ref, "has characters that an HTTP header cannot carry: store the credential alone")
	}
	return value, nil
}

// isHeaderValue reports whether an HTTP header can carry a value.
func isHeaderValue(value string) bool {
	return !strings.ContainsFunc(value, func(c rune) bool { return c < 0x20 || c > 0x7e })
}

// Headers returns the values of headers for a request to a URL, in the order of the headers. It returns the errors of
// Header, and an *Error for a header that must not be set.
func (r Reader) Headers(ctx context.Context, namespace string, headers []v1alpha1.Header, to string) ([]string, error) {
	values := make([]string, 0, len(headers))
	for _, h := range headers {
		if err := netpolicy.CheckHeader(h.Name); err != nil {
			return nil, &Error{Kind: ReservedHeader, Reason: err.Error()}
		}
		value := ""
		switch {
		case h.Value != nil:
			value = *h.Value
		case h.ValueFrom != nil:
			var err error
			if value, err = r.Header(ctx, namespace, h.ValueFrom.SecretKeyRef, to); err != nil {
				return nil, err
			}
		}
		values = append(values, value)
	}
	return values, nil
}

// value returns the value of a key, and its Secret. ifEmpty says how to correct an empty value.
func (r Reader) value(
	ctx context.Context, namespace string, ref v1alpha1.SecretKeyReference, ifEmpty string,
) (string, *corev1.Secret, error) {
	secret, err := r.secret(ctx, namespace, ref)
	if err != nil {
		return "", nil, err
	}
	value, err := valueOf(secret, namespace, ref, ifEmpty)
	return value, secret, err
}

// secret reads the Secret that a reference to a key names.
func (r Reader) secret(ctx context.Context, namespace string, ref v1alpha1.SecretKeyReference) (*corev1.Secret, error) {
	secret, err := r(ctx, types.NamespacedName{Namespace: namespace, Name: ref.Name})
	switch {
	case apierrors.IsNotFound(err):
		return nil, &Error{Secret: ref.Name, Key: ref.Key, Reason: fmt.Sprintf(
			"Secret %q does not exist in namespace %q: create it with key %q", ref.Name, namespace, ref.Key)}
	case err != nil:
		return nil, fmt.Errorf("failed to read Secret %q in namespace %q: %w", ref.Name, namespace, err)
	}
	return secret, nil
}

// valueOf returns the value of a key without surrounding white space. ifEmpty says how to correct an empty value.
func valueOf(secret *corev1.Secret, namespace string, ref v1alpha1.SecretKeyReference, ifEmpty string) (string, error) {
	raw, ok := secret.Data[ref.Key]
	if !ok {
		return "", &Error{Secret: ref.Name, Key: ref.Key, Reason: fmt.Sprintf(
			"Secret %q in namespace %q has no key %q: add it", ref.Name, namespace, ref.Key)}
	}
	value := string(bytes.TrimSpace(raw)) // without the memory of the white space
	if value == "" {
		return "", keyError(namespace, ref, "is empty: "+ifEmpty)
	}
	return value, nil
}

// checkHost returns an *Error if the annotation of a Secret does not allow a URL.
func checkHost(secret *corev1.Secret, namespace string, ref v1alpha1.SecretKeyReference, to string) error {
	if hosts, bound := secret.Annotations[AllowedHosts]; bound && !allows(hosts, to) {
		return &Error{Kind: OtherHost, Secret: ref.Name, Key: ref.Key, Reason: fmt.Sprintf(
			"Secret %q in namespace %q must not be sent to %s: its annotation %s does not name the host", ref.Name,
			namespace, to, AllowedHosts)}
	}
	return nil
}

// allows reports whether a list of hosts, in the form of AllowedHosts, contains the host of a URL.
func allows(hosts, to string) bool {
	target, err := url.Parse(to)
	if err != nil {
		return false
	}
	host, err := netpolicy.ASCIIHost(strings.TrimSuffix(target.Hostname(), "."))
	if err != nil {
		return false
	}
	for entry := range strings.SplitSeq(hosts, ",") {
		scheme, rest, has := strings.Cut(strings.ToLower(strings.TrimSpace(entry)), "://")
		if !has {
			scheme, rest = strings.ToLower(target.Scheme), scheme
		}
		bound, err := url.Parse(scheme + "://" + rest)
		if err != nil || bound.Hostname() == "" || scheme != strings.ToLower(target.Scheme) || bound.Port() != "" &&
			portOf(bound) != portOf(target) {
			continue
		}
		parent, wild := strings.CutPrefix(bound.Hostname(), "*.")
		parent, err = netpolicy.ASCIIHost(parent)
		if err == nil && (!wild && host == parent || wild && parent != "" && strings.HasSuffix(host, "."+parent)) {
			return true
		}
	}
	return false
}

func portOf(u *url.URL) string {
	switch {
	case u.Port() != "":
		return u.Port()
	case strings.EqualFold(u.Scheme, "http"):
		return "80"
	}
	return "443"
}

func keyError(namespace string, ref v1alpha1.SecretKeyReference, why string) error {
	return &Error{
		Secret: ref.Name, Key: ref.Key,
		Reason: fmt.Sprintf("key %q of Secret %q in namespace %q %s", ref.Key, ref.Name, namespace, why),
	}
}

// MayKeep reports whether known credentials may still be used although their Secret could not be read again: while the
// API server is away, and for a while after it has begun to forbid the read. refusal belongs to the credentials.
func MayKeep(err error, refusal *grace.Refusal, now time.Time) bool {
	return (IsAway(err) || apierrors.IsForbidden(err)) && refusal.Bridges(err, now)
}

// IsAway reports whether a Secret could not be read because the API server did not answer, or answered with a temporary
// error. Unauthorized says nothing about the Secret: the API server could not verify the token of this process, for
// example because the API server is starting, or the token has just expired.
func IsAway(err error) bool {
	if _, ok := errors.AsType[*Error](err); ok || err == nil {
		return false
	}
	if _, answered := errors.AsType[*apierrors.StatusError](err); !answered {
		return true
	}
	return apierrors.IsServerTimeout(err) || apierrors.IsTimeout(err) || apierrors.IsTooManyRequests(err) ||
		apierrors.IsServiceUnavailable(err) || apierrors.IsInternalError(err) || apierrors.IsUnauthorized(err)
}
