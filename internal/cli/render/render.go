// Package render prints the messages that a Turn would send to its model, and how a change affects them.
package render

import (
	"context"
	"time"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/cli/bundle"
	"github.com/capstan-dev/capstan/internal/cli/exit"
	"github.com/capstan-dev/capstan/internal/cli/output"
	"github.com/capstan-dev/capstan/internal/runtime/model"
	"github.com/capstan-dev/capstan/internal/runtime/prepare"
	"github.com/capstan-dev/capstan/internal/runtime/prompt"
	"github.com/capstan-dev/capstan/internal/runtime/turncontext"
	"github.com/capstan-dev/capstan/internal/termsafe"
	"github.com/capstan-dev/capstan/internal/toolbox"
	"github.com/capstan-dev/capstan/internal/translate"
)

// Options holds the flags of capstan render.
type Options struct {
	*bundle.Source
	// Other is the path of the old state for Compare. Render does not use it.
	Other string
	// Discover connects to the ToolServers to list their tools.
	Discover bool
	// Output is text, json or yaml.
	Output output.Format
}

// rendering is the output of render as JSON.
type rendering struct {
	// Messages are the messages to the model.
	Messages []model.Message `json:"messages"`
	// Tools are the tools that are offered to the model.
	Tools []prompt.Tool `json:"tools"`
	// Preparation is the preparation in the form of a Turn's status.
	Preparation *v1alpha1.Preparation `json:"preparation"`
	// Assembly describes how the content of the messages was chosen.
	Assembly turncontext.Assembly `json:"assembly"`
}

// Render prepares the Turn and prints its messages, with a report on how they were made.
func (r *Options) Render(ctx context.Context, args []string) error {
	p, err := r.Load(ctx, args)
	if err != nil {
		return err
	}
	prepared, err := r.prepared(ctx, p, r.Clock()())
	if err != nil {
		return err
	}
	r.noteTools(p)
	r.noteHistory(p)
	r.noteMemories(p)
	r.noteArtifacts(p)
	if r.Output == output.Text {
		return r.Env.Print(termsafe.Exact(describe(p, prepared)))
	}
	text, err := output.Encode(rendering{
		Messages: prepared.Messages, Tools: append([]prompt.Tool{}, prepared.Tools...),
		Preparation: preparation(prepared), Assembly: prepared.Assembly,
	}, r.Output)
	if err != nil {
		return exit.WithCode(exit.Failed, err)
	}
	return r.Env.Print(text)
}

// noteHistory prints a note if the Turn belongs to a Session, because the history is not shown.
func (r *Options) noteHistory(p *bundle.Bundle) {
	if p.Session != nil {
		r.Env.Logf("note: the earlier messages of Session %s/%s are not shown; a run puts them before the message",
			p.Session.Namespace, p.Session.Name)
	}
}

// noteMemories prints a note if a run may use learned memories, because only a store has them.
func (r *Options) noteMemories(p *bundle.Bundle) {
	sessionUID := ""
	if p.Session != nil {
		sessionUID = string(p.Session.UID)
	}
	// Whoever requests the Turn has memories as a user, so any name will do.
	owners := translate.MemoryOwners(p.Turn, p.Agent, sessionUID, "requester")
	if len(owners) > 0 && translate.MaxMemories(p.Agent) > 0 {
		r.Env.Logf("note: the memories that were learned from earlier Turns are not shown; a run adds those that fit the message")
	}
}

// preparation returns a preparation in the form of a Turn's status.
func preparation(p *prepare.Prepared) *v1alpha1.Preparation {
	return translate.PreparationStatus(&p.Report, p.Provider, p.Model, len(p.Messages))
}

// prepared returns the messages of one state.
func (r *Options) prepared(ctx context.Context, p *bundle.Bundle, now time.Time) (*prepare.Prepared, error) {
	servers, disconnect := r.connections(p)
	defer disconnect()
	prepared, err := messages(ctx, p, now, servers)
	if err != nil {
		return nil, exit.WithCode(exit.Failed, p.Located(err.Error()))
	}
	return prepared, nil
}

// messages returns the messages for the first model, made in the same way as at the start of a run.
func messages(ctx context.Context, p *bundle.Bundle, now time.Time, servers toolbox.Servers) (*prepare.Prepared, error) {
	index, err := translate.FirstModel(p.Turn, p.Agent)
	if err != nil {
		return nil, err
	}
	in, err := translate.Preparation(ctx, p.Objects(), now)
	if err != nil {
		return nil, err
	}
	if in.Turn.Attachments, err = attachments(ctx, p); err != nil {
		return nil, err
	}
	first := p.Agent.Spec.Models[index]
	in.Provider, in.Model = first.ProviderRef.String(), first.Model
	if in.Tools, err = tools(ctx, p, servers); err != nil {
		return nil, err
	}
	return prepare.Prepare(in)
}
