package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/hack/bench/hostile"
)

const (
	// attackRate is the number of objects that an attacker creates per second while the victim is measured. It is
	// limited, because the attack should load the manager and not the API server.
	attackRate = 100

	agentServers = 30      // servers with large listings of one Agent
	chainModels  = 8       // the highest possible number of models of one Agent
	patches      = 40      // of the Agent in the attack "storm"
	contextChars = 120_000 // characters of the facts of a suspended Turn
	payloadChars = 60_000  // characters of the facts of a running Turn

	credentialBytes = 16 << 10 // the longest credential
	annotationBytes = 200_000
	largeRate       = 5 // objects of almost 1 MB that an attacker creates per second; low, because etcd writes each to the disk
	largeBytes      = 700_000
	textMaps        = 8
	profileSkills   = 12
	skillChars      = 62_000
)

// attack is an attempt of one tenant to harm others.
type attack struct {
	name string
	// size is the size of the attack.
	size int
	// The format string what describes the attack. It contains %d for the size.
	what string
	// prepare creates the objects that must exist before the victim is measured. If it is nil, there are none.
	prepare func(context.Context, *attacker) error
	// restarts is true if the manager is restarted after the preparation, because the attack affects its start.
	restarts bool
	// run attacks while the victim is measured. If it is nil, prepare is the whole attack.
	run func(context.Context, *attacker) error
	// windows multiplies the time for which the victim is measured; 0 means 1.
	windows int
	// needsServer is true if the attack counts only when the hostile server has received requests.
	needsServer bool
	// beginBytes is the number of bytes after which the attack has begun. The measurement of the victim continues until
	// the hostile server has sent them, but at most for beginPatience longer. If beginBytes is 0, the measurement
	// does not wait for the attack to begin.
	beginBytes int64
	// volumeMiB is the size of the volume of the journal; 0 means that the volume is not limited.
	volumeMiB int
}

func attacks() []attack {
	return []attack{
		{name: "listings", size: 150, what: "%d ToolServers with listings of 4 MiB", run: attackListings, windows: 2, needsServer: true},
		{
			name: "replies", size: 10, what: "%d Turns of 100 steps whose model sends 1 MiB in each", run: attackReplies,
			windows: 2, needsServer: true, beginBytes: 1 << 20,
		},
		{name: "suspended", size: 2400, what: "%d suspended Turns of 120 KB, and a restart", prepare: prepareSuspended, restarts: true},
		{
			name: "tarpits", size: 600, what: "%d endpoints that accept connections and never answer",
			prepare: prepareTarpits, needsServer: true,
		},
		{name: "storm", size: 5000, what: "40 patches of an Agent with %d waiting Turns", prepare: prepareStorm, run: attackStorm},
		{name: "comments", size: 3500, what: "%d Turns whose model sends SSE comments only", prepare: prepareComments, needsServer: true},
		{name: "session", size: 2000, what: "%d Turns of one Session at the same time", run: attackSession},
		{
			name: "journal", size: 600, what: "%d Turns with answers of 1 MiB, on a volume of 512 MiB",
			prepare: turnsOf("writer"), run: attackJournal, windows: 2, needsServer: true, volumeMiB: 512,
		},
		{
			name: "bomb", size: 20, run: attackBomb, needsServer: true,
			what: "%d Turns whose model sends 256 MiB of tiny events; for three of four Turns the stream is compressed",
		},
		{name: "names", size: 8000, what: "%d names of models", prepare: prepareNames, run: attackNames, needsServer: true},
		{
			name: "payloads", size: 3500, what: "%d Turns of 60 KB whose model sends SSE comments only",
			prepare: preparePayloads, needsServer: true,
		},
		{
			name: "results", size: 1000, what: "%d Turns of 8 parallel calls whose results stop after 250 KiB",
			prepare: prepareResults, needsServer: true,
		},
		{
			name: "flood", size: 400, what: "%d Turns whose models send 256 MiB of tiny events",
			prepare: turnsOf("flood"), run: attackFlood, needsServer: true,
		},
		{
			name: "refusals", size: 1500, what: "%d Turns whose requests are refused with errors of 1 MiB",
			prepare: turnsOf("refusing"), run: attackRefusals, needsServer: true,
		},
		{
			name: "notices", size: 100, what: "%d Turns of 8 parallel calls, whose tool server sends endless notifications of 1 MiB",
			run: attackNotices, needsServer: true,
		},
		{
			name: "credentials", size: 400, what: "%d Turns, each on a ModelProvider with a credential of 16 KiB, with answers of 1 MiB",
			prepare: prepareCredentials, run: attackCredentials, needsServer: true,
		},
		{
			name: "objects", size: 500, what: "%d PromptProfiles of 750 KB with annotations of 200 KB, and a restart",
			prepare: prepareObjects, restarts: true,
		},
		{
			name: "metadata", size: 500, what: "%d cancelled Turns with metadata of 900 KB, and a restart",
			prepare: prepareMetadata, restarts: true,
		},
		{
			name: "texts", size: 300, what: "%d Turns whose profile has its skills in 8 ConfigMaps of 680 KB",
			prepare: turnsOf("reader"), run: attackTexts, needsServer: true,
		},
		{
			name: "burst", size: 3000, what: "%d Turns of 2 s at the same time", prepare: turnsOf("slow"), run: attackBurst,
			needsServer: true,
		},
	}
}

