package command

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

var listening = regexp.MustCompile(`url=(http://\S+)`)

func TestServesUntilItIsStopped(t *testing.T) {
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	logReader, logWriter := io.Pipe()
	cmd := New()
	cmd.SetArgs([]string{"--listen", "127.0.0.1:0"})
	cmd.SetErr(logWriter)
	ended := make(chan error, 1)
	go func() { ended <- errors.Join(cmd.ExecuteContext(ctx), logWriter.Close()) }()
	lines := bufio.NewScanner(logReader)
	if !lines.Scan() {
		t.Fatalf("the command ended without a log line: %v", <-ended)
	}
	url := listening.FindStringSubmatch(lines.Text())
	if url == nil {
		t.Fatalf("the first log line is %q, want one with the URL", lines.Text())
	}
	go func() {
		for lines.Scan() { // read on, so that the server does not block when it logs
		}
	}()
	client := mcp.NewClient(&mcp.Implementation{Name: "test", Version: "1"}, nil)
	session, err := client.Connect(t.Context(), &mcp.StreamableClientTransport{Endpoint: url[1]}, nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := session.ListTools(t.Context(), nil); err != nil {
		t.Errorf("list: %v", err)
	}
	stop()
	if err := <-ended; err != nil { // also if the open stream of the client has delayed the stop
		t.Errorf("the command ended with %v, want no error", err)
	}
	_ = session.Close() // fails, because the server has stopped
}

func TestBadArgumentsAreReported(t *testing.T) {
	bad := filepath.Join(t.TempDir(), "bad.json")
	if err := os.WriteFile(bad, []byte("no"), 0o600); err != nil {
		t.Fatal(err)
	}
	for want, args := range map[string][]string{
		"failed to read --data":                     {"--data", bad + ".none"},
		"failed to read the tickets":                {"--data", bad},
		`failed to listen on --listen "nowhere:no"`: {"--listen", "nowhere:no"},
	} {
		cmd := New()
		cmd.SetArgs(args)
		cmd.SetErr(io.Discard)
		if err := cmd.ExecuteContext(t.Context()); err == nil || !strings.Contains(fmt.Sprint(err), want) {
			t.Errorf("%v: error %v, want one with %q", args, err, want)
		}
	}
}
