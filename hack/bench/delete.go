package main

import (
	"context"
	"errors"
	"fmt"

	"golang.org/x/net/http2"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capstan-dev/capstan/api/v1alpha1"
)

// deleteTries is the maximum number of attempts of a deletion.
const deleteTries = 20

// deleteMany deletes a collection. With thousands of objects, the API server deletes as many as it can within the
// request's timeout. Then it returns a timeout error, or stops in the middle of its response. deleteMany repeats the
// request for the rest.
func deleteMany(ctx context.Context, request func(context.Context) error) error {
	var err error
	for range deleteTries {
		var stopped http2.StreamError
		if err = request(ctx); !apierrors.IsTimeout(err) && !errors.As(err, &stopped) {
			break
		}
	}
	return err
}

// cleanNamespace deletes the objects that the benchmark creates in a namespace, the Turns first.
func cleanNamespace(ctx context.Context, api client.Client, namespace string) error {
	for _, kind := range []client.Object{
		&v1alpha1.Turn{}, &v1alpha1.Session{}, &v1alpha1.Agent{}, &v1alpha1.ToolServer{}, &v1alpha1.ModelProvider{},
		&v1alpha1.PromptProfile{},
	} {
		err := deleteMany(ctx, func(ctx context.Context) error { return api.DeleteAllOf(ctx, kind, client.InNamespace(namespace)) })
		if err != nil {
			return fmt.Errorf("failed to delete the objects (%T) of the namespace %q: %w", kind, namespace, err)
		}
	}
	return nil
}
