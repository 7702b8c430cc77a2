package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	turntask "github.com/capstan-dev/capstan/internal/runtime/task"
)

const (
	// judgeMarker is part of the system prompt of a judge, and memoryMarker part of the system prompt that asks for
	// memories.
	judgeMarker  = "You judge whether an answer of an assistant is relevant."
	memoryMarker = "You read a message that a user has written to an assistant."
	// followUpMilliseconds is the time that a reply to such a prompt takes. It is long enough that kills hit some of
	// these requests.
	followUpMilliseconds = 100
	// followUpPatience is the maximum time until all work that follows the Turns is done. It is longer than the claim
	// of a lost executor.
	followUpPatience = 5 * time.Minute
)

// isFollowUp reports whether a system prompt is from a judge or asks for memories.
func isFollowUp(instruction string) bool {
	return strings.Contains(instruction, judgeMarker) || strings.Contains(instruction, memoryMarker)
}

// enableFollowUps enables evaluation and learning if the object is an Agent, and adds a judge if it is a PromptProfile.
func enableFollowUps(object client.Object) {
	maxPerHour := new(int32(100_000))
	switch o := object.(type) {
	case *v1alpha1.PromptProfile:
		o.Spec.Judges = []v1alpha1.Judge{{Name: "relevance", Type: v1alpha1.JudgeRelevance}}
	case *v1alpha1.Agent:
		o.Spec.Evaluation = &v1alpha1.AgentEvaluation{MaxPerHour: maxPerHour}
		o.Spec.Memory = &v1alpha1.AgentMemory{Learning: &v1alpha1.AgentLearning{
			Scopes: []v1alpha1.LearnedScope{v1alpha1.LearnedScopeUser}, MaxPerHour: maxPerHour,
		}}
	}
}

// endFollowUps waits until the work that follows the Turns is done, and then disables evaluation and learning,
// because the rest of the phase checks that nothing writes to finished Turns.
func (c *executorsPhase) endFollowUps(ctx context.Context) error {
	if !c.followUps {
		return nil
	}
	begun := time.Now()
	if err := c.awaitFollowUps(ctx); err != nil {
		return err
	}
	c.fact("  more time until all were evaluated and learned from", "%.1f s", time.Since(begun).Seconds())
	var agents v1alpha1.AgentList
	if err := c.api.List(ctx, &agents, client.InNamespace(c.phase)); err != nil {
		return fmt.Errorf("failed to list the Agents: %w", err)
	}
	for i := range agents.Items {
		before := agents.Items[i].DeepCopy()
		agents.Items[i].Spec.Evaluation, agents.Items[i].Spec.Memory = nil, nil
		if err := c.api.Patch(ctx, &agents.Items[i], client.MergeFrom(before)); err != nil {
			return fmt.Errorf("failed to change Agent %q: %w", before.Name, err)
		}
	}
	return nil
}

// awaitFollowUps waits until the store has no more work that follows Turns.
func (c *executorsPhase) awaitFollowUps(ctx context.Context) error {
	kept, err := c.store.open(ctx)
	if err != nil {
		return fmt.Errorf("failed to open the store: %w", err)
	}
	defer kept.Close() //nolint:errcheck // because it was only read
	tasks, ok := kept.(interface {
		TaskUse(ctx context.Context) ([]turntask.Use, error)
	})
	if !ok {
		return fmt.Errorf("the store %T does not list the work that waits", kept)
	}
	ctx, cancel := context.WithTimeoutCause(ctx, followUpPatience, fmt.Errorf("timed out after %s", followUpPatience))
	defer cancel()
	for {
		waiting, err := tasks.TaskUse(ctx)
		if err == nil && len(waiting) == 0 {
			return nil
		}
		if !pause(ctx, pollInterval) {
			return fmt.Errorf("failed to wait for the work that follows the Turns (%+v left): %w", waiting,
				errors.Join(err, context.Cause(ctx)))
		}
	}
}
