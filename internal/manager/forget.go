package manager

import (
	"context"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/types"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"github.com/capstan-dev/capstan/api/v1alpha1"
)

// sweepInterval is the time between two sweeps. An unused connection to a ModelProvider is kept for ten sweeps, and the
// tool list of a ToolServer for sixty.
const sweepInterval = time.Minute

// connections is a cache of the connections to objects of a kind, with their credentials.
type connections interface {
	// Forget removes the connections of one object.
	Forget(key types.NamespacedName)
	// Sweep removes unused connections.
	Sweep()
}

// addForgetting makes a process of any role remove connections and credentials when their objects are deleted.
// Otherwise a process without reconcilers would keep them forever.
func (p *parts) addForgetting(ctx context.Context) error {
	for kind, kept := range map[client.Object]connections{&v1alpha1.ModelProvider{}: p.providers, &v1alpha1.ToolServer{}: p.servers} {
		if err := forgetDeleted(ctx, p.manager.GetCache(), kind, kept); err != nil {
			return err
		}
		sweep := manager.RunnableFunc(func(ctx context.Context) error {
			ticker := time.NewTicker(sweepInterval)
			defer ticker.Stop()
			for {
				select {
				case <-ticker.C:
					kept.Sweep()
				case <-ctx.Done():
					return nil
				}
			}
		})
		if err := p.manager.Add(everywhere{sweep}); err != nil {
			return err
		}
	}
	return nil
}

// forgetDeleted removes the connections of deleted objects of a kind.
func forgetDeleted(ctx context.Context, informers cache.Informers, kind client.Object, kept connections) error {
	informer, err := informers.GetInformer(ctx, kind)
	if err != nil {
		return fmt.Errorf("failed to watch %T: %w", kind, err)
	}
	if _, err := informer.AddEventHandler(forgetting(kept)); err != nil {
		return fmt.Errorf("failed to follow the deletion of %T: %w", kind, err)
	}
	return nil
}

// forgetting returns a handler that removes the connections of an object that is deleted, or replaced by another
// object of its name.
func forgetting(kept connections) toolscache.ResourceEventHandlerFuncs {
	return toolscache.ResourceEventHandlerFuncs{
		DeleteFunc: func(o any) {
			if lost, ok := o.(toolscache.DeletedFinalStateUnknown); ok {
				o = lost.Obj
			}
			if gone, ok := o.(client.Object); ok {
				kept.Forget(client.ObjectKeyFromObject(gone))
			}
		},
		UpdateFunc: func(before, after any) {
			old, isOld := before.(client.Object)
			replaced, isNew := after.(client.Object)
			if isOld && isNew && old.GetUID() != replaced.GetUID() { // the event of the deletion was missed
				kept.Forget(client.ObjectKeyFromObject(old))
			}
		},
	}
}
