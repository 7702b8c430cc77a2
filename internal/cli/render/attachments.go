package render

import (
	"context"
	"fmt"
	"strings"

	"github.com/capstan-dev/capstan/internal/cli/bundle"
	"github.com/capstan-dev/capstan/internal/runtime/model"
	"github.com/capstan-dev/capstan/internal/termsafe"
)

// attachments reads the attachments of the Turn.
func attachments(ctx context.Context, p *bundle.Bundle) ([]model.Attachment, error) {
	attach, _ := p.Attach()
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
