package controller

import (
	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// ignoreStale drops the error of a write that lost against a newer one, or whose object is gone: the cache was behind,
// and the event that brings it up to date brings the object back to its reconciler.
func ignoreStale(err error) error {
	if apierrors.IsConflict(err) || apierrors.IsNotFound(err) {
		return nil
	}
	return err
}
