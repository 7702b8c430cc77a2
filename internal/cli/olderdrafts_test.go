package cli_test

import (
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/capstan-dev/capstan/internal/cli/exit"
)

// TestToolsOfOlderDraftsOnAnthropic runs an Agent whose tools have schemas in older drafts of JSON Schema. Anthropic
// refuses all tools if one of them has such a schema.
func TestToolsOfOlderDraftsOnAnthropic(t *testing.T) {
	t.Parallel()
	server := mcp.NewServer(&mcp.Implementation{Name: "tickets", Version: "1"}, nil)
	for name, schema := range map[string]string{
		"get_ticket": `{"$schema":"http://json-schema.org/draft-07/schema#","type":"object","properties":{
			"id":{"type":"string"},"at":{"type":"array","items":[{"type":"number"},{"type":"number"}]}}}`,
		"close_ticket": `{"$schema":"http://json-schema.org/draft-04/schema#","type":"object","properties":{
			"id":{"type":"string"},"after":{"type":"integer","minimum":0,"exclusiveMinimum":true}}}`,
	} {
		server.AddTool(&mcp.Tool{Name: name, InputSchema: json.RawMessage(schema)},
			func(context.Context, *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
				return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: "Done."}}}, nil
			})
	}
	tools := httptest.NewServer(mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return server }, nil))
	t.Cleanup(tools.Close)
	model, url := strictAnthropic(t)
	got := capstan(t, "run", "-f", onAnthropic(t, tools.URL+"/mcp").written(t, url), "--turn", "first", "-o", "json")
	if refused := model.Refused(); len(refused) > 0 {
		t.Fatalf("the server refused a request: %s", strings.Join(refused, "; "))
	}
	turn := turnOf(t, got.mustEnd(t, exit.OK).out)
	if turn.Status.Result.Text != "Done." || turn.Status.Steps.ToolCalls != 2 {
		t.Errorf("want two calls and the answer, have %+v and %+v", turn.Status.Steps, turn.Status.Result)
	}
}
