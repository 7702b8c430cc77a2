package decisions

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/controller-runtime/pkg/client"
	clientfake "sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/yaml"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/cli/output"
	"github.com/capstan-dev/capstan/internal/cli/terminal"
	"github.com/capstan-dev/capstan/internal/runtime/loop"
)

// schemeOf returns a scheme with the kinds of Capstan.
func schemeOf(t *testing.T) *runtime.Scheme {
	t.Helper()
	scheme := runtime.NewScheme()
	if err := v1alpha1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	return scheme
}

// firstTurn returns the Turn about whose calls the tests decide.
func firstTurn() *v1alpha1.Turn {
	turn := &v1alpha1.Turn{}
	turn.Namespace, turn.Name, turn.UID = "helpdesk", "first", "uid-1"
	return turn
}

// TestDecisionsAsYAML checks that several decisions of one command are documents of one YAML stream, whether the
// command has made them or found them.
func TestDecisionsAsYAML(t *testing.T) {
	t.Parallel()
	scheme, turn := schemeOf(t), firstTurn()
	var out bytes.Buffer
	c := &pendingCalls{
		Options: &Options{Env: terminal.Environment{Out: &out, Err: io.Discard}, Verb: Approve, Output: output.YAML},
		api:     clientfake.NewClientBuilder().WithScheme(scheme).Build(), turn: turn, who: "ada",
	}
	for _, id := range []string{"call_1", "call_2", "call_1"} {
		if err := c.create(t.Context(), v1alpha1.PendingApproval{RequestID: "request of " + id, CallID: id}); err != nil {
			t.Fatal(err)
		}
	}
	var calls []string
	for reader := utilyaml.NewYAMLReader(bufio.NewReader(&out)); ; {
		document, err := reader.Read()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		var a v1alpha1.ToolApproval
		if err := yaml.UnmarshalStrict(document, &a); err != nil {
			t.Fatalf("%v in\n%s", err, document)
		}
		calls = append(calls, a.Kind+" "+a.Spec.CallID)
	}
	want := []string{"ToolApproval call_1", "ToolApproval call_2", "ToolApproval call_1"}
	if diff := cmp.Diff(want, calls); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

// TestUnnamedDecisionIsNotTakenForUsed checks that a decision that the Turn does not use, and whose name its message
// leaves out, does not stop the next decision.
func TestUnnamedDecisionIsNotTakenForUsed(t *testing.T) {
	t.Parallel()
	scheme := schemeOf(t)
	p := v1alpha1.PendingApproval{RequestID: "request", CallID: "call_4"}
	const eve = `a call waits; ToolApprovals x, y, z and 1 more are not used: "eve" is not an approver`
	for name, tc := range map[string]struct {
		reason, message string
		want            []string
		note, refused   string
	}{
		"all names": {
			"eve's decision has not been handled yet", `a call waits; ToolApproval x is not used: "eve" is not an approver`,
			[]string{"eve"},
			"", "call call_4 () of Turn helpdesk/first was already approved by eve",
		},
		"a name is left out": {
			"eve's decision is probably the one", eve,
			[]string{"eve", "grace"},
			"note: call call_4 has an earlier decision, ToolApproval first-", "",
		},
		"a reason is left out": {
			"eve's decision is probably the one",
			`a call waits; ToolApproval x is not used: why; ToolApprovals that are not used for other reasons: 1`,
			[]string{"eve", "grace"},
			"note: call call_4 has an earlier decision, ToolApproval first-", "",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			turn := &v1alpha1.Turn{}
			turn.Namespace, turn.Name, turn.UID = "helpdesk", "first", "uid-1"
			var notes bytes.Buffer
			api := clientfake.NewClientBuilder().WithScheme(scheme).Build()
			decide := func(who string, verb Verb) error {
				c := &pendingCalls{
					Options: &Options{Env: terminal.Environment{Out: io.Discard, Err: &notes}, Verb: verb}, api: api, turn: turn, who: who,
				}
				return c.create(t.Context(), p)
			}
			if err := decide("eve", Approve); err != nil {
				t.Fatal(err)
			}
			turn.Status.Conditions = []metav1.Condition{{Type: v1alpha1.ConditionSucceeded, Message: tc.message}}
			err := decide("grace", Deny)
			if tc.refused == "" && err != nil || tc.refused != "" && (err == nil || !strings.HasPrefix(err.Error(), tc.refused)) {
				t.Errorf("error %v, want %q, because %s", err, tc.refused, tc.reason)
			}
			if !strings.HasPrefix(notes.String(), tc.note) || tc.note == "" && notes.Len() > 0 {
				t.Errorf("noted %q, want %q", notes.String(), tc.note)
			}
			var list v1alpha1.ToolApprovalList
			if err := api.List(t.Context(), &list); err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, a := range list.Items {
				got = append(got, a.Spec.DecidedBy)
			}
			slices.Sort(got)
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("%s (-want +got):\n%s", tc.reason, diff)
			}
		})
	}
}

