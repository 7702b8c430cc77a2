package controller

import (
	"context"
	"fmt"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/translate"
)

const (
	indexTurnParent   = "metadata.ownerReferences.uid:turn" // unfinished Turns of sub-agents
	indexApprovalTurn = "spec.turnRef.name"                 // ToolApprovals
)

// setupTurnIndexes adds the indexes by which the cache finds the objects that Turns wait for.
func setupTurnIndexes(ctx context.Context, indexer client.FieldIndexer) error {
	if err := indexer.IndexField(ctx, &v1alpha1.Turn{}, indexTurnParent, parentOfTurn); err != nil {
		return fmt.Errorf("failed to index turns by %s: %w", indexTurnParent, err)
	}
	if err := indexer.IndexField(ctx, &v1alpha1.ToolApproval{}, indexApprovalTurn, turnOfApproval); err != nil {
		return fmt.Errorf("failed to index tool approvals by %s: %w", indexApprovalTurn, err)
	}
	return nil
}

// parentOfTurn returns the UID of the parent of an unfinished Turn of a sub-agent.
func parentOfTurn(o client.Object) []string {
	t := o.(*v1alpha1.Turn)
	if owner, ok := translate.Parent(t); ok && !t.IsFinished() {
		return []string{string(owner.UID)}
	}
	return nil
}

// turnOfApproval returns the name of the Turn that a ToolApproval decides about.
func turnOfApproval(o client.Object) []string {
	return []string{o.(*v1alpha1.ToolApproval).Spec.TurnRef.Name}
}
