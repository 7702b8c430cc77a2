// Package budgets applies the Budgets of a cluster: it finds the Budgets that apply to a Turn, and keeps the status of
// each Budget in line with the ledger.
package budgets

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/types"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/runtime/budget"
	"github.com/capstan-dev/capstan/internal/translate"
)

// MaxOfNamespace is the maximum number of Budgets of a namespace that apply. If there are more, the oldest apply. This
// bounds the work for each request, however many Budgets a tenant creates.
const MaxOfNamespace = budget.MaxOfTurn

// Set holds the Budgets that the watch has delivered, and finds those that apply to a Turn. It is safe for concurrent
// use. The zero value is empty.
type Set struct {
	// synced reports whether the set holds all Budgets of the watch's first list. It is nil without a watch.
	synced func() bool
	// changed is called after the watch has updated or deleted a Budget: see OnChange. It may be nil.
	changed func(before, after *v1alpha1.Budget)

	mu         sync.RWMutex
	namespaces map[string][]*entry // oldest first
	// deleted holds the UIDs of deleted Budgets. Delete adds no UID if there are maxDeleted or more.
	deleted []string
}

// maxDeleted limits the deleted Budgets that a process remembers. The accounts of the other deleted Budgets are deleted
// after their periods.
const maxDeleted = 10_000

// entry is one Budget.
type entry struct {
	rule    translate.BudgetRule
	uid     types.UID
	created time.Time
	// exceeded is the message of the condition Exceeded if the status shows the Budget as exceeded until reset;
	// otherwise it is empty.
	exceeded string
	reset    time.Time
}

// OnChange sets the function that is called after the watch has updated or deleted a Budget in the set. For a deleted
// Budget, after is nil. OnChange must be called before Watch, and the function must not block.
func (s *Set) OnChange(changed func(before, after *v1alpha1.Budget)) {
	if s != nil {
		s.changed = changed
	}
}

// Watch fills the set from a cache, and keeps it up to date.
func (s *Set) Watch(ctx context.Context, from cache.Cache) error {
	informer, err := from.GetInformer(ctx, &v1alpha1.Budget{})
	if err != nil {
		return fmt.Errorf("failed to watch budgets: %w", err)
	}
	registration, err := informer.AddEventHandler(toolscache.ResourceEventHandlerFuncs{
		AddFunc: func(o any) { withBudget(o, s.Put) },
		UpdateFunc: func(old, o any) {
			withBudget(o, func(after *v1alpha1.Budget) {
				s.Put(after)
				if before, ok := old.(*v1alpha1.Budget); ok {
					s.notify(before, after)
				}
			})
		},
		DeleteFunc: func(o any) {
			withBudget(o, func(b *v1alpha1.Budget) {
				s.Delete(b)
				s.notify(b, nil)
			})
		},
	})
	if err == nil {
		s.synced = registration.HasSynced
	}
	return err
}

func (s *Set) notify(before, after *v1alpha1.Budget) {
	if s.changed != nil {
		s.changed(before, after)
	}
}

// errUnknown is returned while the Budgets cannot be read.
var errUnknown = fmt.Errorf("the Budgets are not known after %s, and no request may be sent without them: check that the API server "+
	"answers, and that the manager may list and watch budgets.capstan.dev", maxSync)