// TestRefusedDecisionNamesTheRemedy checks that the command that grants a permission is printed only if the permission
// is missing, and that a shell takes the name of the user as one word.
func TestRefusedDecisionNamesTheRemedy(t *testing.T) {
	t.Parallel()
	const missing = `User "eve" cannot create resource "toolapprovals" in API group "capstan.dev" in the namespace "helpdesk"`
	for name, tc := range map[string]struct {
		who, message, want string
	}{
		"a missing permission": {
			"ada", missing, "kubectl create rolebinding approver-fdee430d -n helpdesk --clusterrole approvers --user 'ada'",
		},
		"a name that a shell would execute": {
			"auth0|$(id);it's", missing,
			`kubectl create rolebinding approver-fcdfdabc -n helpdesk --clusterrole approvers --user 'auth0|$(id);it'\''s'`,
		},
		"a quota": {"ada", "exceeded quota: objects", ""},
		"a policy": {
			"ada", "ValidatingAdmissionPolicy 'p' with binding 'b' denied request: not on a Sunday", "",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			scheme := runtime.NewScheme()
			if err := errors.Join(v1alpha1.AddToScheme(scheme), rbacv1.AddToScheme(scheme)); err != nil {
				t.Fatal(err)
			}
			role := &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "approvers", Labels: map[string]string{roleLabel: "approver"}}}
			turn := &v1alpha1.Turn{}
			turn.Namespace, turn.Name, turn.UID = "helpdesk", "first", "uid-1"
			c := &pendingCalls{
				Options: &Options{Env: terminal.Environment{Out: io.Discard, Err: io.Discard}, Verb: Approve}, turn: turn, who: tc.who,
				api: clientfake.NewClientBuilder().WithScheme(scheme).WithObjects(role).WithInterceptorFuncs(interceptor.Funcs{
					Create: func(context.Context, client.WithWatch, client.Object, ...client.CreateOption) error {
						return apierrors.NewForbidden(schema.GroupResource{Group: "capstan.dev", Resource: "toolapprovals"}, "",
							errors.New(tc.message))
					},
				}).Build(),
			}
			err := c.create(t.Context(), v1alpha1.PendingApproval{RequestID: "request", CallID: "call_1"})
			if err == nil {
				t.Fatal("no error")
			}
			_, got, _ := strings.Cut(err.Error(), "which this command grants: ")
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("%v (-want +got):\n%s", err, diff)
			}
		})
	}
}

// TestArgumentsThatWereRedactedLater checks that the command says why arguments do not have the hash of the request if
// the manager has removed a credential from them, and shows the rest.
func TestArgumentsThatWereRedactedLater(t *testing.T) {
	t.Parallel()
	const damaged, redacted = "the journal has no arguments with the hash in the Turn's status", "they contain [redacted]"
	for name, tc := range map[string]struct {
		requested, read  string
		verb             Verb
		withoutArguments bool
		want, note, err  string
	}{
		"unchanged":                {`{"value":"a"}`, `{"value":"a"}`, Approve, false, `{"value":"a"}`, "", ""},
		"the model wrote the mark": {`{"value":"[redacted]"}`, `{"value":"[redacted]"}`, Approve, false, `{"value":"[redacted]"}`, "", ""},
		"a credential":             {`{"value":"a"}`, `{"value":"[redacted]"}`, Approve, false, "", "", redacted},
		"a credential, and unseen": {`{"value":"a"}`, `{"value":"[redacted]"}`, Approve, true, `{"value":"[redacted]"}`, redacted, ""},
		"a credential, and denied": {`{"value":"a"}`, `{"value":"[redacted]"}`, Deny, false, `{"value":"[redacted]"}`, redacted, ""},
		"other arguments":          {`{"value":"a"}`, `{"value":"b"}`, Approve, false, "", "", damaged},
		"other arguments, unseen":  {`{"value":"a"}`, `{"value":"b"}`, Approve, true, "", damaged, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			hash := argumentsHash(json.RawMessage(tc.requested))
			var notes bytes.Buffer
			c := &pendingCalls{Options: &Options{
				Env: terminal.Environment{Out: io.Discard, Err: &notes}, Verb: tc.verb, WithoutArguments: tc.withoutArguments,
			}}
			found := requestArguments{map[string]json.RawMessage{}, map[string]json.RawMessage{}}
			found.add(loop.Approval{
				Request: "request", Step: 1, CallID: "call_1", Name: "set", Arguments: json.RawMessage(tc.read), ArgumentsHash: hash,
			})
			p := v1alpha1.PendingApproval{RequestID: "request", Step: 1, CallID: "call_1", Name: "set", ArgumentsHash: hash}
			got, err := c.argumentsOf(p, found, nil)
			if string(got) != tc.want {
				t.Errorf("arguments %s, want %s", got, tc.want)
			}
			if !strings.Contains(notes.String(), tc.note) || tc.note == "" && notes.Len() > 0 {
				t.Errorf("noted %q, want %q", notes.String(), tc.note)
			}
			if (err != nil) != (tc.err != "") || err != nil && !strings.Contains(err.Error(), tc.err) {
				t.Errorf("error %v, want %q", err, tc.err)
			}
		})
	}
}
