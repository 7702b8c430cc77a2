package render

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/cli/bundle"
	"github.com/capstan-dev/capstan/internal/runtime/model"
	"github.com/capstan-dev/capstan/internal/termsafe"
	"github.com/capstan-dev/capstan/internal/translate"
)

// attachments reads the attachments of the Turn, except for attachments that are artifacts of other Turns.
func attachments(ctx context.Context, p *bundle.Bundle) ([]model.Attachment, error) {
	readable := *p
	readable.Turn = p.Turn.DeepCopy()
	readable.Turn.Spec.Attachments = slices.DeleteFunc(readable.Turn.Spec.Attachments, isArtifact)
	redaction, err := translate.Redaction(ctx, p.Agent, nil)
	if err != nil {
		return nil, err
	}
	attach, _ := readable.Attachments(nil, redaction)
	if attach == nil {
		return nil, nil
	}
	contents, err := attach(ctx)
	if err != nil {
		return nil, err
	}
	all := make([]model.Attachment, 0, len(contents))
	for i := range contents {
		all = append(all, contents[i].Attachment)
	}
	return all, nil
}

func isArtifact(a v1alpha1.Attachment) bool { return a.ArtifactRef != nil }

// noteArtifacts prints a note for each attachment that is not shown, because it is an artifact of another Turn.
func (r *Options) noteArtifacts(p *bundle.Bundle) {
	for _, a := range p.Turn.Spec.Attachments {
		if a.ArtifactRef != nil {
			r.Env.Logf("note: attachment %s is not shown; a run reads artifact %s of Turn %s", a.Name, a.ArtifactRef.Name,
				a.ArtifactRef.TurnName)
		}
	}
}

// describeAttachments returns a line for each attachment of a message.
func describeAttachments(m *model.Message) string {
	var b strings.Builder
	for i := range m.Attachments {
		a := &m.Attachments[i]
		fmt.Fprintf(&b, "+-- attachment %s: %s, %s bytes, about %s tokens --\n", a.Name, a.MediaType,
			termsafe.Thousands(int(a.Bytes)), termsafe.Thousands(int(a.Tokens)))
	}
	return b.String()
}
