package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"

	"github.com/capstan-dev/capstan/hack/chaos/failpoint"
	"github.com/capstan-dev/capstan/internal/runtime/prompt"
	"github.com/capstan-dev/capstan/internal/runtime/tool"
)

// keyHeader names a call. It is not called Idempotency-Key: Go's client would then send a request again on its own when a
// connection breaks, and the test could not tell that from a call that was made twice.
const keyHeader = "X-Call-Key"

// maxResult bounds what is read of a result, in bytes.
const maxResult = 64 << 10

// testTools are the tools of the kill test: count, which must not be called twice, and look, which may.
func testTools(url string, line *failpoint.Line) []tool.Tool {
	step := []prompt.Parameter{{Name: "step", Type: "integer", Required: true}}
	define := func(name, description string, effect tool.Effect) tool.Tool {
		return line.Tool(tool.Tool{
			Tool:   prompt.Tool{Name: name, Description: description, Parameters: step},
			Effect: effect,
			Caller: tool.CallerFunc(func(ctx context.Context, c tool.Call) (tool.Result, error) { return post(ctx, url+"/"+name, c) }),
		})
	}
	return []tool.Tool{
		define("count", "Counts once more. Each call changes the count.", tool.Destructive),
		define("look", "Says what the count is.", tool.ReadOnly),
	}
}

// post makes a call at the test's server.
func post(ctx context.Context, url string, c tool.Call) (tool.Result, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(c.Arguments)) //nolint:gosec // because the test names the server
	if err != nil {
		return tool.Result{}, err
	}
	req.Header.Set(keyHeader, c.IdempotencyKey)
	resp, err := http.DefaultClient.Do(req) //nolint:gosec // because the test names the server
	if err != nil {
		return tool.Result{}, &tool.Error{Class: tool.Unavailable, Message: "the test's server is out of reach", Err: err}
	}
	defer resp.Body.Close() //nolint:errcheck // because all of it was read, or the read has failed
	content, err := io.ReadAll(io.LimitReader(resp.Body, maxResult))
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s", resp.Status, content)
	}
	if err != nil {
		return tool.Result{}, &tool.Error{Class: tool.Failed, Message: "the test's server has failed", Err: err}
	}
	return tool.Result{Content: string(content)}, nil
}
