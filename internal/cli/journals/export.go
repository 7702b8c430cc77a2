package journals

import (
	"context"

	"github.com/capstan-dev/capstan/internal/readapi"
)

// Export holds the flags of capstan export turn.
type Export struct {
	Source
	// WithContent prints the words of the conversation in the journal. If it is false, they are left out. An Artifact
	// is always printed whole.
	WithContent bool
	// Artifact is the name or the SHA-256 of an artifact whose content is printed instead of the journal. If Artifact
	// is empty, the journal is printed.
	Artifact string
}

// Run prints the journal of a Turn, given as NAME or NAMESPACE/NAME, as JSON lines.
func (x *Export) Run(ctx context.Context, turn string) error {
	if x.Artifact != "" {
		return x.printContent(ctx, turn, x.Artifact)
	}
	_, err := x.read(ctx, turn, readapi.Query{Redact: !x.WithContent}, x.jsonLine)
	return err
}
