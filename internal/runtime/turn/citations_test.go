package turn_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/capstan-dev/capstan/internal/runtime/citation"
	"github.com/capstan-dev/capstan/internal/runtime/journal/journaltest"
	"github.com/capstan-dev/capstan/internal/runtime/model"
	"github.com/capstan-dev/capstan/internal/runtime/outputpolicy"
	"github.com/capstan-dev/capstan/internal/runtime/prepare"
	"github.com/capstan-dev/capstan/internal/runtime/tool"
	"github.com/capstan-dev/capstan/internal/runtime/turn"
)

// TestSourcesOfSearches checks that the sources in the results of search tools are cited, and that those in the result
// of another tool are not.
func TestSourcesOfSearches(t *testing.T) {
	const answer = "30 days, and two years of warranty."
	pages := []citation.Page{{Title: "Returns", URL: "https://shop.example/returns"}, {URL: "https://shop.example/warranty"}}
	local := []string{"notes/a.md", "returns.md"}
	const list = "\n\nSources:\n- notes/a.md\n- returns.md\n- Returns: <https://shop.example/returns>\n- <https://shop.example/warranty>"
	for name, tc := range map[string]struct {
		show, add bool
		policy    string
		text      string
		stop      turn.Stop
		local     []string
		web       []citation.Page
	}{
		"shown":    {show: true, text: answer + "\n", stop: turn.StopCompleted, local: local, web: pages},
		"hidden":   {text: answer + "\n", stop: turn.StopCompleted},
		"appended": {show: true, add: true, text: answer + list, stop: turn.StopCompleted, local: local, web: pages},
		"appended to an answer that must cite": {
			show: true, add: true, policy: `output.citations.web.exists(p, p.url.startsWith("https://shop.example/"))`,
			text: answer + list, stop: turn.StopCompleted, local: local, web: pages,
		},
		"withheld": {show: true, add: true, policy: `output.citations.web.all(p, p.title != "")`, stop: turn.StopOutputPolicy},
	} {
		t.Run(name, func(t *testing.T) {
			c, _ := candidate("p0", 1, asks("web", `{}`), asks("files", `{}`), asks("other", `{}`), asks("web", `{"again":1}`),
				says(answer+"\n"))
			in := input(c)
			in.Session = &turn.Session{UID: "talk-uid", Name: "talk"}
			in.ShowCitations, in.AppendCitations = tc.show, tc.add
			if tc.policy != "" {
				in.Preparation = preparationOf(func(m *prepare.Input) {
					m.Profile.OutputPolicies = []outputpolicy.Policy{{Name: "cites", Expression: tc.policy, OnViolation: outputpolicy.Fail}}
				})
			}
			result := `[{"title":"Returns","url":"https://shop.example/returns"},
				{"url":"https://shop.example/warranty","snippet":"2 years"},
				{"title":"Bad","url":"javascript:alert(1)"}]`
			web := named("web", tool.ReadOnly, saying(result))
			web.Role = tool.WebSearch
			files := named("files", tool.ReadOnly, saying("Source: returns.md\n30 days.\nSource: notes/a.md"))
			files.Role = tool.LocalSearch
			other := named("other", tool.ReadOnly, saying(`[{"title":"Other","url":"https://other.example/"}]`))
			in.Tools = []tool.Tool{web, files, other}
			j := &journaltest.Store{}
			got, err := engine(j).Run(t.Context(), new(in))
			if err != nil {
				t.Fatal(err)
			}
			if got.Text != tc.text || got.Stop != tc.stop {
				t.Errorf("%s with %q, want %s with %q", got.Stop, got.Text, tc.stop, tc.text)
			}
			if diff := cmp.Diff(tc.local, got.Record.Citations); diff != "" {
				t.Errorf("local sources: -want +got:\n%s", diff)
			}
			if diff := cmp.Diff(tc.web, got.Record.WebCitations); diff != "" {
				t.Errorf("pages: -want +got:\n%s", diff)
			}
			again, err := engine(j).Run(t.Context(), new(in))
			if err != nil || again.Text != got.Text {
				t.Errorf("a run that continues has %q, %v; want the same text", again.Text, err)
			}
			if tc.stop == turn.StopOutputPolicy {
				return
			}
			said := history(t, j).Messages()
			if last := said[len(said)-1]; last.Role != model.RoleAssistant || strings.TrimRight(last.Content, "\n") != answer {
				t.Errorf("the history ends with %q, want the answer without its sources", last.Content)
			}
		})
	}
}
