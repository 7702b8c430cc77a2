package turn

import (
	"context"
	"errors"
	"fmt"

	"github.com/capstan-dev/capstan/internal/fairgate"
	"github.com/capstan-dev/capstan/internal/runtime/journal"
	"github.com/capstan-dev/capstan/internal/runtime/model"
	"github.com/capstan-dev/capstan/internal/runtime/prepare"
)

// attach reads the contents of the Turn's attachments. The next write of a prompt records them as artifacts, so each
// later request has the same bytes, even if their sources change.
func (r *run) attach(ctx context.Context) ([]model.Attachment, error) {
	if r.in.Attach == nil {
		return nil, nil
	}
	r.memory.attached = inRequest(r.in.AttachBytes)
	if err := r.memory.hold(0); err != nil {
		return nil, err
	}
	contents, err := r.in.Attach(ctx)
	if err != nil {
		return nil, endsTurn(err)
	}
	var all []model.Attachment
	size := 0
	for _, c := range contents {
		size += len(c.Data)
		all = append(all, c.Attachment)
	}
	done := fairgate.AcquireProcessor(ctx, size)
	for i, c := range contents {
		r.contents = append(r.contents, journal.NewArtifact(c.Data))
		contents[i].Data = nil // the artifact has it
	}
	done()
	r.memory.attached = inRequest(int64(size))
	return all, r.memory.hold(0)
}

// content returns the content of an attachment from the journal.
func (r *run) content(ctx context.Context, a *model.Attachment) ([]byte, error) {
	data, err := r.artifactContent(ctx, artifact{sha256: a.SHA256, bytes: a.Bytes})
	switch {
	case err == nil:
		return data, nil
	case ctx.Err() != nil:
		return nil, &model.Error{Kind: model.Cancelled, Message: "the request was cancelled", Err: context.Cause(ctx), Unsent: true}
	case errors.Is(err, journal.ErrNoArtifact):
		return nil, &model.Error{
			Kind: model.Unusable, Unsent: true, Err: err,
			Message: fmt.Sprintf("the journal no longer has attachment %q: create a new Turn", a.Name),
		}
	}
	return nil, &model.Error{
		Kind: model.Network, Unsent: true, Err: errors.Join(model.ErrOwnStore, err),
		Message: fmt.Sprintf("attachment %q cannot be read from the journal", a.Name),
	}
}

// attachedBytes returns the memory for the contents of the attachments of a prompt.
func attachedBytes(p *prepare.Prompt) int64 {
	var size int64
	for i := range p.Messages {
		for _, a := range p.Messages[i].Attachments {
			size += a.Bytes
		}
	}
	return inRequest(size)
}

// inRequest returns the approximate size of contents in the body of a request, which has them in base64 or as escaped
// text.
func inRequest(bytes int64) int64 { return bytes + (bytes+2)/3 }
