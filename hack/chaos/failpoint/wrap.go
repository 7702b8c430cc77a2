package failpoint

import (
	"context"
	"encoding/json"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/runtime/journal"
	"github.com/capstan-dev/capstan/internal/runtime/model"
	"github.com/capstan-dev/capstan/internal/runtime/tool"
	"github.com/capstan-dev/capstan/internal/toolbox"
)

// Journal returns a journal whose appends go through the line.
func (l *Line) Journal(j journal.Journal) journal.Journal { return &lineJournal{Journal: j, line: l} }

type lineJournal struct {
	journal.Journal
	line *Line
}

// Append implements journal.Journal.
func (j *lineJournal) Append(ctx context.Context, uid string, entries ...journal.Entry) error {
	owner := uid
	kinds := make([]string, 0, len(entries))
	for _, e := range entries {
		kinds = append(kinds, string(e.Kind))
		switch e.Kind { //nolint:exhaustive // because all other entries belong to the Turn itself
		case journal.SessionTurn: // the Turn adds itself to the journal of its Session
			var added struct {
				TurnUID string `json:"turnUID"`
			}
			if json.Unmarshal(e.Payload, &added) == nil {
				owner = added.TurnUID
			}
		case journal.RunStarted:
			var started struct{ Name string }
			if json.Unmarshal(e.Payload, &started) == nil {
				j.line.learn(uid, started.Name)
			}
		}
	}
	return j.line.perform(Append, owner, kinds, func() error { return j.Journal.Append(ctx, uid, entries...) })
}

// Provider returns a provider whose requests go through the line.
func (l *Line) Provider(_ string, p model.Provider) model.Provider {
	return &lineProvider{provider: p, line: l}
}

type lineProvider struct {
	provider model.Provider
	line     *Line
}

// Generate implements model.Provider.
func (p *lineProvider) Generate(ctx context.Context, req *model.Request) (reply *model.Reply, err error) {
	err = p.line.perform(Request, ownerOf(req.ID), nil, func() error {
		reply, err = p.provider.Generate(ctx, req)
		return err
	})
	return reply, err
}

// Servers returns a toolbox.Servers whose tool calls go through the line.
func (l *Line) Servers(s toolbox.Servers) toolbox.Servers { return &lineServers{Servers: s, line: l} }

type lineServers struct {
	toolbox.Servers
	line *Line
}

// Caller implements toolbox.Servers.
func (s *lineServers) Caller(server *v1alpha1.ToolServer, name string) tool.Caller {
	inner := s.Servers.Caller(server, name)
	return tool.CallerFunc(func(ctx context.Context, c tool.Call) (result tool.Result, err error) {
		err = s.line.perform(Call, ownerOf(c.IdempotencyKey), []string{name}, func() error {
			result, err = inner.Call(ctx, c)
			return err
		})
		return result, err
	})
}

// ownerOf returns the UID of the Turn, which is the first part of a request ID or an idempotency key.
func ownerOf(id string) string {
	uid, _, _ := strings.Cut(id, "/")
	return uid
}

// Status returns a client whose writes of Turn statuses, and creations of Turns of sub-agents, go through the line.
func (l *Line) Status(c client.Client) client.Client { return &lineClient{Client: c, line: l} }

type lineClient struct {
	client.Client
	line *Line
}

// Create implements client.Client. The creation of a sub-agent's Turn is an effect on the Turn that calls it.
func (c *lineClient) Create(ctx context.Context, obj client.Object, opts ...client.CreateOption) error {
	create := func() error { return c.Client.Create(ctx, obj, opts...) }
	owner := metav1.GetControllerOf(obj)
	if _, ok := obj.(*v1alpha1.Turn); !ok || owner == nil {
		return create()
	}
	return c.line.perform(Create, string(owner.UID), nil, create)
}

// Status implements client.Client.
func (c *lineClient) Status() client.SubResourceWriter {
	return &lineWriter{SubResourceWriter: c.Client.Status(), line: c.line}
}

type lineWriter struct {
	client.SubResourceWriter
	line *Line
}

// Update implements client.SubResourceWriter.
func (w *lineWriter) Update(ctx context.Context, obj client.Object, opts ...client.SubResourceUpdateOption) error {
	return w.write(obj, func() error { return w.SubResourceWriter.Update(ctx, obj, opts...) })
}

// Patch implements client.SubResourceWriter.
func (w *lineWriter) Patch(ctx context.Context, obj client.Object, patch client.Patch, opts ...client.SubResourcePatchOption) error {
	return w.write(obj, func() error { return w.SubResourceWriter.Patch(ctx, obj, patch, opts...) })
}

func (w *lineWriter) write(obj client.Object, write func() error) error {
	if s, ok := obj.(*v1alpha1.Session); ok {
		return w.line.perform(Write, w.line.uidOf(s.Status.LastTurnName), []string{DetailTotals}, write)
	}
	t, ok := obj.(*v1alpha1.Turn)
	if !ok {
		return write()
	}
	uid := string(t.UID)
	w.line.learn(uid, t.Name)
	return w.line.perform(Write, uid, []string{detailOf(t)}, write)
}

// detailOf returns the purpose of a write, which it derives from the status.
func detailOf(t *v1alpha1.Turn) string {
	switch {
	case t.IsFinished():
		return DetailEnd
	case t.BoundTo() == "" && len(t.Status.PendingApprovals)+len(t.Status.AwaitedTurns) > 0:
		return DetailPark
	case t.BoundTo() == "":
		return DetailOther
	case t.Epoch() > 1:
		return DetailClaim
	}
	return DetailBind
}
