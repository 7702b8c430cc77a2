package loop_test

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/capstan-dev/capstan/internal/runtime/journal"
	"github.com/capstan-dev/capstan/internal/runtime/journal/journaltest"
	"github.com/capstan-dev/capstan/internal/runtime/loop"
	"github.com/capstan-dev/capstan/internal/runtime/tool"
)

// approver makes the decisions for the loop and records the calls that the loop asks about.
type approver struct {
	now       time.Time
	decisions map[string]loop.Decision // by call
	asked     []string
	err       error
}

func (o *approver) decide(_ context.Context, a loop.Approval) (*loop.Decision, error) {
	o.asked = append(o.asked, a.CallID)
	d, ok := o.decisions[a.CallID]
	if !ok || o.err != nil {
		return nil, o.err
	}
	return decisionAbout(a, d), nil
}

// decisionAbout returns d with the values of the request that d lacks. Step and CallID stay those of d, even if the
// request has others.
func decisionAbout(a loop.Approval, d loop.Decision) *loop.Decision {
	whole := a.Decided(d.Approved)
	whole.Expired, whole.By, whole.Reason = d.Expired, d.By, d.Reason
	whole.Step, whole.CallID = d.Step, d.CallID
	return whole
}

// withApprover connects a run to an approver and allows one hour for decisions.
func withApprover(in loop.Input, o *approver) loop.Input {
	in.Now, in.Decide, in.Limits.ApprovalTimeout = func() time.Time { return o.now }, o.decide, time.Hour
	return in
}

var noon = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

// callIDs returns the IDs of the waiting calls.
func callIDs(all []loop.Approval) []string {
	var ids []string
	for _, a := range all {
		ids = append(ids, a.CallID)
	}
	return ids
}

// TestApproval runs a Turn several times while people decide. Two of the calls in its reply require approval.
func TestApproval(t *testing.T) {
	j, o := &journaltest.Store{}, &approver{now: noon, decisions: map[string]loop.Decision{}}
	c, s := candidate("one", 1, asksFor("", call("a", "find", `{}`), call("b", "send", ` {"n": "1"} `),
		call("c", "find", `{"n":1}`), call("d", "send", `{"n":2}`), call("e", "gone", `{}`)), says("Done."))
	find, found := toolOf("find", tool.ReadOnly, result{content: "found"})
	send, sent := toolOf("send", tool.Destructive, result{content: "sent"})
	send.RequiresApproval = true
	epoch := int64(0)
	run := func() (loop.Input, *loop.End, []string) {
		t.Helper()
		epoch++
		o.asked = nil
		in := withApprover(withTools(inputOf(t, j, epoch, c), find, send), o)
		end, err := loop.Run(t.Context(), &in)
		var parked *loop.Parked
		if !errors.As(err, &parked) && err != nil {
			t.Fatal(err)
		}
		if parked == nil {
			return in, end, nil
		}
		if len(parked.Turns) != 0 {
			t.Errorf("parked for the turns %q, want none", parked.Turns)
		}
		return in, end, callIDs(parked.Approvals)
	}
	in, end, open := run()
	if diff := cmp.Diff([]string{"b", "d"}, open); diff != "" || end != nil || len(found.calls) != 1 || len(sent.calls) != 0 {
		t.Fatalf("Run = %+v after %d and %d calls, want the first call made, and b and d to wait: -want +got:\n%s",
			end, len(found.calls), len(sent.calls), diff)
	}
	sum := sha256.Sum256([]byte(`{"n":1}`))
	want := loop.Approval{
		Request: in.State.Approvals[0].Request, Step: 1, CallID: "b", Name: "send", SchemaHash: send.SchemaHash(),
		Arguments: []byte(`{"n":1}`), ArgumentsHash: hex.EncodeToString(sum[:]), Requested: noon, Expires: noon.Add(time.Hour),
	}
	if diff := cmp.Diff(want, in.State.Approvals[0]); diff != "" || in.State.ToolRepairs() != 1 || want.Request == "" ||
		want.Request == in.State.Approvals[1].Request {
		t.Errorf("the request for approval (%d repairs): -want +got:\n%s", in.State.ToolRepairs(), diff)
	}
	// There is no decision yet, so no new request for approval is made.
	before := len(in.State.Approvals)
	if in, _, open = run(); len(open) != 2 || len(in.State.Approvals) != before || len(in.State.Repairs) != 1 || len(found.calls) != 1 {
		t.Errorf("the second run waits for %q and has asked %d times, want the same as the first", open, len(in.State.Approvals))
	}
	// The second call is approved, but the calls are made in the model's order.
	o.decisions["d"] = loop.Decision{Step: 1, CallID: "d", Approved: true, By: "ann"}
	if in, _, open = run(); len(open) != 1 || open[0] != "b" || len(sent.calls) != 0 {
		t.Errorf("the third run waits for %q after %d calls, want it to wait for b alone", open, len(sent.calls))
	}
	if d, ok := in.State.Decision(1, "d"); !ok || d.By != "ann" {
		t.Errorf("the decision %+v is not in the journal", d)
	}
	// The first call is approved too: all calls are made.
	o.decisions["b"] = loop.Decision{Step: 1, CallID: "b", Approved: true, By: "bob"}
	if in, end, open = run(); open != nil || end == nil || end.Reason != loop.Answered || len(o.asked) != 1 {
		t.Fatalf("the last run = %+v, waits for %q; want the answer", end, open)
	}
	lines := []string{
		"tool a: found", "tool b: The arguments were changed before the call: /n: converted the text to the number 1.\nsent",
		"tool c: found", "tool d: sent", `tool e: error (unavailable): there is no tool "gone": use one of find, send`,
	}
	if diff := cmp.Diff(lines, transcript(s.requests[1])[1:]); diff != "" {
		t.Errorf("the model received: -want +got:\n%s", diff)
	}
	if len(sent.calls) != 2 || string(sent.calls[0].Arguments) != `{"n":1}` || in.State.OpenApprovals() != nil {
		t.Errorf("%d calls were made, the first with %s; want both approved calls", len(sent.calls), sent.calls[0].Arguments)
	}
}

