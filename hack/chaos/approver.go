package main

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"math/rand/v2"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capstan-dev/capstan/api/v1alpha1"
)

// approvalInterval is the time between two checks for pending calls.
const approvalInterval = 150 * time.Millisecond

// deciderName is the user name under which the test decides about calls.
const deciderName = "admin"

// approver decides about pending calls as people do: after a delay, and as the Turn's message requires.
type approver struct {
	*rig
	phase string
	// slowest is the maximum of the random delay of a decision.
	slowest time.Duration
	rand    *rand.Rand
	// due holds the time of the decision for each call seen so far. made holds the calls that have been decided.
	due  map[string]time.Time
	made map[string]bool
}

func (r *rig) newApprover(phase string, slowest time.Duration) *approver {
	return &approver{rig: r, phase: phase, slowest: slowest, rand: r.fork(), due: map[string]time.Time{}, made: map[string]bool{}}
}

// run decides about calls until ctx ends. It tolerates an API server that is down.
func (a *approver) run(ctx context.Context) error {
	for pause(ctx, approvalInterval) {
		var turns v1alpha1.TurnList
		if a.api.List(ctx, &turns, client.InNamespace(a.phase)) != nil {
			continue
		}
		for i := range turns.Items {
			t := &turns.Items[i]
			for _, p := range t.Status.PendingApprovals {
				if err := a.decide(ctx, t, p); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// callKey returns the start of the idempotency key of a call, which identifies the call in this test.
func callKey(uid string, step int32, callID string) string {
	return fmt.Sprintf("%s/%d/%s", uid, step, callID)
}

// keyStart returns the callKey of an idempotency key, which ends in a digest.
func keyStart(key string) string {
	return key[:max(0, strings.LastIndexByte(key, '/'))]
}

// decide decides about a call once, when its delay is over.
func (a *approver) decide(ctx context.Context, t *v1alpha1.Turn, p v1alpha1.PendingApproval) error {
	key := callKey(string(t.UID), p.Step, p.CallID)
	if a.made[key] {
		return nil
	}
	if _, seen := a.due[key]; !seen {
		a.due[key] = time.Now().Add(between(a.rand, 0, a.slowest))
	}
	if time.Now().Before(a.due[key]) {
		return nil
	}
	hash := sha256.Sum256([]byte(key))
	approval := &v1alpha1.ToolApproval{
		ObjectMeta: metav1.ObjectMeta{Namespace: a.phase, Name: "decision-" + hex.EncodeToString(hash[:8])},
		Spec: v1alpha1.ToolApprovalSpec{
			TurnRef: v1alpha1.ObjectReference{Name: t.Name}, TurnUID: string(t.UID), RequestID: p.RequestID, Step: p.Step, CallID: p.CallID,
			ToolName: p.Name, ToolServerUID: p.ToolServerUID, SchemaHash: p.SchemaHash, ArgumentsHash: p.ArgumentsHash,
			Decision: v1alpha1.ApprovalApproved, DecidedBy: deciderName,
		},
	}
	if isDenied(t.Spec.Message) {
		approval.Spec.Decision = v1alpha1.ApprovalDenied
	}
	switch err := a.api.Create(ctx, approval); {
	// An existing approval was created by an earlier attempt whose response was lost.
	case err == nil, apierrors.IsAlreadyExists(err):
		a.made[key] = true
	case apierrors.IsInvalid(err), apierrors.IsForbidden(err):
		return fmt.Errorf("failed to decide about a call of Turn %q: %w", t.Name, err)
	}
	return nil // otherwise the API server is down
}

// decisions returns the decisions that the API server holds, by the keys of their calls.
func (r *rig) decisions(ctx context.Context, phase string) (map[string]v1alpha1.ApprovalDecision, error) {
	var all v1alpha1.ToolApprovalList
	if err := r.api.List(ctx, &all, client.InNamespace(phase)); err != nil {
		return nil, fmt.Errorf("failed to list the decisions about calls: %w", err)
	}
	made := map[string]v1alpha1.ApprovalDecision{}
	for _, a := range all.Items {
		made[callKey(a.Spec.TurnUID, a.Spec.Step, a.Spec.CallID)] = a.Spec.Decision
	}
	return made, nil
}
