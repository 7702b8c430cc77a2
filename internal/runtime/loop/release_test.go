package loop_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/capstan-dev/capstan/internal/runtime/journal"
	"github.com/capstan-dev/capstan/internal/runtime/journal/journaltest"
	"github.com/capstan-dev/capstan/internal/runtime/loop"
	"github.com/capstan-dev/capstan/internal/runtime/model"
	"github.com/capstan-dev/capstan/internal/runtime/tool"
)

// TestDecisionNamesTheWholeRequest checks that a decision that differs from the request in any value does not
// count, so the call keeps waiting.
func TestDecisionNamesTheWholeRequest(t *testing.T) {
	const same = "the same in all values"
	for name, change := range map[string]func(*loop.Decision){
		same:                  func(*loop.Decision) {},
		"another request":     func(d *loop.Decision) { d.Request = "other" },
		"another step":        func(d *loop.Decision) { d.Step = 2 },
		"another call":        func(d *loop.Decision) { d.CallID = "b" },
		"another tool":        func(d *loop.Decision) { d.Name = "close_ticket" },
		"another tool server": func(d *loop.Decision) { d.ToolServerUID = "other" },
		"another schema":      func(d *loop.Decision) { d.SchemaHash = "other" },
		"other arguments":     func(d *loop.Decision) { d.ArgumentsHash = "other" },
	} {
		t.Run(name, func(t *testing.T) {
			c, _ := candidate("one", 1, asksFor("", call("a", "send", `{}`)), says("Done."))
			send, sent := toolOf("send", tool.Destructive, result{content: "sent"})
			send.RequiresApproval, send.Source = true, tool.Source{Server: "mail", Name: "send", UID: "uid of mail"}
			in := withApprover(withTools(input(t, c), send), &approver{now: noon})
			in.Decide = func(_ context.Context, a loop.Approval) (*loop.Decision, error) {
				if a.ToolServerUID != "uid of mail" || len(a.SchemaHash) != 64 || a.Request == "" {
					t.Errorf("people are asked about %+v, want the tool's server and schema in it", a)
				}
				d := a.Decided(true)
				change(d)
				return d, nil
			}
			_, err := loop.Run(t.Context(), &in)
			_, parked := errors.AsType[*loop.Parked](err)
			wantCalls := 0
			if name == same {
				wantCalls = 1
			}
			if parked != (wantCalls == 0) || len(sent.calls) != wantCalls {
				t.Errorf("Run: %v after %d calls, want %d, and a parked Turn if the call is not made", err, len(sent.calls), wantCalls)
			}
		})
	}
}

// TestPanicReleasesTheReply checks that the memory of a reply is released if the reply cannot be recorded because of a
// panic, from which the executor recovers.
func TestPanicReleasesTheReply(t *testing.T) {
	released := 0
	said := says("Done.")
	said.reply.Release = func() { released++ }
	c, _ := candidate("one", 1, said)
	in := input(t, c)
	in.Redact = func(string) string { panic("a bug") }
	in.Keep = func(func()) error { t.Error("the memory of the reply was kept"); return nil }
	func() {
		defer func() { _ = recover() }()
		end, err := loop.Run(t.Context(), &in)
		t.Errorf("Run: %+v, %v, want a panic", end, err)
	}()
	if released != 1 {
		t.Errorf("the memory of the reply was released %d times, want once", released)
	}
}

