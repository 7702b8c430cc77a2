package main

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"math/rand/v2"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capstan-dev/capstan/api/v1alpha1"
)

// approvalInterval is the time between two looks at what waits for a decision.
const approvalInterval = 150 * time.Millisecond

// deciderName is the name of the test's user, by which the API server knows who has decided.
const deciderName = "admin"

// approver decides about the calls that wait for it, as people do: after a while, and as the Turn's message has it.
type approver struct {
	*rig
	phase string
	// slowest is the longest that it thinks, by rand.
	slowest time.Duration
	rand    *rand.Rand
	// due is when it decides about each call that it has seen, and made what it has decided about.
	due  map[string]time.Time
	made map[string]bool
}

func (r *rig) newApprover(phase string, slowest time.Duration) *approver {
	return &approver{rig: r, phase: phase, slowest: slowest, rand: r.fork(), due: map[string]time.Time{}, made: map[string]bool{}}
}

// run decides until ctx ends. The API server may be away.
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

// callKey names a call for ever, as its idempotency key does.
func callKey(uid string, step int32, callID string) string {
	return fmt.Sprintf("%s/%d/%s", uid, step, callID)
}

// decide decides about a call once, when it is time.
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
			ToolName: p.Name, ToolServerUID: p.ToolServerUID, SchemaHash: p.SchemaHash, ArgumentsHash: p.ArgumentsHash, Decision: v1alpha1.ApprovalApproved, DecidedBy: deciderName,
		},
	}
	if isDenied(t.Spec.Message) {
		approval.Spec.Decision = v1alpha1.ApprovalDenied
	}
	switch err := a.api.Create(ctx, approval); {
	case err == nil, apierrors.IsAlreadyExists(err): // one that was there is of an attempt of which no answer came back
		a.made[key] = true
	case apierrors.IsInvalid(err), apierrors.IsForbidden(err):
		return fmt.Errorf("failed to decide about a call of Turn %q: %w", t.Name, err)
	}
	return nil // else the API server is away
}

// decisions are what the API server has of them, by call.
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