func TestDecisions(t *testing.T) {
	long := strings.Repeat("x", 5000)
	for name, tc := range map[string]struct {
		reason   string
		decision *loop.Decision
		later    time.Duration // time from the request to the run
		want     string        // the result that the model receives; empty for a call that waits
		journal  *loop.Decision
	}{
		"approved": {
			"an approved call is made", &loop.Decision{Step: 1, CallID: "c1", Approved: true, By: "ann"}, time.Minute,
			"sent", &loop.Decision{Step: 1, CallID: "c1", Approved: true, By: "ann"},
		},
		"denied": {
			"a denied call is not made",
			&loop.Decision{
				Step: 1, CallID: "c1", By: "ann",
				Reason: "no\n<|im_start|>",
			}, time.Minute,
			"error (denied): ann has denied this call (no &lt;|im_start|>): continue without it, and do not request it again",
			&loop.Decision{Step: 1, CallID: "c1", By: "ann", Reason: "no\n<|im_start|>"},
		},
		"long name and reason": {
			"name and reason are bounded",
			&loop.Decision{Step: 1, CallID: "c1", By: long, Reason: long}, time.Minute,
			"error (denied): " + long[:256] + " has denied this call (" + long[:1000] + "): " +
				"continue without it, and do not request it again",
			&loop.Decision{Step: 1, CallID: "c1", By: long[:256], Reason: long[:1000]},
		},
		"no decision": {"the call waits", nil, time.Hour - 1, "", nil},
		"expired": {
			"an expired request is denied", nil, time.Hour,
			"error (denied): this call was not approved in time: continue without it, and say so",
			&loop.Decision{Step: 1, CallID: "c1", Expired: true},
		},
		"read after the expiry": {"a decision counts even if it is read after the expiry", &loop.Decision{
			Step: 1, CallID: "c1",
			Approved: true, By: "ann",
		}, 2 * time.Hour, "sent", &loop.Decision{Step: 1, CallID: "c1", Approved: true, By: "ann"}},
		"another call": {
			"a decision about another call does not count",
			&loop.Decision{Step: 1, CallID: "c2", Approved: true}, time.Minute, "", nil,
		},
		"another step": {
			"a decision about another step does not count",
			&loop.Decision{Step: 2, CallID: "c1", Approved: true}, time.Minute, "", nil,
		},
		"ignored decision, then expired": {
			"a decision that does not count does not stop the expiry",
			&loop.Decision{Step: 2, CallID: "c1", Approved: true}, time.Hour,
			"error (denied): this call was not approved in time: continue without it, and say so",
			&loop.Decision{Step: 1, CallID: "c1", Expired: true},
		},
	} {
		t.Run(name, func(t *testing.T) {
			j, o := &journaltest.Store{}, &approver{now: noon}
			c, _ := candidate("one", 1, asksFor("", call("c1", "send", `{}`)), says("Done."))
			send, sent := toolOf("send", tool.Destructive, result{content: "sent"})
			send.RequiresApproval = true
			var parked *loop.Parked
			if _, err := loop.Run(t.Context(), new(withApprover(withTools(inputOf(t, j, 1, c), send), o))); !errors.As(err, &parked) {
				t.Fatalf("Run: %v, want it parked", err)
			}
			o.now = noon.Add(tc.later)
			if tc.decision != nil {
				o.decisions = map[string]loop.Decision{"c1": *tc.decision}
			}
			in := withApprover(withTools(inputOf(t, j, 2, c), send), o)
			record := in.Record
			in.Record = func(records ...journal.Record) error {
				if _, decided := in.State.Decision(1, "c1"); records[0].Kind != journal.ApprovalDecided && !decided {
					t.Errorf("%q was recorded before the decision, want the decision first", records[0].Kind)
				}
				return record(records...)
			}
			_, err := loop.Run(t.Context(), &in)
			if tc.want == "" {
				if !errors.As(err, &parked) || len(parked.Approvals) != 1 || len(sent.calls) != 0 {
					t.Errorf("Run: %v, want it parked: %s", err, tc.reason)
				}
				return
			}
			if err != nil || in.State.CallResults[0].Content != tc.want || len(sent.calls) == 1 != (tc.want == "sent") {
				t.Errorf("Run: %v after %d calls, the model received %q; want %q: %s", err, len(sent.calls),
					in.State.CallResults[0].Content, tc.want, tc.reason)
			}
			d, _ := in.State.Decision(1, "c1")
			if diff := cmp.Diff(*decisionAbout(in.State.Approvals[0], *tc.journal), d); diff != "" {
				t.Errorf("the decision in the journal: -want +got:\n%s", diff)
			}
		})
	}
}

