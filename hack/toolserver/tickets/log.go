package tickets

import (
	"context"
	"log/slog"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// logged logs each call of a tool: its name, whether it came with an idempotency key, and whether it failed. Arguments and
// results are nobody's business.
func logged(log *slog.Logger) mcp.Middleware {
	return func(next mcp.MethodHandler) mcp.MethodHandler {
		return func(ctx context.Context, method string, req mcp.Request) (mcp.Result, error) {
			result, err := next(ctx, method, req)
			if call, ok := req.(*mcp.CallToolRequest); ok {
				answer, _ := result.(*mcp.CallToolResult)
				_, keyed := call.Params.Meta[IdempotencyKey].(string)
				log.InfoContext(ctx, "Called", "tool", call.Params.Name, "idempotencyKey", keyed, "failed", err != nil || answer != nil && answer.IsError)
			}
			return result, err
		}
	}
}
