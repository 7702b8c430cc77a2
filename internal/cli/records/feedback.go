package records

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os/user"

	"github.com/capstan-dev/capstan/internal/cli/cluster"
	"github.com/capstan-dev/capstan/internal/cli/exit"
	"github.com/capstan-dev/capstan/internal/cli/journals"
	"github.com/capstan-dev/capstan/internal/readapi"
	"github.com/capstan-dev/capstan/internal/runtime/turnrecord"
	"github.com/capstan-dev/capstan/internal/store"
)

// Feedback gives feedback to a Turn.
type Feedback struct {
	Options
	// Score is a number from 0 to 1. Comment is a text, or empty.
	Score, Comment string
}

// Run stores the feedback to a Turn, given as NAME or NAMESPACE/NAME.
func (f *Feedback) Run(ctx context.Context, turn string) error {
	namespace, name, err := cluster.SplitName(turn, f.Namespace)
	if err != nil {
		return err
	}
	if err := readapi.CheckFeedback(f.Score, f.Comment); err != nil {
		return exit.WithCode(exit.Usage, err)
	}
	if f.DataDir != "" {
		return f.local(ctx, cmp.Or(namespace, "default"), name)
	}
	return f.Cluster.WithServer(ctx, f.Env, namespace, func(client *readapi.Client, namespace string) error {
		out, err := client.AddFeedback(ctx, namespace, name, f.Score, f.Comment)
		if err != nil {
			return exit.WithCode(exit.Failed, journals.ExplainFeedback(err))
		}
		return f.stored(namespace, name, out.TurnDeleted)
	})
}

// stored prints which Turn has the feedback.
func (f *Feedback) stored(namespace, name string, deleted bool) error {
	text := fmt.Sprintf("The feedback to Turn %s/%s is stored.\n", namespace, name)
	if deleted {
		text = fmt.Sprintf("The feedback to the deleted Turn %s/%s is stored.\n", namespace, name)
	}
	return f.printDone(text, struct {
		Namespace   string `json:"namespace"`
		Turn        string `json:"turn"`
		TurnDeleted bool   `json:"turnDeleted"`
		Score       string `json:"score"`
	}{namespace, name, deleted, f.Score})
}

// localUser is the user in feedback to Turns of --data-dir if the name of the user is not known.
const localUser = "local"

// local stores the feedback in --data-dir, under the name of the user of this process.
func (f *Feedback) local(ctx context.Context, namespace, name string) (err error) {
	w, err := journals.OpenDirForWriting(ctx, f.DataDir)
	if err != nil {
		return failed(err)
	}
	defer func() { err = errors.Join(err, w.Close()) }()
	who := localUser
	if u, err := user.Current(); err == nil && u.Username != "" {
		who = u.Username
	}
	given := turnrecord.Feedback{User: who, Score: f.Score, Comment: f.Comment, Time: f.Env.Now().UTC()}
	// Without a UID, the feedback would go to the newest record: that of an older Turn if the newest has not ended.
	uid, err := journals.Newest(ctx, w, namespace, name, "")
	if err != nil {
		return failed(err)
	}
	err = w.AddFeedback(ctx, namespace, name, uid, given)
	if errors.Is(err, store.ErrNoRecord) {
		err = fmt.Errorf("%s has no record of the Turn %s/%s: it has not ended, or its record was deleted", f.DataDir, namespace, name)
	}
	if err != nil {
		return failed(err)
	}
	return f.stored(namespace, name, false)
}
