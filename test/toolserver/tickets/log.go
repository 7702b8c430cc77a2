package tickets

import (
	"context"
	"log/slog"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// logCalls returns a middleware that logs the name of each called tool, whether the call had an idempotency key, and
// whether it failed. It does not log arguments and results, because they may be confidential.
func logCalls(log *slog.Logger) mcp.Middleware {
	return func(next mcp.MethodHandler) mcp.MethodHandler {
		return func(ctx context.Context, method string, req mcp.Request) (mcp.Result, error) {
			result, err := next(ctx, method, req)
			if call, ok := req.(*mcp.CallToolRequest); ok {
				answer, _ := result.(*mcp.CallToolResult)
				_, keyed := call.Params.Meta[IdempotencyKey].(string)
				log.InfoContext(ctx, "Called", "tool", call.Params.Name, "idempotencyKey", keyed, "failed",
					err != nil || answer != nil && answer.IsError)
			}
			return result, err
		}
	}
}
