package executor

import (
	"context"
	"errors"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/runtime/loop"
	"github.com/capstan-dev/capstan/internal/runtime/tool"
	"github.com/capstan-dev/capstan/internal/runtime/turn"
	"github.com/capstan-dev/capstan/internal/translate"
)

// family finds the usage of sub-agents' Turns: in their status, or in their journals if the Turns are gone.
type family struct {
	reader client.Reader
	engine *turn.Engine
	// reserve is called before a journal is read as a whole.
	reserve reserveFunc
}

// reserveFunc reserves the memory to read the journal of a Turn whose object is gone. The caller must call release
// after it has read the journal.
type reserveFunc func(ctx context.Context, namespace, uid string) (release func(), err error)

// withoutReservation is the reserveFunc of a caller that limits in another way how many journals are read at the same
// time.
func withoutReservation(context.Context, string, string) (release func(), err error) {
	return func() {}, nil
}

// usage returns the usage of the sub-agent's Turn that a call created, or a *tool.Pending while that Turn has not
// ended. uid is the UID of that Turn, or empty if it is unknown. If the Turn no longer belongs to this parent, for
// example because only the parent was deleted, usage returns an empty result.
func (f family) usage(ctx context.Context, parent turn.DeletedTurn, call loop.Intent, uid string) (tool.Result, error) {
	object := &v1alpha1.Turn{ObjectMeta: metav1.ObjectMeta{Namespace: parent.Namespace, Name: parent.Name, UID: types.UID(parent.UID)}}
	var child v1alpha1.Turn
	key := client.ObjectKey{Namespace: parent.Namespace, Name: translate.ChildName(object, call.Step, call.CallID)}
	err := f.reader.Get(ctx, key, &child)
	if client.IgnoreNotFound(err) != nil {
		return tool.Result{}, &retryError{fmt.Errorf("failed to get turn %q of a sub-agent: %w", key.Name, err)}
	}
	if apierrors.IsNotFound(err) || uid != "" && string(child.UID) != uid {
		spent, err := f.usageOfDeleted(ctx, parent.Namespace, uid)
		return tool.Result{Spent: spent}, err
	}
	owner, owned := translate.Parent(&child)
	switch {
	case !owned || string(owner.UID) != parent.UID:
		return tool.Result{}, nil
	case !child.IsFinished():
		return tool.Result{}, &tool.Pending{Turn: child.Name, UID: string(child.UID)}
	}
	return tool.Result{Spent: translate.SubAgentUsage(&child), Descendants: translate.Descendants(&child)}, nil
}

// usageOfDeleted returns the usage of a Turn whose object is gone, or a *tool.Pending while a Turn of its own
// sub-agents has not ended. It returns nil if the usage is unknown: the UID is empty, or the journal is gone or
// damaged. It returns journal.ErrNewer if only a newer version can read the journal.
func (f family) usageOfDeleted(ctx context.Context, namespace, uid string) (*tool.Spent, error) {
	if uid == "" {
		return nil, nil //nolint:nilnil // because "not known" is an answer, not an error
	}
	release, err := f.reserve(ctx, namespace, uid)
	if err != nil {
		return nil, err
	}
	defer release()
	spent, err := f.engine.EndDeletedTurn(ctx, uid, f.usage)
	waits, isParked := errors.AsType[*loop.Parked](err)
	switch {
	case isParked:
		return nil, &tool.Pending{Turn: waits.Turns[0]}
	case isUnreadable(err):
		return nil, nil //nolint:nilnil // because "not known" is an answer, not an error
	}
	return spent, err
}
