package localrun

import (
	"context"
	"errors"
	"fmt"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/cli/exit"
	"github.com/capstan-dev/capstan/internal/runtime/ask"
	"github.com/capstan-dev/capstan/internal/runtime/memories"
	"github.com/capstan-dev/capstan/internal/runtime/model"
	"github.com/capstan-dev/capstan/internal/runtime/ranking"
	"github.com/capstan-dev/capstan/internal/runtime/task"
	"github.com/capstan-dev/capstan/internal/runtime/turn"
	"github.com/capstan-dev/capstan/internal/translate"
)

// usesMemories reports whether the run learns memories from a Turn, and recalls memories for it. The memories are kept
// in --data-dir.
func (j *localRun) usesMemories(w *localTurn) bool {
	return j.DataDir != "" && translate.Learns(w.Agent)
}

// recall returns a function that returns the memories that fit a message, or nil if the run uses no memories.
func (j *localRun) recall(w *localTurn) func(ctx context.Context, message string, vector ranking.Vector) (turn.Recalled, error) {
	if !j.usesMemories(w) {
		return nil
	}
	return func(ctx context.Context, message string, vector ranking.Vector) (r turn.Recalled, err error) {
		sessionUID := ""
		if w.Session != nil {
			sessionUID = string(w.Session.UID)
		}
		owners := translate.MemoryOwners(w.turn, w.Agent, sessionUID, w.in.Requester)
		r.Memories, r.More, err = memories.Recall(ctx, j.store, owners, message, vector, j.Clock()(), translate.MaxMemories(w.Agent),
			w.in.Redact)
		return r, err
	}
}

// embeddings returns the model that turns texts into vectors for the Agent of a Turn. It returns nil if the Agent has
// no such model, or if the Turn sends no request.
func (j *localRun) embeddings(ctx context.Context, w *localTurn) (*turn.Embeddings, error) {
	if w.Agent.Spec.Embeddings == nil || w.turn.Spec.Execution == v1alpha1.ExecutionPrepareOnly {
		return nil, nil //nolint:nilnil // because "none" is an answer, not an error
	}
	e, err := translate.Embeddings(w.Agent, w.EmbeddingsLink(ctx, j.providers, j.logWait))
	if err != nil {
		return nil, err
	}
	e.Vectors = j.vectors.Of(w.turn.Namespace)
	return e, nil
}

// learn extracts memories from a Turn that has ended, and keeps them. If that fails, it prints only a note, because the
// answer is printed already.
func (j *localRun) learn(ctx context.Context, w *localTurn) {
	if !j.usesMemories(w) || w.result == nil || w.result.Text == "" || !w.binding.ended.IsZero() || !mayAskModels(w.turn) {
		return
	}
	n, err := j.extract(ctx, w)
	switch {
	case err != nil:
		j.Env.Logf("note: nothing was learned from the Turn: %s", err)
	case n > 0 && !j.Quiet:
		j.Env.Logf("learned memories: %d; to list them: capstan memory list --data-dir %s", n, j.DataDir)
	}
}

func (j *localRun) extract(ctx context.Context, w *localTurn) (kept int, err error) {
	source, err := turn.LearnFrom(ctx, j.store, string(w.turn.UID), translate.IsWrittenByRequester(w.turn))
	if err != nil {
		return 0, err
	}
	links, err := w.LearningLinks(ctx, j.providers, j.logWait)
	if err != nil {
		return 0, err
	}
	if links == nil {
		links = j.chains[w.AgentName()]
	}
	_, thinking := translate.LearningModels(w.Agent)
	limits := translate.Learning(w.Agent)
	now := j.Clock()().UTC()
	l := &ask.Learning{
		Questions: memories.Questions(source, limits.Scopes, limits.MaxPerTurn), MaxPerTurn: limits.MaxPerTurn,
		MinConfidence: limits.MinConfidence, MaxItems: limits.MaxMemories, Redact: w.in.Redact,
		About: memories.Memory{
			Namespace: w.turn.Namespace, Agent: w.turn.AgentName(), Requester: w.in.Requester, Turn: w.turn.Name,
			TurnUID: string(w.turn.UID), Learned: now, Expires: now.AddDate(0, 0, limits.ExpiryDays),
		},
	}
	if w.Session != nil {
		l.About.Session, l.About.SessionUID = w.Session.Name, string(w.Session.UID)
	} else {
		l.Questions = memories.Questions(source, without(limits.Scopes, memories.Session), limits.MaxPerTurn)
	}
	for _, link := range links {
		c, err := translate.Candidate(link, thinking)
		if err != nil {
			return 0, exit.WithCode(exit.Failed, err)
		}
		l.Chain = append(l.Chain, c)
	}
	learned := l.Ask(ctx)
	if learned.Failed > 0 && len(learned.Memories) == 0 {
		return 0, fmt.Errorf("the model gave no usable reply")
	}
	if err := j.store.Keep(ctx, learned); err != nil {
		return 0, err
	}
	if err := j.embed(ctx, w, learned); err != nil {
		j.Env.Logf("note: memories without a vector are found only by their words: %s", err)
	}
	return len(learned.Memories), nil
}

// embed computes and stores vectors for the memories that were just learned and for older ones of the same owners, if
// the Agent has a model that turns texts into vectors.
func (j *localRun) embed(ctx context.Context, w *localTurn, l *task.Learned) error {
	e := w.in.Embeddings
	if e == nil || len(l.Memories) == 0 {
		return nil
	}
	missing, err := j.store.UnembeddedMemories(ctx, l.Owners(), e.Space, j.Clock()(), model.MaxEmbedTexts)
	if err != nil {
		return err
	}
	for i := range missing {
		missing[i].Text = w.in.Redact(missing[i].Text)
	}
	all, _, err := ask.Embed(ctx, &e.Model, e.Space, e.Dimensions, missing, nil)
	return errors.Join(err, j.store.EmbedMemories(ctx, all))
}

// without returns all scopes except excluded.
func without(all []memories.Scope, excluded memories.Scope) (rest []memories.Scope) {
	for _, s := range all {
		if s != excluded {
			rest = append(rest, s)
		}
	}
	return rest
}
