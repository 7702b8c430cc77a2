package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/hack/bench/hostile"
)

const (
	// attackRate is the number of Turns that an attacker creates in a second while the victim is measured: an attack on the
	// manager should not be one on the API server.
	attackRate = 100

	agentServers = 30 // servers of one Agent whose listings are large
	chainModels  = 8  // models of one Agent, the most there are
	patches      = 40
	contextChars = 120_000 // of a suspended Turn
)

// attack is something that one tenant does to harm others.
type attack struct {
	name string
	// size is how large the attack is, and what says of what, with %d for the size.
	size int
	what string
	// prepare makes what must be there before the victim is measured; nil for nothing.
	prepare func(context.Context, *attacker) error
	// restarts the manager after the preparation: its start is a part of the attack.
	restarts bool
	// run attacks while the victim is measured; nil where the preparation was the attack.
	run func(context.Context, *attacker) error
	// windows is for how many times the usual time the victim is measured; 0 stands for 1.
	windows int
	// needsServer says that the attack has not taken place unless the hostile server was asked.
	needsServer bool
	// volumeMiB bounds the volume of the journal; 0 for no bound.
	volumeMiB int
}

func attacks() []attack {
	return []attack{
		{name: "listings", size: 150, what: "%d ToolServers with listings of 4 MiB", run: attackListings, windows: 2, needsServer: true},
		{name: "replies", size: 10, what: "%d Turns of 100 steps whose model sends 1 MiB in each", run: attackReplies, windows: 2, needsServer: true},
		{name: "suspended", size: 2400, what: "%d suspended Turns of 120 KB, and a restart", prepare: prepareSuspended, restarts: true},
		{name: "tarpits", size: 600, what: "%d endpoints that accept connections and never answer", prepare: prepareTarpits, needsServer: true},
		{name: "storm", size: 5000, what: "40 patches of an Agent with %d waiting Turns", prepare: prepareStorm, run: attackStorm},
		{name: "comments", size: 3500, what: "%d Turns whose model sends SSE comments only", prepare: prepareComments, needsServer: true},
		{name: "session", size: 2000, what: "%d Turns of one Session at once", run: attackSession},
		{name: "journal", size: 600, what: "%d Turns with answers of 1 MiB, on a volume of 512 MiB", run: attackJournal, windows: 2, needsServer: true, volumeMiB: 512},
		{name: "bomb", size: 20, what: "%d Turns whose model sends 256 MiB of tiny events, most of them compressed", run: attackBomb, needsServer: true},
		{name: "names", size: 8000, what: "%d names of models", prepare: prepareNames, run: attackNames, needsServer: true},
		{name: "burst", size: 3000, what: "%d Turns of 2 s at once", run: attackBurst, needsServer: true},
	}
}

func attackListings(ctx context.Context, a *attacker) error {
	name := func(i int) string { return fmt.Sprintf("server-%d", i) }
	err := a.create(ctx, a.size, attackRate, func(i int) client.Object { return a.toolServer(name(i), a.server.Listing(i)) })
	if err != nil {
		return err
	}
	if err := a.createAll(ctx, a.provider("model", a.server.Answering(0))); err != nil {
		return err
	}
	for first := 0; first < a.size; first += agentServers {
		var servers []string
		for i := first; i < min(first+agentServers, a.size); i++ {
			servers = append(servers, name(i))
		}
		agent := a.agent(fmt.Sprintf("agent-%d", first), servers...)
		agent.Spec.Models[0].ProviderRef.Name = "model"
		if err := a.createAll(ctx, agent, a.turn(first, agent.Name)); err != nil {
			return err
		}
	}
	return nil
}

func attackReplies(ctx context.Context, a *attacker) error {
	if err := a.createAll(ctx, a.provider("talker", a.server.Talking()), a.toolServer("notes", a.server.Noting()), a.agent("talker", "notes")); err != nil {
		return err
	}
	return a.create(ctx, a.size, 0, a.turns("talker"))
}

func prepareSuspended(ctx context.Context, a *attacker) error {
	if err := a.createAll(ctx, a.provider("model", a.server.Answering(0)), a.agent("model")); err != nil {
		return err
	}
	return a.create(ctx, a.size, 0, func(i int) client.Object {
		turn := a.turn(i, "model")
		turn.Spec.DesiredState = v1alpha1.DesiredStateSuspended
		turn.Spec.Context = factsOf(contextChars)
		return turn
	})
}

func prepareTarpits(ctx context.Context, a *attacker) error {
	return a.create(ctx, a.size, 0, func(i int) client.Object {
		name := fmt.Sprintf("tarpit-%d", i)
		if i%2 == 0 {
			provider := a.provider(name, a.server.Tarpit(i))
			provider.Spec.Timeouts.ConnectSeconds = 60
			return provider
		}
		return a.toolServer(name, a.server.Tarpit(i))
	})
}

// prepareStorm makes Turns that wait: their Agent runs one at a time, and that one never ends.
func prepareStorm(ctx context.Context, a *attacker) error {
	agent := a.agent("commenter")
	agent.Spec.MaxParallelTurns = new(int32(1))
	if err := a.createAll(ctx, a.provider("commenter", a.server.Commenting()), agent); err != nil {
		return err
	}
	return a.create(ctx, a.size, 0, a.turns("commenter"))
}

