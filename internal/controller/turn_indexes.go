package controller

import (
	"context"
	"fmt"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/translate"
)

const (
	indexTurnParent   = "metadata.ownerReferences.uid:turn" // of Turns of sub-agents that have not ended
	indexApprovalTurn = "spec.turnRef.name"                 // of ToolApprovals
)

// setupTurnIndexes makes the cache find what Turns wait for.
func setupTurnIndexes(ctx context.Context, indexer client.FieldIndexer) error {
	if err := indexer.IndexField(ctx, &v1alpha1.Turn{}, indexTurnParent, parentOfTurn); err != nil {
		return fmt.Errorf("failed to index turns by %s: %w", indexTurnParent, err)
	}
	if err := indexer.IndexField(ctx, &v1alpha1.ToolApproval{}, indexApprovalTurn, turnOfApproval); err != nil {
		return fmt.Errorf("failed to index tool approvals by %s: %w", indexApprovalTurn, err)
	}
	return nil
}

// parentOfTurn is the UID of the Turn that has called a sub-agent whose Turn has not ended.
func parentOfTurn(o client.Object) []string {
	t := o.(*v1alpha1.Turn)
	if owner, ok := translate.Parent(t); ok && !t.IsFinished() {
		return []string{string(owner.UID)}
	}
	return nil
}

// turnOfApproval is the name of the Turn that a ToolApproval is about.
func turnOfApproval(o client.Object) []string {
	return []string{o.(*v1alpha1.ToolApproval).Spec.TurnRef.Name}
}
