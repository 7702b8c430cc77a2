package main

import (
	"context"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// deleteTries bounds how often a deletion is repeated.
const deleteTries = 20

// deleteMany deletes a collection. Of thousands of objects the API server deletes as many as it has time for in one request, and then says
// that its time was over: it is asked again for the rest.
func deleteMany(ctx context.Context, request func(context.Context) error) error {
	var err error
	for range deleteTries {
		if err = request(ctx); !apierrors.IsTimeout(err) {
			break
		}
	}
	return err
}
