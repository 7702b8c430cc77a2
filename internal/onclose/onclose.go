// Package onclose reports when a body is closed.
package onclose

import "io"

// Body returns a body that calls after once it is closed, at each call of Close.
func Body(body io.ReadCloser, after func()) io.ReadCloser {
	return &reporting{body, after}
}

type reporting struct {
	io.ReadCloser
	after func()
}

// Close closes the body. It returns the error of the body.
func (b *reporting) Close() error {
	defer b.after()
	return b.ReadCloser.Close()
}
