package main

import (
	"context"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// deleteTries bounds the attempts of a deletion.
const deleteTries = 20

// deleteMany deletes a collection. With thousands of objects, the API server deletes as many as it can within the
// request's timeout and then returns a timeout error. deleteMany repeats the request for the rest.
func deleteMany(ctx context.Context, request func(context.Context) error) error {
	var err error
	for range deleteTries {
		if err = request(ctx); !apierrors.IsTimeout(err) {
			break
		}
	}
	return err
}