// attackStorm changes the Agent of the waiting Turns again and again.
func attackStorm(ctx context.Context, a *attacker) error {
	ticker := time.NewTicker(250 * time.Millisecond)
	defer ticker.Stop()
	for i := range patches {
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		patch := client.RawPatch(types.MergePatchType, fmt.Appendf(nil, `{"spec":{"description":"Change %d."}}`, i))
		if err := a.api.Patch(ctx, &v1alpha1.Agent{ObjectMeta: a.own("commenter")}, patch); err != nil {
			return fmt.Errorf("failed to patch the Agent: %w", err)
		}
	}
	return nil
}

func prepareComments(ctx context.Context, a *attacker) error {
	if err := a.createAll(ctx, a.provider("commenter", a.server.Commenting()), a.agent("commenter")); err != nil {
		return err
	}
	return a.create(ctx, a.size, 0, a.turns("commenter"))
}

func attackSession(ctx context.Context, a *attacker) error {
	if err := a.createAll(ctx, a.provider("model", a.server.Answering(0)), a.agent("model")); err != nil {
		return err
	}
	return a.create(ctx, a.size, attackRate, func(i int) client.Object {
		turn := a.turn(i, "model")
		turn.Spec.SessionRef = &v1alpha1.ObjectReference{Name: "one"}
		return turn
	})
}

func attackJournal(ctx context.Context, a *attacker) error {
	if err := a.createAll(ctx, a.provider("writer", a.server.Writing()), a.agent("writer")); err != nil {
		return err
	}
	return a.create(ctx, a.size, attackRate, a.turns("writer"))
}

// attackBomb has one Turn of four receive the events uncompressed.
func attackBomb(ctx context.Context, a *attacker) error {
	err := a.createAll(ctx, a.provider("bomb", a.server.Bombing()), a.agent("bomb"), a.provider("flood", a.server.Flooding()), a.agent("flood"))
	if err != nil {
		return err
	}
	return a.create(ctx, a.size, 0, func(i int) client.Object {
		if i%4 == 3 {
			return a.turn(i, "flood")
		}
		return a.turn(i, "bomb")
	})
}

// prepareNames makes Agents that share no name of a model. All but the last model of each break their replies off.
func prepareNames(ctx context.Context, a *attacker) error {
	if err := a.createAll(ctx, a.provider("names", a.server.Breaking())); err != nil {
		return err
	}
	return a.create(ctx, a.chains(), 0, func(i int) client.Object {
		agent := a.agent(chain(i))
		agent.Spec.Models = nil
		for m := range chainModels {
			name := fmt.Sprintf("%smodel-%d-%d", strings.Repeat("n", 100), i, m)
			if m == chainModels-1 {
				name = hostile.LastModel + name
			}
			agent.Spec.Models = append(agent.Spec.Models, v1alpha1.ModelReference{ProviderRef: v1alpha1.ObjectReference{Name: "names"}, Model: name})
		}
		return agent
	})
}

func attackNames(ctx context.Context, a *attacker) error {
	return a.create(ctx, a.chains(), attackRate, func(i int) client.Object { return a.turn(i, chain(i)) })
}

// chains is the number of Agents that have so many names of models together.
func (a *attacker) chains() int { return (a.size + chainModels - 1) / chainModels }

func chain(i int) string { return fmt.Sprintf("chain-%d", i) }

func attackBurst(ctx context.Context, a *attacker) error {
	if err := a.createAll(ctx, a.provider("slow", a.server.Answering(2*time.Second)), a.agent("slow")); err != nil {
		return err
	}
	return a.create(ctx, a.size, 1.5*attackRate, a.turns("slow"))
}

// parseAttacks returns the attacks of some names, all if there are none, with other sizes for some.
func parseAttacks(names []string, sizes map[string]int) ([]attack, error) {
	all := attacks()
	byName := make(map[string]*attack, len(all))
	for i := range all {
		byName[all[i].name] = &all[i]
	}
	var errs []error
	for name, size := range sizes {
		switch {
		case byName[name] == nil:
			errs = append(errs, unknownAttack("attack-sizes", name, all))
		case size < 1 || size > 100_000:
			errs = append(errs, fmt.Errorf("--attack-sizes: the size of %s must be from 1 to 100000, not %d", name, size))
		default:
			byName[name].size = size
		}
	}
	if len(names) == 0 {
		return all, errors.Join(errs...)
	}
	var chosen []attack
	for _, name := range names {
		if byName[name] == nil {
			errs = append(errs, unknownAttack("attacks", name, all))
			continue
		}
		chosen = append(chosen, *byName[name])
	}
	return chosen, errors.Join(errs...)
}

func unknownAttack(flag, name string, all []attack) error {
	return fmt.Errorf("--%s: %q must be one of %s", flag, name, namesOf(all))
}

func namesOf(all []attack) string {
	var names []string
	for _, a := range all {
		names = append(names, a.name)
	}
	return strings.Join(names, ", ")
}