// TestOpenApprovalsAreBounded checks that further calls wait until enough requests for approval are decided.
func TestOpenApprovalsAreBounded(t *testing.T) {
	const calls = 60
	var all []model.ToolCall
	for i := range calls {
		all = append(all, call(fmt.Sprintf("c%02d", i), "send", fmt.Sprintf(`{"n":%d}`, i)))
	}
	j, o := &journaltest.Store{}, &approver{now: noon, decisions: map[string]loop.Decision{}}
	c, _ := candidate("one", 1, asksFor("", all...), says("Done."))
	send, sent := toolOf("send", tool.Destructive, result{content: "sent"})
	send.RequiresApproval = true
	listed := map[string]bool{}
	for epoch := int64(1); ; epoch++ {
		in := withApprover(withTools(inputOf(t, j, epoch, c), send), o)
		in.Limits.MaxToolCalls = calls
		in.Decide = func(ctx context.Context, a loop.Approval) (*loop.Decision, error) {
			if !listed[a.Request] { // nobody can decide about a request that no earlier run has reported
				return nil, nil
			}
			return o.decide(ctx, a)
		}
		_, err := loop.Run(t.Context(), &in)
		parked, ok := errors.AsType[*loop.Parked](err)
		if !ok {
			if err != nil {
				t.Fatal(err)
			}
			break
		}
		want := min(loop.MaxOpenApprovals, calls-len(sent.calls))
		if n := len(parked.Approvals); n == 0 || n != want {
			t.Fatalf("after %d calls people are asked about %d calls at a time, want %d", len(sent.calls), n, want)
		}
		for _, a := range parked.Approvals {
			listed[a.Request] = true
		}
		for _, a := range parked.Approvals[:min(7, len(parked.Approvals))] {
			o.decisions[a.CallID] = loop.Decision{Step: 1, CallID: a.CallID, Approved: true, By: "ann"}
		}
		if epoch > calls {
			t.Fatal("the Turn does not go on")
		}
	}
	if len(sent.calls) != calls {
		t.Errorf("%d calls were made, want %d", len(sent.calls), calls)
	}
}

// checkedServer is a fake tool server that implements tool.Checker: check returns the result of each check of the tool.
type checkedServer struct {
	*fakeToolServer
	checks int
	check  func(checks int) error
}

func (c *checkedServer) Check(context.Context) error {
	c.checks++
	return c.check(c.checks)
}

// TestCallOfAChangedToolIsRefused checks that a call of a changed tool is refused, whenever the tool
// changes.
func TestCallOfAChangedToolIsRefused(t *testing.T) {
	changed := &tool.Error{Class: tool.Unavailable, Message: "it was replaced", Err: tool.ErrChanged}
	away := &tool.Error{Class: tool.Unavailable, Message: "it is away"}
	for name, tc := range map[string]struct {
		reason string
		check  func(checks int) error
		asked  int
		made   int
		want   string
	}{
		"never": {"an unchanged tool is called", func(int) error { return nil }, 1, 1, "sent"},
		"before the request": {
			"no approval is requested", func(int) error { return changed }, 0, 0,
			"error (unavailable): it was replaced",
		},
		"before the release": {
			"the approved tool no longer exists",
			func(n int) error { return map[bool]error{true: changed}[n == 2] }, 1, 0, "error (unavailable): it was replaced",
		},
		"away at the request": {
			"the server may be back after the decision",
			func(n int) error { return map[bool]error{true: away}[n == 1] }, 1, 1, "sent",
		},
		"away at the release": {
			"a tool that cannot be checked is not called",
			func(n int) error { return map[bool]error{true: away}[n == 2] }, 1, 0, "error (unavailable): it is away",
		},
		"error without a class": {
			"an error without a class is a failure",
			func(n int) error { return map[bool]error{true: errors.New("odd")}[n == 2] }, 1, 0, "error (failed): the tool failed",
		},
	} {
		t.Run(name, func(t *testing.T) {
			o := &approver{now: noon, decisions: map[string]loop.Decision{"a": {Step: 1, CallID: "a", Approved: true, By: "ann"}}}
			c, _ := candidate("one", 1, asksFor("", call("a", "send", `{}`)), says("Done."))
			send, sent := toolOf("send", tool.Destructive, result{content: "sent"})
			send.RequiresApproval, send.Caller = true, &checkedServer{fakeToolServer: sent, check: tc.check}
			in := withApprover(withTools(input(t, c), send), o)
			if _, err := loop.Run(t.Context(), &in); err != nil {
				t.Fatal(err)
			}
			received := in.State.CallResults[0].Content
			if len(in.State.Approvals) != tc.asked || len(sent.calls) != tc.made || len(in.State.Intents) != tc.made ||
				!strings.HasPrefix(received, tc.want) {
				t.Errorf("asked %d times, %d calls, %d intents, the model received %q: %s", len(in.State.Approvals),
					len(sent.calls), len(in.State.Intents), received, tc.reason)
			}
		})
	}
}

// TestApprovedCallWaitsUntilItsToolCanBeChecked checks that an approval is kept if the tool cannot be checked, because
// the API server gives no answer about the tool, or because this process cannot open another socket. The run ends with
// an error, and the next run makes the call.
func TestApprovedCallWaitsUntilItsToolCanBeChecked(t *testing.T) {
	for _, cause := range []error{tool.ErrUnread, tool.ErrOwnShortage} {
		t.Run(cause.Error(), func(t *testing.T) { checkWaitForCheck(t, cause) })
	}
}

