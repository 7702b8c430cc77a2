package mcp

import (
	"io"
	"strings"
	"testing"
)

// TestLargeNoticesAreNotKept checks that an event that no request has asked for takes little memory, because each
// ToolServer may have a stream of such events, and that the next event is read.
func TestLargeNoticesAreNotKept(t *testing.T) {
	small := `{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}`
	for name, large := range map[string]string{
		"one line":         "data: " + strings.Repeat("x", 60<<10) + "\n\n",
		"many lines":       strings.Repeat("data: "+strings.Repeat("x", 1000)+"\r\n", 50) + "\r\n",
		"a large comment":  ":" + strings.Repeat("x", 60<<10) + "\ndata: {}\n\n",
		"an ID at its end": "data: " + strings.Repeat("x", 60<<10) + "\nid: 7\n\n",
	} {
		t.Run(name, func(t *testing.T) {
			s := &stream{ctx: t.Context(), wire: &wire{}, ex: &exchange{}, standing: true, pause: newPause()}
			s.begin(io.NopCloser(strings.NewReader(large+"data: "+small+"\n\n")), 2*maxNoticeBytes)
			data, err := s.event()
			if err != nil || data != nil {
				t.Errorf("the large event is %.40q, %v, want none", data, err)
			}
			if cap(s.line) > 4*unreservedBytes {
				t.Errorf("the line keeps %d bytes, want few", cap(s.line))
			}
			if data, err = s.event(); err != nil || string(data) != small {
				t.Errorf("the next event is %.40q, %v, want the small one", data, err)
			}
		})
	}
}
