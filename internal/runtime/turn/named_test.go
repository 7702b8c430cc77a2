package turn_test

import (
	"context"
	"errors"
	"iter"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/capstan-dev/capstan/internal/runtime/journal"
	"github.com/capstan-dev/capstan/internal/runtime/journal/journaltest"
	"github.com/capstan-dev/capstan/internal/runtime/outputpolicy"
	"github.com/capstan-dev/capstan/internal/runtime/prepare"
	"github.com/capstan-dev/capstan/internal/runtime/tool"
	"github.com/capstan-dev/capstan/internal/runtime/turn"
)

// TestReadArtifactOfAnotherTurn reads the artifacts of a Turn: an attachment, the whole output of a call, and a long
// answer.
func TestReadArtifactOfAnotherTurn(t *testing.T) {
	last := strings.Repeat("a", 33<<10)
	for store, open := range journals {
		t.Run(store, func(t *testing.T) {
			j := open(t)
			c, _ := candidate("p0", 1, answer{reply: calls("", call("c1", "dump"), call("c2", "count"))}, says(last))
			in := input(c)
			in.Tools = []tool.Tool{named("dump", tool.ReadOnly, saying(long)), named("count", tool.ReadOnly, saying("1"))}
			attachText(&in, "the plan")
			mustRun(t, j, in)
			held := 0
			reserve := func(context.Context, int64) (func(), error) {
				held++
				return func() { held-- }, nil
			}
			for name, tc := range map[string]struct{ artifact, want, problem string }{
				"an attachment":        {"attachments/notes", "the plan", ""},
				"an output":            {"call-1-1", long, ""},
				"an answer":            {"answer.txt", last, ""},
				"a short output":       {"call-1-2", "", `there is no artifact "call-1-2": it has call-1-1, answer.txt`},
				"another attachment":   {"attachments/plan", "", `there is no artifact "attachments/plan": it has attachments/notes`},
				"the digest of a text": {"e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855", "", "there is no artifact"},
				"a missing prefix":     {"notes", "", `there is no artifact "notes"`},
			} {
				t.Run(name, func(t *testing.T) {
					got, err := turn.ReadArtifact(t.Context(), j, in.UID, tc.artifact, 1<<20, reserve)
					problem, _ := errors.AsType[*turn.ArtifactError](err)
					if tc.problem == "" && err != nil ||
						tc.problem != "" && (problem == nil || !strings.Contains(problem.Message, tc.problem)) {
						t.Fatalf("error is %v, want %q", err, tc.problem)
					}
					if diff := cmp.Diff(tc.want, string(got)); diff != "" {
						t.Errorf("content: -want +got:\n%s", diff)
					}
					if held != 0 {
						t.Errorf("%d reservations of memory are not released", held)
					}
				})
			}
			_, err := turn.ReadArtifact(t.Context(), j, in.UID, "call-1-1", 49_999, nil)
			if problem, ok := errors.AsType[*turn.ArtifactError](err); !ok ||
				!strings.Contains(problem.Message, "has 50000 bytes and may have at most 49999") {
				t.Errorf("error of a large artifact is %v, want an *ArtifactError with both sizes", err)
			}
			_, err = turn.ReadArtifact(t.Context(), j, "unknown", "call-1-1", 1<<20, nil)
			if problem, ok := errors.AsType[*turn.ArtifactError](err); !ok ||
				!strings.Contains(problem.Message, "it has no artifacts of this kind so far") {
				t.Errorf("error of a Turn without a journal is %v, want an *ArtifactError", err)
			}
		})
	}
}

// TestReadRefusedArtifactOfAnotherTurn checks that a later Turn cannot attach a long result of a tool that an output
// policy has refused as the answer. Other results of the same reply can be attached.
func TestReadRefusedArtifactOfAnotherTurn(t *testing.T) {
	for action, refused := range map[outputpolicy.Action]bool{
		outputpolicy.Fail: true, outputpolicy.Retry: true, outputpolicy.Report: false,
	} {
		t.Run(string(action), func(t *testing.T) {
			c, _ := candidate("p0", 1, answer{reply: calls("", call("c1", "find"), call("c2", "close"))}, says("Closed."))
			in := input(c)
			in.Preparation = preparationOf(func(m *prepare.Input) {
				m.Profile.OutputPolicies = []outputpolicy.Policy{
					{Name: "short", Expression: "size(output.text) < 100", OnViolation: action, MaxRetries: 1},
				}
			})
			last := named("close", tool.Destructive, saying(long))
			last.EndsTurn = true
			in.Tools = []tool.Tool{named("find", tool.ReadOnly, saying(long)), last}
			j := &journaltest.Store{}
			mustRun(t, j, in)
			if got, err := turn.ReadArtifact(t.Context(), j, in.UID, "call-1-1", 1<<20, nil); err != nil || string(got) != long {
				t.Errorf("the other result has %d bytes, %v; want all of it", len(got), err)
			}
			got, err := turn.ReadArtifact(t.Context(), j, in.UID, "call-1-2", 1<<20, nil)
			problem, _ := errors.AsType[*turn.ArtifactError](err)
			if !refused && (err != nil || string(got) != long) {
				t.Errorf("the result has %d bytes, %v; want all of it", len(got), err)
			}
			const want = `artifact "call-1-2" cannot be used: an output policy has refused it as the answer`
			if refused && (problem == nil || problem.Message != want) {
				t.Errorf("error is %v, want %q", err, want)
			}
		})
	}
}