// checkWaitForCheck makes the first check of an approved tool fail because of a cause.
func checkWaitForCheck(t *testing.T, cause error) {
	t.Helper()
	unread := &tool.Error{Class: tool.Unavailable, Message: "it could not be checked", Err: cause}
	j := &journaltest.Store{}
	o := &approver{now: noon, decisions: map[string]loop.Decision{"a": {Step: 1, CallID: "a", Approved: true, By: "ann"}}}
	send, sent := toolOf("send", tool.Destructive, result{content: "sent"})
	send.RequiresApproval = true
	send.Caller = &checkedServer{fakeToolServer: sent, check: func(n int) error { return map[bool]error{true: unread}[n == 2] }}
	c, _ := candidate("one", 1, asksFor("", call("a", "send", `{}`)), says("Done."))
	in := withApprover(withTools(inputOf(t, j, 1, c), send), o)
	if _, err := loop.Run(t.Context(), &in); !errors.Is(err, cause) {
		t.Fatalf("Run: %v, want the failure of the check", err)
	}
	if len(in.State.CallResults) > 0 || len(sent.calls) > 0 {
		t.Fatalf("after the failure there are %d calls and the results %+v, want none", len(sent.calls), in.State.CallResults)
	}
	in = withApprover(withTools(inputOf(t, j, 2, c), send), o)
	if _, err := loop.Run(t.Context(), &in); err != nil || len(sent.calls) != 1 || len(in.State.Approvals) != 1 {
		t.Errorf("Run: %v, with %d calls and %d requests for approval, want the approved call", err, len(sent.calls),
			len(in.State.Approvals))
	}
}

// TestApprovalOfAnOlderVersion checks a request for approval that an older version of Capstan has recorded. Such a
// request has no ID. The run replaces it by a new request, and decisions about the old request do not count.
func TestApprovalOfAnOlderVersion(t *testing.T) {
	j, o := &journaltest.Store{}, &approver{now: noon, decisions: map[string]loop.Decision{}}
	c, _ := candidate("one", 1, asksFor("", call("a", "send", `{}`)), says("Done."))
	send, sent := toolOf("send", tool.Destructive, result{content: "sent"})
	send.RequiresApproval = true
	in := withApprover(withTools(inputOf(t, j, 1, c), send), o)
	record := in.Record
	in.Record = func(records ...journal.Record) error {
		for i, r := range records {
			if a, ok := r.Payload.(loop.Approval); ok {
				records[i].Payload = loop.Approval{
					Step: a.Step, CallID: a.CallID, Name: a.Name, Arguments: a.Arguments,
					ArgumentsHash: a.ArgumentsHash, Requested: a.Requested, Expires: a.Expires,
				}
			}
		}
		if err := record(records...); err != nil || records[0].Kind != journal.ApprovalRequested {
			return err
		}
		return errCutOff
	}
	if _, err := loop.Run(t.Context(), &in); !errors.Is(err, errCutOff) { // stops where an older version would stop
		t.Fatal(err)
	}
	if err := record(journal.Record{
		Kind:    journal.ApprovalDecided,
		Payload: loop.Decision{Step: 1, CallID: "a", Approved: true, By: "eve"},
	}); err != nil {
		t.Fatal(err)
	}
	in = withApprover(withTools(inputOf(t, j, 2, c), send), o)
	_, err := loop.Run(t.Context(), &in)
	parked, ok := errors.AsType[*loop.Parked](err)
	if !ok || len(parked.Approvals) != 1 || parked.Approvals[0].Request == "" || len(sent.calls) != 0 {
		t.Fatalf("Run: %v after %d calls, want it parked for a new request", err, len(sent.calls))
	}
	o.decisions["a"] = loop.Decision{Step: 1, CallID: "a", Approved: true, By: "ann"}
	in = withApprover(withTools(inputOf(t, j, 3, c), send), o)
	if _, err := loop.Run(t.Context(), &in); err != nil || len(sent.calls) != 1 {
		t.Fatalf("Run: %v after %d calls, want the call", err, len(sent.calls))
	}
	d, _ := in.State.Decision(1, "a")
	if diff := cmp.Diff("ann", d.By); diff != "" {
		t.Errorf("decided by: -want +got:\n%s", diff)
	}
}
