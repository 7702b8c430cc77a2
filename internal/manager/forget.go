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

// sweepInterval is the time between two sweeps: ModelProviders are kept for ten of them without use, what is known of ToolServers for sixty.
const sweepInterval = time.Minute

// connections are what a process keeps for the objects of a kind: with each, its credentials.
type connections interface {
	// Forget drops those of one object.
	Forget(key types.NamespacedName)
	// Sweep drops those that are not used.
	Sweep()
}

// addForgetting has a process of any role forget connections and credentials when their objects are deleted. A process without
// reconcilers would keep them for ever.
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

// forgetDeleted drops what is kept for objects of a kind that are deleted.
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

// forgetting drops what is kept for an object that is deleted, or replaced by another one of its name.
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
			if isOld && isNew && old.GetUID() != replaced.GetUID() { // the deletion was missed
				kept.Forget(client.ObjectKeyFromObject(old))
			}
		},
	}
}
