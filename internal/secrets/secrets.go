// Package secrets reads the values that objects of the API take from keys of Secrets.
package secrets

import (
	"context"
	"errors"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/netpolicy"
)

// Reader reads a Secret. A Secret that does not exist is an error that apierrors.IsNotFound knows.
type Reader func(ctx context.Context, key types.NamespacedName) (*corev1.Secret, error)

// Error is a Secret that is missing, or lacks what is needed of it.
type Error struct {
	// Secret and Key that are wanted.
	Secret, Key string
	// Reason says what is wrong and what to do.
	Reason string
}

// Error returns the reason.
func (e *Error) Error() string { return e.Reason }

// Header returns the value of a key as an HTTP header can carry it, without surrounding white space. It returns an *Error if it
// is not to be had, or the error of reading it.
func (r Reader) Header(ctx context.Context, namespace string, ref v1alpha1.SecretKeyReference) (string, error) {
	value, err := r.value(ctx, namespace, ref, "put the credential there")
	if err != nil {
		return "", err
	}
	for _, c := range value {
		if c < 0x20 || c > 0x7e {
			return "", refuse(namespace, ref, "holds characters that no HTTP header can carry: store the bare credential")
		}
	}
	return value, nil
}

// CABundle returns the certificates of authorities that a key holds in PEM, without surrounding white space. It returns an *Error
// if there are none, or the error of reading it.
func (r Reader) CABundle(ctx context.Context, namespace string, ref v1alpha1.SecretKeyReference) (string, error) {
	value, err := r.value(ctx, namespace, ref, "put the certificates of the authorities there, in PEM")
	if err != nil {
		return "", err
	}
	if _, err := netpolicy.Roots([]byte(value)); err != nil {
		return "", refuse(namespace, ref, "holds no certificate in PEM: put the certificates of the authorities there, as -----BEGIN CERTIFICATE-----")
	}
	return value, nil
}

// Headers returns the values of headers, in their order.
func (r Reader) Headers(ctx context.Context, namespace string, headers []v1alpha1.Header) ([]string, error) {
	values := make([]string, 0, len(headers))
	for _, h := range headers {
		value := ""
		switch {
		case h.Value != nil:
			value = *h.Value
		case h.ValueFrom != nil:
			var err error
			if value, err = r.Header(ctx, namespace, h.ValueFrom.SecretKeyRef); err != nil {
				return nil, err
			}
		}
		values = append(values, value)
	}
	return values, nil
}

func (r Reader) value(ctx context.Context, namespace string, ref v1alpha1.SecretKeyReference, empty string) (string, error) {
	secret, err := r(ctx, types.NamespacedName{Namespace: namespace, Name: ref.Name})
	switch {
	case apierrors.IsNotFound(err):
		return "", &Error{Secret: ref.Name, Key: ref.Key, Reason: fmt.Sprintf(
			"Secret %q does not exist in namespace %q: create it with key %q", ref.Name, namespace, ref.Key)}
	case err != nil:
		return "", fmt.Errorf("failed to read Secret %q in namespace %q: %w", ref.Name, namespace, err)
	}
	raw, ok := secret.Data[ref.Key]
	if !ok {
		return "", &Error{Secret: ref.Name, Key: ref.Key, Reason: fmt.Sprintf(
			"Secret %q in namespace %q has no key %q: add it", ref.Name, namespace, ref.Key)}
	}
	value := strings.TrimSpace(string(raw))
	if value == "" {
		return "", refuse(namespace, ref, "is empty: "+empty)
	}
	return value, nil
}

func refuse(namespace string, ref v1alpha1.SecretKeyReference, why string) error {
	return &Error{Secret: ref.Name, Key: ref.Key, Reason: fmt.Sprintf("key %q of Secret %q in namespace %q %s", ref.Key, ref.Name, namespace, why)}
}

// IsAway reports whether a Secret could not be read because the API server gave no answer, or none that will last.
func IsAway(err error) bool {
	if _, ok := errors.AsType[*Error](err); ok || err == nil {
		return false
	}
	if _, answered := errors.AsType[*apierrors.StatusError](err); !answered {
		return true
	}
	return apierrors.IsServerTimeout(err) || apierrors.IsTimeout(err) || apierrors.IsTooManyRequests(err) ||
		apierrors.IsServiceUnavailable(err) || apierrors.IsInternalError(err)
}