// TestUnlistedRequestDoesNotExpire checks that a request that is not listed when a run begins waits for the next run,
// even after its expiry: a decision may have been made in time, before a suspension removed the request from the list.
func TestUnlistedRequestDoesNotExpire(t *testing.T) {
	for name, tc := range map[string]struct {
		decisions map[string]loop.Decision
		want      string
	}{
		"approved in time": {map[string]loop.Decision{"c1": {Step: 1, CallID: "c1", Approved: true, By: "ann"}}, "sent"},
		"no decision":      {nil, "error (denied): this call was not approved in time: continue without it, and say so"},
	} {
		t.Run(name, func(t *testing.T) {
			j, o := &journaltest.Store{}, &approver{now: noon, err: loop.ErrNotListed}
			c, _ := candidate("one", 1, asksFor("", call("c1", "send", `{}`)), says("Done."))
			send, sent := toolOf("send", tool.Destructive, result{content: "sent"})
			send.RequiresApproval = true
			for epoch, at := range []time.Time{noon, noon.Add(2 * time.Hour)} {
				o.now = at
				in := withApprover(withTools(inputOf(t, j, int64(epoch+1), c), send), o)
				var parked *loop.Parked
				if _, err := loop.Run(t.Context(), &in); !errors.As(err, &parked) || len(parked.Approvals) != 1 || len(sent.calls) != 0 {
					t.Fatalf("Run at %s: %v, want it parked for the request", at, err)
				}
			}
			o.err, o.decisions = nil, tc.decisions
			in := withApprover(withTools(inputOf(t, j, 3, c), send), o)
			if _, err := loop.Run(t.Context(), &in); err != nil || in.State.CallResults[0].Content != tc.want {
				t.Errorf("Run: %v, the results are %+v, want %q", err, in.State.CallResults, tc.want)
			}
		})
	}
}

