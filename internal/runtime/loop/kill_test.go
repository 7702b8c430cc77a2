package loop_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/capstan-dev/capstan/internal/runtime/journal"
	"github.com/capstan-dev/capstan/internal/runtime/journal/journaltest"
	"github.com/capstan-dev/capstan/internal/runtime/loop"
	"github.com/capstan-dev/capstan/internal/runtime/model"
	"github.com/capstan-dev/capstan/internal/runtime/tool"
)

// runAfter returns a Record function that runs an action each time after it has written a record of a kind.
func runAfter(record func(...journal.Record) error, kind journal.Kind, action func()) func(...journal.Record) error {
	return func(records ...journal.Record) error {
		err := record(records...)
		if err == nil && records[0].Kind == kind {
			action()
		}
		return err
	}
}

// statelessModel is a model whose reply depends only on the request, so a repeated request changes nothing. It
// calls find for one number after another, refuses a prompt that is too long, and then answers. Its first answer
// does not fit the schema.
type statelessModel struct {
	numbers, window int
	requests        []model.Request
}

var number = regexp.MustCompile(`number (\d+)`)

// Generate computes the reply from the messages.
func (m *statelessModel) Generate(_ context.Context, r *model.Request) (*model.Reply, error) {
	m.requests = append(m.requests, *r)
	found, rejected, chars := 0, false, 0
	for _, msg := range r.Messages {
		rejected = rejected || msg.Name == "output_violations"
		chars += len(msg.Content)
		for _, match := range number.FindAllStringSubmatch(msg.Content, -1) {
			n, err := strconv.Atoi(match[1])
			if err != nil {
				return nil, err
			}
			found = max(found, n)
		}
	}
	last := r.Messages[len(r.Messages)-1]
	reply := model.Reply{FinishReason: model.FinishStop}
	switch {
	case isCompaction(*r):
		reply.Text = fmt.Sprintf("Found up to number %d.", found)
	case last.Name == loop.MessageReflection:
		reply.Text = fmt.Sprintf(`{"capital":"checked","people":%d}`, found)
	case chars > m.window:
		return nil, &model.Error{Kind: model.ContextLength, Message: "too long"}
	case found < m.numbers:
		reply.FinishReason = model.FinishToolCalls
		reply.ToolCalls = []model.ToolCall{call("c", "find", fmt.Sprintf(`{"n":%d}`, found+1))}
	case !rejected:
		reply.Text = "All found."
	default:
		reply.Text = validAnswer
	}
	return &reply, nil
}

// TestKilledBetweenAnyTwoRecords kills a run at each append of a Turn with a warning, compactions, a rejection and
// a reflection. The next run continues. No request that has a reply is sent again, and the end is the same.
func TestKilledBetweenAnyTwoRecords(t *testing.T) {
	for name, tc := range map[string]struct {
		window   int64 // context window that the loop knows, in tokens
		endpoint int   // context window of the endpoint, in bytes
		forced   bool
	}{
		"critical": {600, 1 << 20, false},
		"refused":  {0, 2400, true},
	} {
		t.Run(name, func(t *testing.T) {
			run := func(j journal.Journal, epoch int64, m *statelessModel,
				record func(loop.Input) func(...journal.Record) error,
			) (loop.Input, *loop.End, error) {
				c := loop.Candidate{
					ProviderName: "one", Model: "m", Provider: m, Retry: loop.Retry{MaxAttempts: 1},
					ContextWindow: tc.window,
				}
				find, _ := toolOf("find", tool.ReadOnly)
				find.Trusted = true
				find.Caller = tool.CallerFunc(func(_ context.Context, c tool.Call) (tool.Result, error) {
					var arguments struct{ N int }
					err := json.Unmarshal(c.Arguments, &arguments)
					return tool.Result{Content: fmt.Sprintf("number %d%s", arguments.N, words(100))}, err
				})
				in := withTools(inputOf(t, j, epoch, c), find)
				in.Limits.MaxSteps, in.Output, in.Reflect = 20, capitalSchema(t), true
				in.Context = loop.ContextPolicy{Compact: true, WarnPercent: 70, CompactPercent: 90}
				in.Record = record(in)
				end, err := loop.Run(t.Context(), &in)
				return in, end, err
			}
			unchanged := func(in loop.Input) func(...journal.Record) error { return in.Record }
			whole := &statelessModel{numbers: 8, window: tc.endpoint}
			want, end, err := run(&journaltest.Store{}, 1, whole, unchanged)
			if err != nil || end.Reason != loop.Answered || want.State.AnswerText() != `{"capital":"checked","people":8}` {
				t.Fatalf("the run without a kill: %+v, %v, %q", end, err, want.State.AnswerText())
			}
			if n := len(want.State.Compactions); n < 2 || want.State.Compactions[0].Forced != tc.forced ||
				len(want.State.Rejections) != 1 ||
				len(want.State.Reflections) != 1 || (want.State.Warning == nil) != (tc.window == 0) {
				t.Fatalf("the Turn has %d compactions, %+v, %+v and %+v; want at least 2, a rejection, a reflection and the warning", n,
					want.State.Rejections, want.State.Reflections, want.State.Warning)
			}
			appends := int(want.NextSeq()) - 1
			for at := range appends {
				for _, written := range []bool{false, true} {
					j, m := &journaltest.Store{}, &statelessModel{numbers: 8, window: tc.endpoint}
					n, answered := 0, false
					_, _, err := run(j, 1, m, func(in loop.Input) func(...journal.Record) error {
						return func(records ...journal.Record) error {
							if n++; n <= at {
								return in.Record(records...)
							}
							answered = records[0].Kind == journal.ModelReplied || records[0].Kind == journal.ModelFailed
							if written {
								return errors.Join(in.Record(records...), errCutOff)
							}
							return errCutOff
						}
					})
					if !errors.Is(err, errCutOff) {
						t.Fatalf("killed at append %d: %v", at, err)
					}
					got, end, err := run(j, 2, m, unchanged)
					if err != nil || end.Reason != loop.Answered {
						t.Fatalf("killed at append %d (written %t): Run = %+v, %v", at, written, end, err)
					}
					requests := len(whole.requests)
					if answered && !written {
						requests++ // its reply is lost
					}
					if len(m.requests) != requests {
						t.Errorf("killed at append %d (written %t): %d requests in all, want %d", at, written, len(m.requests), requests)
					}
					if diff := cmp.Diff(turnResult(t.Context(), want.State), turnResult(t.Context(), got.State)); diff != "" {
						t.Errorf("killed at append %d (written %t): -want +got:\n%s", at, written, diff)
					}
				}
			}
		})
	}
}

// turnResult describes the result of a Turn, which must not depend on kills.
func turnResult(ctx context.Context, s *loop.State) []string {
	lines := []string{s.AnswerText()}
	for _, step := range s.Steps {
		lines = append(lines, fmt.Sprintf("step %d: %s %v", step.Step, step.Reply.Text, step.Reply.ToolCalls))
	}
	for _, step := range s.OtherReplies {
		lines = append(lines, fmt.Sprintf("%s for %d: %s", step.Purpose, step.Step, step.Reply.Text))
	}
	lines = append(lines, fmt.Sprintf("%+v %+v %+v %+v", s.Compactions, s.Rejections, s.Reflections, s.Warning))
	for _, m := range s.Messages(ctx) {
		lines = append(lines, fmt.Sprintf("%s %.40s", m.Role, strings.TrimSpace(m.Content)))
	}
	return lines
}
