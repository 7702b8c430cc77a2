package main

import (
	"encoding/json"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/capstan-dev/capstan/hack/chaos/failpoint"
	"github.com/capstan-dev/capstan/hack/fakemodel/server"
)

func TestParse(t *testing.T) {
	for name, tc := range map[string]struct {
		args []string
		want string // of the error; empty for none
	}{
		"Defaults":    {nil, ""},
		"OnePhase":    {[]string{"--only", "points", "--store", "sqlite", "--points", "after"}, ""},
		"NoTurns":     {[]string{"--turns", "0"}, "--turns and --kills must be at least 1"},
		"NoKills":     {[]string{"--kills", "0"}, "--turns and --kills must be at least 1"},
		"OneTurn":     {[]string{"--executor-turns", "1"}, "--executor-turns at least 2"},
		"OtherStore":  {[]string{"--store", "mysql"}, "--store must be postgres or sqlite"},
		"OtherPhase":  {[]string{"--only", "dance"}, "--only must be one of"},
		"OtherPoints": {[]string{"--points", "some"}, "--points must be all or after"},
		"OtherOutput": {[]string{"-o", "yaml"}, "-o must be text or json"},
		"Rest":        {[]string{"now"}, `unknown argument "now"`},
	} {
		t.Run(name, func(t *testing.T) {
			o, err := parse(tc.args, io.Discard)
			switch {
			case tc.want == "" && err != nil:
				t.Error(err)
			case tc.want == "" && o.seed == 0:
				t.Error("a seed must be drawn, so that it can be printed")
			case tc.want != "" && (err == nil || !strings.Contains(err.Error(), tc.want)):
				t.Errorf("got %v, want an error with %q", err, tc.want)
			}
		})
	}
}

// TestAPointStandsBetweenAnyTwoEffects: before and after each one, and each is one that the manager can be told.
func TestAPointStandsBetweenAnyTwoEffects(t *testing.T) {
	all := options{points: pointsAll}.scenarios()
	names := map[string]bool{}
	for _, s := range all {
		if names[s.name] {
			t.Errorf("two Turns have the name %q", s.name)
		}
		names[s.name] = true
		for _, p := range s.points {
			if again, err := failpoint.Parse(p.String()); err != nil || again != p || p.Turn != s.name {
				t.Errorf("point %+v of Turn %q comes back as %+v: %v", p, s.name, again, err)
			}
		}
	}
	// Bind, prepare, three replies of three effects each, three calls of three each, the end in the journal and the status.
	const alone, goingOn = 2 + 3*3 + 3*3 + 2, 4
	if got := len(all); got != 2*(alone+goingOn) {
		t.Errorf("%d points, want %d", got, 2*(alone+goingOn))
	}
	if got := len(options{points: pointsAfter}.scenarios()); got != alone+goingOn {
		t.Errorf("%d points after an effect, want %d", got, alone+goingOn)
	}
}

func TestTheRulesAreWhatTheModelTakes(t *testing.T) {
	if _, err := server.New(server.Config{Rules: rules(rand.New(rand.NewPCG(1, 1)))}); err != nil {
		t.Fatal(err)
	}
}

func TestTheToolServerCountsByKey(t *testing.T) {
	s := newToolServer(time.Millisecond)
	web := httptest.NewServer(s)
	t.Cleanup(web.Close)
	call := func(key string) int {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, web.URL+"/count", strings.NewReader("{}"))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("X-Call-Key", key)
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		return map[bool]int{true: resp.StatusCode}[resp.Body.Close() == nil]
	}
	for _, key := range []string{"a", "b", "a"} {
		if got := call(key); got != http.StatusOK {
			t.Errorf("a call is answered with %d", got)
		}
	}
	if got := call(""); got != http.StatusBadRequest {
		t.Errorf("a call without a key is answered with %d", got)
	}
	if diff := cmp.Diff(map[string]called{"a": {"count", 2}, "b": {"count", 1}}, s.calls()); diff != "" {
		t.Errorf("calls (-want +got):\n%s", diff)
	}
	if s.reset(); len(s.calls()) > 0 {
		t.Error("calls outlive a reset")
	}
}

func TestAReportTellsWhatDidNotHold(t *testing.T) {
	good := newPhaseReport(story())
	good.Name = "good"
	e := story()
	e.Called[uid+"/2/c"] = called{Tool: toolCount, Times: 2}
	bad := newPhaseReport(e)
	bad.Name = "bad"
	var text strings.Builder
	r := &report{Seed: 7, Store: storeSQLite, Phases: []*phaseReport{good}}
	if err := r.failure(); err != nil {
		t.Errorf("a report in which all holds fails: %v", err)
	}
	r.Phases = append(r.Phases, bad)
	if err := r.failure(); err == nil || !strings.Contains(err.Error(), "bad: "+string(calledOnce)) || strings.Contains(err.Error(), "good") {
		t.Errorf("the failure is %v", err)
	}
	if err := r.write(&text, outputText); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"seed 7, store sqlite", "== good", "== bad", "BROKEN, 1 times", "was made 2 times"} {
		if !strings.Contains(text.String(), want) {
			t.Errorf("the text lacks %q:\n%s", want, &text)
		}
	}
	text.Reset()
	if err := r.write(&text, outputJSON); err != nil {
		t.Fatal(err)
	}
	var back report
	if err := json.Unmarshal([]byte(text.String()), &back); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(*r, back); diff != "" {
		t.Errorf("JSON loses something (-want +got):\n%s", diff)
	}
}

func TestATraceThatIsCutOffIsReadAsFarAsItGoes(t *testing.T) {
	path := filepath.Join(t.TempDir(), "trace")
	text := `{"Effect":"tool.call","Turn":"a"}` + "\n" + `{"Effect":"journal.append","Turn":"b","Error":"no"}` + "\n" + `{"Eff`
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	steps, err := readTrace(path)
	if err != nil || len(steps) != 2 || steps[1].Error != "no" {
		t.Errorf("got %+v, %v", steps, err)
	}
}
