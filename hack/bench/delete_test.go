package main

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"golang.org/x/net/http2"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

func TestDeletionIsRepeatedAfterATimeout(t *testing.T) {
	timeout, other := apierrors.NewTimeoutError("timed out", 1), errors.New("other")
	reset := fmt.Errorf("stream error when reading response body: %w", http2.StreamError{StreamID: 7, Code: http2.ErrCodeInternal})
	for name, tc := range map[string]struct {
		answers []error
		want    error
		asked   int
	}{
		"the first time":      {[]error{nil}, nil, 1},
		"after two timeouts":  {[]error{timeout, timeout, nil}, nil, 3},
		"a stopped response":  {[]error{reset, nil}, nil, 2},
		"another error":       {[]error{timeout, other}, other, 2},
		"a timeout each time": {nil, timeout, 20},
	} {
		t.Run(name, func(t *testing.T) {
			asked := 0
			err := deleteMany(t.Context(), func(context.Context) error {
				if asked++; asked <= len(tc.answers) {
					return tc.answers[asked-1]
				}
				return timeout
			})
			if !errors.Is(err, tc.want) || asked != tc.asked {
				t.Errorf("deleteMany = %v after %d requests, want %v after %d", err, asked, tc.want, tc.asked)
			}
		})
	}
}