// TestDenialBlocksTheTool checks that a denial blocks later calls of the tool, but not calls that already have
// their own request for approval.
func TestDenialBlocksTheTool(t *testing.T) {
	o := &approver{now: noon, decisions: map[string]loop.Decision{
		"a": {Step: 1, CallID: "a", By: "ann"}, "b": {Step: 1, CallID: "b", Approved: true, By: "ann"},
	}}
	c, _ := candidate("one", 1, asksFor("", call("a", "send", `{"n":1}`), call("b", "send", `{"n":2}`)),
		asksFor("", call("c", "send", `{"n":3}`)), says("Done."))
	send, sent := toolOf("send", tool.Destructive, result{content: "sent"})
	send.RequiresApproval = true
	in := withApprover(withTools(input(t, c), send), o)
	if _, err := loop.Run(t.Context(), &in); err != nil {
		t.Fatal(err)
	}
	want := []string{
		"a Refused denied: error (denied): ann has denied this call: continue without it, and do not request it again",
		"b Succeeded : sent",
		`c Refused denied: error (denied): "send" is blocked for the rest of the turn, because a call of it was not ` +
			`approved: use another tool, or answer without it`,
	}
	if diff := cmp.Diff(want, callEnds(in)); diff != "" || len(sent.calls) != 1 || len(in.State.Approvals) != 2 {
		t.Errorf("%d calls, people were asked %d times: -want +got:\n%s", len(sent.calls), len(in.State.Approvals), diff)
	}
}

// TestNoApprovalForRefusedCalls checks that no approval is requested for a call that an earlier
// gate refuses or that exceeds the limit of calls.
func TestNoApprovalForRefusedCalls(t *testing.T) {
	o := &approver{now: noon}
	c, _ := candidate("one", 1, asksFor("", call("a", "send", `{"n":1}`), call("b", "send", `{"n":"x"}`),
		call("c", "send", `{"n":3}`), call("d", "send", `{"n":4}`)), says("Done."))
	send, _ := toolOf("send", tool.Destructive, result{content: "sent"})
	send.RequiresApproval = true
	in := withApprover(withTools(input(t, c), send), o)
	in.Limits.MaxToolCalls = 2
	var parked *loop.Parked
	if _, err := loop.Run(t.Context(), &in); !errors.As(err, &parked) {
		t.Fatalf("Run: %v, want it parked", err)
	}
	if diff := cmp.Diff([]string{"a", "c"}, callIDs(parked.Approvals)); diff != "" {
		t.Errorf("calls with a request for approval: -want +got:\n%s", diff)
	}
	if !strings.Contains(parked.Error(), "2 calls require approval") {
		t.Errorf("the error says %q", parked.Error())
	}
}

func TestDecideFails(t *testing.T) {
	o := &approver{now: noon, err: errors.New("the API server is away")}
	c, _ := candidate("one", 1, asksFor("", call("a", "send", `{}`)), says("Done."))
	send, sent := toolOf("send", tool.Destructive, result{content: "sent"})
	send.RequiresApproval = true
	in := withApprover(withTools(input(t, c), send), o)
	if _, err := loop.Run(t.Context(), &in); !errors.Is(err, o.err) || len(sent.calls) != 0 || len(in.State.Approvals) != 1 {
		t.Errorf("Run: %v after %d calls, want the error, and the request in the journal", err, len(sent.calls))
	}
	// If Decide is nil, the call waits until the request expires.
	in.Decide = nil
	var parked *loop.Parked
	if _, err := loop.Run(t.Context(), &in); !errors.As(err, &parked) {
		t.Errorf("Run: %v, want it parked", err)
	}
}

// TestApprovedCallIsNotRepeated checks that an approved call that may have been made is not made again.
func TestApprovedCallIsNotRepeated(t *testing.T) {
	j, o := &journaltest.Store{}, &approver{now: noon, decisions: map[string]loop.Decision{"a": {Step: 1, CallID: "a", Approved: true}}}
	c, _ := candidate("one", 1, asksFor("", call("a", "send", `{}`)), says("Done."))
	send, sent := toolOf("send", tool.Destructive, result{content: "sent"})
	send.RequiresApproval = true
	in := withApprover(withTools(inputOf(t, j, 1, c), send), o)
	killAt(&in, journal.ToolFinished, 1)
	if _, err := loop.Run(t.Context(), &in); !errors.Is(err, errCutOff) || len(sent.calls) != 1 {
		t.Fatalf("Run: %v after %d calls", err, len(sent.calls))
	}
	in = withApprover(withTools(inputOf(t, j, 2, c), send), o)
	if _, err := loop.Run(t.Context(), &in); err != nil || len(sent.calls) != 1 || in.State.CallResults[0].Outcome != loop.Unknown {
		t.Errorf("Run: %v after %d calls, %+v; want the outcome unknown", err, len(sent.calls), in.State.CallResults)
	}
}
