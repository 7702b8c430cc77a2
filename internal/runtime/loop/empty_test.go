package loop_test

import (
	"errors"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"

	"github.com/capstan-dev/capstan/internal/runtime/journal/journaltest"
	"github.com/capstan-dev/capstan/internal/runtime/loop"
	"github.com/capstan-dev/capstan/internal/runtime/model"
	"github.com/capstan-dev/capstan/internal/runtime/tool"
)

// emptyReply is the failure of a request whose whole reply was empty.
func emptyReply() answer {
	return answer{err: &model.Error{Kind: model.Malformed, Message: "the answer was empty", Empty: true, MayBeBilled: true}}
}

// lastContents returns the content of the last message of each request.
func lastContents(requests []model.Request) []string {
	var all []string
	for _, r := range requests {
		all = append(all, r.Messages[len(r.Messages)-1].Content)
	}
	return all
}

// TestRequestAfterEmptyReply checks which requests ask for an answer after an empty reply.
func TestRequestAfterEmptyReply(t *testing.T) {
	const (
		question  = "What is new?"
		withTool  = "Your last reply was empty. Give your answer now, or call a tool if you need more information."
		withoutIt = "Your last reply was empty. Give your answer now, from the information you have."
	)
	find := asksFor("", call("c1", "find", `{"n":1}`))
	for name, tc := range map[string]struct {
		reason  string
		answers []answer
		steps   int
		tools   bool
		want    []string
	}{
		"first reply": {"the repeated request differs", []answer{emptyReply(), says("Yes.")}, 6, false, []string{question, withoutIt}},
		"after a tool": {
			"later requests are as if the reply had not been empty",
			[]answer{find, emptyReply(), asksFor("", call("c2", "find", `{"n":2}`)), says("Yes.")},
			6, true,
			[]string{question, "found", withTool, "found"},
		},
		"last step": {
			"no tool is offered any more",
			[]answer{find, emptyReply(), says("Yes.")},
			1, true,
			[]string{question, "no steps left", withoutIt},
		},
		"another failure": {
			"only an empty reply is answered", []answer{fails(model.Overloaded), says("Yes.")}, 6, false, []string{question, question},
		},
		"empty, then another failure": {
			"the newest failure counts",
			[]answer{emptyReply(), fails(model.Overloaded), says("Yes.")},
			6, false,
			[]string{question, withoutIt, question},
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c, s := candidate("one", 4, tc.answers...)
				in := input(t, c)
				if tc.tools {
					found, _ := toolOf("find", tool.ReadOnly, result{content: "found"})
					in = withTools(in, found)
				}
				in.Limits.MaxSteps = tc.steps
				if _, err := loop.Run(t.Context(), &in); err != nil || in.State.AnswerText() != "Yes." {
					t.Fatalf("Run: %v with the answer %q, want Yes.", err, in.State.AnswerText())
				}
				got := lastContents(s.requests)
				for i := range got {
					if strings.Contains(got[i], "no steps left") {
						got[i] = "no steps left"
					}
				}
				if diff := cmp.Diff(tc.want, got); diff != "" {
					t.Errorf("the last messages of the requests: %s: -want +got:\n%s", tc.reason, diff)
				}
			})
		})
	}
}

// TestEmptyReplyOfEarlierRun checks that a run that continues a Turn knows of the empty reply, and that another model
// of the chain gets the request of the step.
func TestEmptyReplyOfEarlierRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		j := &journaltest.Store{}
		stop := make(chan struct{})
		c, _ := candidate("one", 2, emptyReply())
		in := inputOf(t, j, 1, c)
		in.Interrupt = stop
		go func() {
			synctest.Wait()
			close(stop)
		}()
		if _, err := loop.Run(t.Context(), &in); !errors.Is(err, loop.ErrInterrupted) {
			t.Fatalf("Run: %v, want an interruption before the repetition", err)
		}
		c, first := candidate("one", 2, emptyReply())
		other, second := candidate("two", 1, says("Yes."))
		in = inputOf(t, j, 2, c, other)
		if _, err := loop.Run(t.Context(), &in); err != nil {
			t.Fatal(err)
		}
		got := append(lastContents(first.requests), lastContents(second.requests)...)
		want := []string{"Your last reply was empty. Give your answer now, from the information you have.", "What is new?"}
		if !cmp.Equal(got, want) {
			t.Errorf("the last messages are %q, want %q: each model has its own replies", got, want)
		}
	})
}