// awaitSync waits until the set holds all Budgets of the watch's first list, for at most maxSync. Without this wait, a
// process that has just started would send requests that no Budget counts. The error is errUnknown, or the cause of ctx
// if ctx ends first.
func (s *Set) awaitSync(ctx context.Context) error {
	if s.synced == nil || s.synced() {
		return nil
	}
	poll, limit := time.NewTicker(syncPoll), time.NewTimer(maxSync)
	defer poll.Stop()
	defer limit.Stop()
	for !s.synced() {
		select {
		case <-poll.C:
		case <-limit.C:
			return errUnknown
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return nil
}

const (
	// maxSync is longer than a watch needs for its first list. syncPoll is the time between two checks of synced.
	maxSync  = 30 * time.Second
	syncPoll = 10 * time.Millisecond
)

// withBudget calls do with the Budget of a watch event.
func withBudget(o any, do func(*v1alpha1.Budget)) {
	if last, ok := o.(toolscache.DeletedFinalStateUnknown); ok {
		o = last.Obj
	}
	if b, ok := o.(*v1alpha1.Budget); ok {
		do(b)
	}
}

// Put adds or replaces a Budget.
func (s *Set) Put(b *v1alpha1.Budget) {
	e := &entry{rule: translate.Budget(b), uid: b.UID, created: b.CreationTimestamp.Time}
	c := meta.FindStatusCondition(b.Status.Conditions, v1alpha1.ConditionExceeded)
	if c != nil && c.Status == "True" && c.ObservedGeneration == b.Generation && b.Status.ResetTime != nil {
		e.exceeded, e.reset = c.Message, b.Status.ResetTime.Time
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.namespaces == nil {
		s.namespaces = map[string][]*entry{}
	}
	all := s.without(b)
	at, _ := slices.BinarySearchFunc(all, e, older)
	s.namespaces[b.Namespace] = slices.Insert(all, at, e)
}

// Delete removes a Budget.
func (s *Set) Delete(b *v1alpha1.Budget) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.namespaces[b.Namespace] = s.without(b); len(s.namespaces[b.Namespace]) == 0 {
		delete(s.namespaces, b.Namespace)
	}
	if len(s.deleted) < maxDeleted {
		s.deleted = append(s.deleted, string(b.UID))
	}
}

// takeDeleted returns the UIDs of Budgets that were deleted since the last call.
func (s *Set) takeDeleted() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	gone := s.deleted
	s.deleted = nil
	return gone
}

// addDeleted puts UIDs back that takeDeleted has returned.
func (s *Set) addDeleted(uids ...string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.deleted = append(uids, s.deleted...)
}

// without returns the Budgets of b's namespace without b. The caller must hold the lock.
func (s *Set) without(b *v1alpha1.Budget) []*entry {
	return slices.DeleteFunc(s.namespaces[b.Namespace], func(e *entry) bool { return e.rule.Name == b.Name })
}

// older orders Budgets by age.
func older(a, b *entry) int {
	return cmp.Or(a.created.Compare(b.created), cmp.Compare(a.rule.Name, b.rule.Name))
}

// applied returns the Budgets of a namespace that apply. The caller must hold the lock.
func (s *Set) applied(namespace string) []*entry {
	all := s.namespaces[namespace]
	return all[:min(len(all), MaxOfNamespace)]
}

// Applies reports whether a Budget is one of the MaxOfNamespace oldest Budgets of its namespace.
func (s *Set) Applies(b *v1alpha1.Budget) bool {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return slices.ContainsFunc(s.applied(b.Namespace), func(e *entry) bool { return e.uid == b.UID })
}

// Rules returns the Budgets that apply to a Turn. agent holds the labels of its Agent. requester returns the name of
// the Turn's requester, or an empty name if the requester is not known or may be forged. Rules calls requester only if
// a Budget selects requesters, and returns its error. Rules also returns an error if the Budgets are not known after 30
// s, or the cause of ctx if ctx ends first.
func (s *Set) Rules(
	ctx context.Context, t *v1alpha1.Turn, agent map[string]string, requester func() (string, error),
) ([]budget.Rule, error) {
	if s == nil {
		return nil, nil
	}
	if err := s.awaitSync(ctx); err != nil {
		return nil, err
	}
	selected, byRequester := s.selected(t, agent)
	var name string
	if byRequester {
		var err error
		if name, err = requester(); err != nil {
			return nil, err
		}
	}
	var rules []budget.Rule
	for _, e := range selected {
		if e.rule.SelectsRequester(name) {
			rules = append(rules, e.rule.Rule)
		}
	}
	return rules, nil
}

// selected returns the Budgets that apply to the Turns of an Agent, and whether one of them selects requesters.
func (s *Set) selected(t *v1alpha1.Turn, agent map[string]string) (all []*entry, byRequester bool) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	for _, e := range s.applied(t.Namespace) {
		if e.rule.SelectsAgent(t.AgentKey(), agent) {
			all = append(all, e)
			byRequester = byRequester || e.rule.ByRequester()
		}
	}
	return all, byRequester
}

// Verdict is the effect of the Budgets on a Turn that is not bound.
type Verdict struct {
	// Message says why the Turn must wait; empty if it need not wait.
	Message string
	// Until is when the Turn must be evaluated again.
	Until time.Time
}

// Evaluate returns whether a Turn must wait for a Budget before it is bound: for the Budget that its status names, or
// for an exceeded Budget that queues Turns. The latter applies only to a Turn that was never bound and that asks a
// model: if a Turn has run, the ledger has counted the Turn, and may allow its next request. agent holds the labels of
// its Agent. The requester that the Turn names may be forged. If a Budget selects this name, the Budget applies whether
// the name is forged or not. If the Budget does not select the name, the executor decides.
func (s *Set) Evaluate(t *v1alpha1.Turn, agent map[string]string, now time.Time) Verdict {
	if s == nil {
		return Verdict{}
	}
	s.mu.RLock()
	defer s.mu.RUnlock()
	awaited, mayBeRefused := t.Status.AwaitedBudget, t.Epoch() == 0 && t.AsksModel()
	var v Verdict
	for _, e := range s.applied(t.Namespace) {
		if !e.rule.SelectsAgent(t.AgentKey(), agent) {
			continue
		}
		if awaited != nil && awaited.UID == string(e.uid) && awaited.Generation == e.rule.Generation && now.Before(awaited.RetryTime.Time) {
			return Verdict{Message: awaited.Message, Until: awaited.RetryTime.Time}
		}
		if mayBeRefused && e.rule.SelectsRequester(t.Requester()) && e.rule.Queue && e.exceeded != "" &&
			now.Before(e.reset) && e.reset.After(v.Until) {
			v = Verdict{Message: e.exceeded, Until: e.reset}
		}
	}
	return v
}