// TestReadUncheckedArtifactOfAnotherTurn checks that a result that may be the answer is not given to another Turn
// before enforced output policies have checked it. The check is not recorded while it runs, or if a limit makes it
// impossible.
func TestReadUncheckedArtifactOfAnotherTurn(t *testing.T) {
	for action, refused := range map[outputpolicy.Action]bool{outputpolicy.Fail: true, outputpolicy.Report: false, "": false} {
		t.Run("action "+string(action), func(t *testing.T) {
			c, _ := candidate("p0", 1, answer{reply: calls("", call("c1", "find"), call("c2", "close"))},
				says(`{"verdicts":[{"rule":"short","violated":false,"reason":""}]}`))
			in := input(c)
			if action != "" {
				in.Preparation = preparationOf(func(m *prepare.Input) {
					m.Profile.OutputPolicies = []outputpolicy.Policy{{Name: "short", Prompt: "Be short.", OnViolation: action}}
				})
			}
			last := named("close", tool.Destructive, saying(long))
			last.EndsTurn = true
			in.Tools = []tool.Tool{named("find", tool.ReadOnly, saying(long)), last}
			j := &journaltest.Store{}
			mustRun(t, j, in)
			if got, err := turn.ReadArtifact(t.Context(), j, in.UID, "call-1-2", 1<<20, nil); err != nil || string(got) != long {
				t.Errorf("the checked result has %d bytes, %v; want all of it", len(got), err)
			}
			unchecked := untilCheck{j}
			if got, err := turn.ReadArtifact(t.Context(), unchecked, in.UID, "call-1-1", 1<<20, nil); err != nil || string(got) != long {
				t.Errorf("the other result has %d bytes, %v; want all of it", len(got), err)
			}
			got, err := turn.ReadArtifact(t.Context(), unchecked, in.UID, "call-1-2", 1<<20, nil)
			problem, _ := errors.AsType[*turn.ArtifactError](err)
			const want = `artifact "call-1-2" cannot be used: the output policies have not checked it as the answer`
			switch {
			case refused && (problem == nil || problem.Message != want):
				t.Errorf("error is %v, want %q", err, want)
			case !refused && (err != nil || string(got) != long):
				t.Errorf("the result has %d bytes, %v; want all of it", len(got), err)
			}
		})
	}
}

// untilCheck is a journal as it is before the check of the answer is recorded.
type untilCheck struct{ *journaltest.Store }

func (u untilCheck) Read(ctx context.Context, uid string, after int64) iter.Seq2[journal.Entry, error] {
	return func(yield func(journal.Entry, error) bool) {
		for e, err := range u.Store.Read(ctx, uid, after) {
			if e.Kind == journal.OutputChecked || !yield(e, err) {
				return
			}
		}
	}
}

// TestArtifactThatCannotBeRead checks that only a lost artifact is an *ArtifactError. After the error of a store, the
// caller tries again.
func TestArtifactThatCannotBeRead(t *testing.T) {
	j := &journaltest.Store{}
	c, _ := candidate("p0", 1, says("Done."))
	in := input(c)
	attachText(&in, "the plan")
	mustRun(t, j, in)
	_, err := turn.ReadArtifact(t.Context(), &lossy{j, journal.ErrNoArtifact}, in.UID, "attachments/notes", 1<<20, nil)
	if problem, ok := errors.AsType[*turn.ArtifactError](err); !ok ||
		!strings.Contains(problem.Message, "no longer exists") {
		t.Errorf("error of a lost artifact is %v, want an *ArtifactError", err)
	}
	unavailable := errors.New("the store is unavailable")
	_, err = turn.ReadArtifact(t.Context(), &lossy{j, unavailable}, in.UID, "attachments/notes", 1<<20, nil)
	if _, ends := errors.AsType[*turn.ArtifactError](err); ends || !errors.Is(err, unavailable) {
		t.Errorf("error of a failing store is %v, want the error of the store", err)
	}
	none := errors.New("no memory")
	_, err = turn.ReadArtifact(t.Context(), j, in.UID, "attachments/notes", 1<<20,
		func(context.Context, int64) (func(), error) { return nil, none })
	if !errors.Is(err, none) {
		t.Errorf("error without memory is %v, want the error of reserve", err)
	}
}