// turnsOf returns a preparation that creates Turns whose Agent does not exist yet. The attack then creates only the
// Agent. So all Turns become ready at the same time, and the API server is not busy with their creation while the
// victim is measured. Such load is the concern of the API server's Priority and Fairness, not of the manager.
func turnsOf(agent string) func(context.Context, *attacker) error {
	return func(ctx context.Context, a *attacker) error { return a.create(ctx, a.size, 0, a.turns(agent)) }
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
	if err := a.createAll(ctx, a.provider("talker", a.server.Talking()), a.toolServer("notes", a.server.Noting()),
		a.agent("talker", "notes")); err != nil {
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

// prepareStorm creates Turns that wait: their Agent runs one Turn at a time, and the first one never ends.
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

// preparePayloads creates Turns with large facts that wait for a model.
func preparePayloads(ctx context.Context, a *attacker) error {
	if err := a.createAll(ctx, a.provider("commenter", a.server.Commenting()), a.agent("commenter")); err != nil {
		return err
	}
	return a.create(ctx, a.size, 0, func(i int) client.Object {
		turn := a.turn(i, "commenter")
		turn.Spec.Context = factsOf(payloadChars)
		return turn
	})
}

// prepareResults creates Turns that make as many parallel calls as a Turn may, to a server that does not finish its
// results.
func prepareResults(ctx context.Context, a *attacker) error {
	err := a.createAll(ctx, a.provider("caller", a.server.Calling()), a.toolServer("stalling", a.server.Stalling()),
		a.agent("caller", "stalling"))
	if err != nil {
		return err
	}
	return a.create(ctx, a.size, 0, a.turns("caller"))
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
	return a.createAll(ctx, a.provider("writer", a.server.Writing()), a.agent("writer"))
}

// attackBomb starts Turns whose models send tiny events: compressed for three of four Turns, uncompressed for the
// fourth.
func attackBomb(ctx context.Context, a *attacker) error {
	err := a.createAll(ctx, a.provider("bomb", a.server.Bombing()), a.agent("bomb"),
		a.provider("flood", a.server.Flooding()), a.agent("flood"))
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

// prepareNames creates Agents whose models all have different names, and a Turn of each Agent. All models of an Agent
// except the last one break off their replies.
func prepareNames(ctx context.Context, a *attacker) error {
	return a.create(ctx, 2*a.chains(), 0, func(i int) client.Object {
		if i%2 == 1 {
			return a.turn(i/2, chain(i/2))
		}
		i /= 2
		agent := a.agent(chain(i))
		agent.Spec.Models = nil
		for m := range chainModels {
			name := fmt.Sprintf("%smodel-%d-%d", strings.Repeat("n", 100), i, m)
			if m == chainModels-1 {
				name = hostile.WholeReplyPrefix + name
			}
			agent.Spec.Models = append(agent.Spec.Models,
				v1alpha1.ModelReference{ProviderRef: v1alpha1.SharedReference{Name: "names"}, Model: name})
		}
		return agent
	})
}

// attackNames creates the ModelProvider for which the Turns of all Agents wait, so that they start.
func attackNames(ctx context.Context, a *attacker) error {
	return a.createAll(ctx, a.provider("names", a.server.Breaking()))
}

// chains returns the number of Agents that together have as many model names as the size of the attack.
func (a *attacker) chains() int { return (a.size + chainModels - 1) / chainModels }

func chain(i int) string { return fmt.Sprintf("chain-%d", i) }

// attackFlood starts Turns whose models send tiny events: more bytes than a manager reads of one stream, in many more
// streams than a manager reads at the same time.
func attackFlood(ctx context.Context, a *attacker) error {
	return a.createAll(ctx, a.provider("flood", a.server.Flooding()), a.agent("flood"))
}

func attackRefusals(ctx context.Context, a *attacker) error {
	return a.createAll(ctx, a.provider("refusing", a.server.Refusing()), a.agent("refusing"))
}

// attackNotices starts Turns whose tool server sends notifications instead of results.
func attackNotices(ctx context.Context, a *attacker) error {
	err := a.createAll(ctx, a.provider("caller", a.server.Calling()), a.toolServer("notifying", a.server.Notifying()),
		a.agent("caller", "notifying"))
	if err != nil {
		return err
	}
	return a.create(ctx, a.size, 0, a.turns("caller"))
}

// prepareCredentials creates ModelProviders with the longest credentials that are allowed. For each, it creates a
// Turn that waits for its Agent.
func prepareCredentials(ctx context.Context, a *attacker) error {
	return a.create(ctx, 3*a.size, 0, func(i int) client.Object {
		name := keyed(i / 3)
		switch i % 3 {
		case 0:
			key := fmt.Sprintf("%d-", i) + strings.Repeat("k", credentialBytes)
			return &corev1.Secret{ObjectMeta: a.own(name), StringData: map[string]string{"apiKey": key[:credentialBytes]}}
		case 1:
			provider := a.provider(name, a.server.Writing())
			provider.Spec.CredentialsRef = &v1alpha1.SecretKeyReference{Name: name, Key: "apiKey"}
			return provider
		}
		return a.turn(i/3, name)
	})
}

// attackCredentials starts Turns whose answers are searched for all credentials of the namespace.
func attackCredentials(ctx context.Context, a *attacker) error {
	return a.create(ctx, a.size, attackRate, func(i int) client.Object { return a.agent(keyed(i)) })
}

func keyed(i int) string { return fmt.Sprintf("keyed-%d", i) }

// prepareObjects creates PromptProfiles that are as large as the API server accepts.
func prepareObjects(ctx context.Context, a *attacker) error {
	return a.create(ctx, a.size, largeRate, func(i int) client.Object {
		profile := newProfile(a.namespace)
		profile.Name = fmt.Sprintf("profile-%d", i)
		profile.Annotations = map[string]string{"example.com/notes": strings.Repeat("a", annotationBytes)}
		for k := range profileSkills {
			profile.Spec.Skills = append(profile.Spec.Skills, v1alpha1.Skill{
				Key: fmt.Sprintf("skill-%d", k), Description: "A long skill.", Content: new(strings.Repeat("s", skillChars)),
			})
		}
		return profile
	})
}

// prepareMetadata creates Turns that end at once, with as much metadata as the API server accepts.
func prepareMetadata(ctx context.Context, a *attacker) error {
	return a.create(ctx, a.size, largeRate, func(i int) client.Object {
		turn := a.turn(i, "none")
		turn.Spec.DesiredState = v1alpha1.DesiredStateCancelled
		turn.Annotations = map[string]string{"example.com/notes": strings.Repeat("a", annotationBytes)}
		for k := range textMaps {
			turn.OwnerReferences = append(turn.OwnerReferences, metav1.OwnerReference{
				APIVersion: "v1", Kind: "ConfigMap", Name: strings.Repeat("o", largeBytes/textMaps), UID: types.UID(fmt.Sprint(k)),
			})
		}
		return turn
	})
}

// attackTexts starts Turns that each read several megabytes of ConfigMaps, and whose prompts have several hundred KB.
func attackTexts(ctx context.Context, a *attacker) error {
	profile := newProfile(a.namespace)
	profile.Name = "reader"
	for m := range textMaps {
		texts := &corev1.ConfigMap{ObjectMeta: a.own(fmt.Sprintf("texts-%d", m)), Data: map[string]string{}}
		for k := range largeBytes / skillChars {
			texts.Data[fmt.Sprintf("skill-%d", k)] = strings.Repeat("s", skillChars)
		}
		if err := a.createAll(ctx, texts); err != nil {
			return err
		}
		profile.Spec.Skills = append(profile.Spec.Skills, v1alpha1.Skill{
			Key: texts.Name, Description: "A long skill.", ContentFrom: &v1alpha1.ContentSource{
				ConfigMapKeyRef: v1alpha1.ConfigMapKeyReference{Name: texts.Name, Key: "skill-0"},
			},
		})
	}
	agent := a.agent("reader")
	agent.Spec.PromptProfileRef.Name = profile.Name
	return a.createAll(ctx, a.provider("reader", a.server.Answering(2*time.Second)), profile, agent)
}

func attackBurst(ctx context.Context, a *attacker) error {
	return a.createAll(ctx, a.provider("slow", a.server.Answering(2*time.Second)), a.agent("slow"))
}

// parseAttacks returns the attacks with these names, or all attacks if there are no names. sizes replaces the sizes of
// single attacks.
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
