package cli

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/google/uuid"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/runtime/journal"
	"github.com/capstan-dev/capstan/internal/runtime/prepare"
	"github.com/capstan-dev/capstan/internal/store/sqlite"
	"github.com/capstan-dev/capstan/internal/translate"
)

// journalFile is the name of the journal in --data-dir. It is not the manager's, which forgets Turns that its cluster
// does not know.
const journalFile = "capstan-run.db"

// store is a journal that may be a temporary one.
type store struct {
	*sqlite.Store
	// temporary is the folder to remove at the end, empty for none.
	temporary string
}

// openStore opens the journal of --data-dir, or a temporary one. Both are readable by their owner only.
func (r *runner) openStore(ctx context.Context) (*store, error) {
	dir, temporary := r.dataDir, ""
	if dir == "" {
		var err error
		if dir, err = os.MkdirTemp("", "capstan-run-"); err != nil {
			return nil, fmt.Errorf("failed to make a folder for the journal: %w", err)
		}
		temporary = dir
	}
	s, err := sqlite.Open(ctx, filepath.Join(dir, journalFile))
	if err != nil {
		if temporary != "" {
			err = errors.Join(err, os.RemoveAll(temporary))
		}
		if errors.Is(err, sqlite.ErrInUse) {
			err = fmt.Errorf("%w; another capstan run works with the same --data-dir: wait for it, or use another folder", err)
		}
		return nil, err
	}
	return &store{Store: s, temporary: temporary}, nil
}

func (s *store) close() error {
	err := s.Close()
	if s.temporary != "" {
		err = errors.Join(err, os.RemoveAll(s.temporary))
	}
	if err != nil {
		return fail(ExitFailed, fmt.Errorf("failed to close the journal: %w", err))
	}
	return nil
}

// past is what a journal says of earlier runs; zero if there were none.
type past struct {
	// first and last are the first entry and the last one.
	first, last journal.Entry
}

// past reads how far the Turn has got.
func (s *store) past(ctx context.Context, uid string) (past, error) {
	var p past
	for e, err := range s.Read(ctx, uid, 0) {
		if err != nil {
			return past{}, fmt.Errorf("failed to read the journal: %w", err)
		}
		if p.last = e; e.Seq == 1 {
			p.first = e
		}
	}
	return p, nil
}

// identity returns the UID of the Turn: the same for the same inputs, another for any that differ. What does not bear on
// the run is no input: desiredState, the time to live, and Secrets, which may be rotated.
func (p *project) identity(ctx context.Context, now time.Time) (types.UID, error) {
	inputs := struct {
		Namespace, Turn, Agent, Profile string
		Now                             time.Time `json:",omitzero"`
		TurnSpec                        v1alpha1.TurnSpec
		AgentSpec                       v1alpha1.AgentSpec
		ProfileSpec                     v1alpha1.PromptProfileSpec
		Providers                       map[string]v1alpha1.ModelProviderSpec
		ConfigMaps                      map[string]*string `json:",omitempty"`
		ManagerSkills                   []prepare.Skill    `json:",omitempty"`
		Subject                         string             `json:",omitempty"`
		// ToolServers and SubAgents are those that the Turn may use, directly or by others.
		ToolServers map[string]v1alpha1.ToolServerSpec `json:",omitempty"`
		SubAgents   map[string]subAgentSpec            `json:",omitempty"`
	}{
		Namespace: p.turn.Namespace, Turn: p.turn.Name, Agent: p.agent.Name, Profile: p.profile.Name, Now: now.UTC(),
		TurnSpec: *p.turn.Spec.DeepCopy(), AgentSpec: p.agent.Spec, ProfileSpec: p.profile.Spec,
		Providers:  map[string]v1alpha1.ModelProviderSpec{},
		ConfigMaps: p.contents(ctx, now), ManagerSkills: p.skills,
		ToolServers: map[string]v1alpha1.ToolServerSpec{}, SubAgents: map[string]subAgentSpec{},
	}
	if p.session != nil {
		inputs.Subject = p.session.Spec.Subject
	}
	inputs.TurnSpec.DesiredState, inputs.TurnSpec.TTLSecondsAfterFinished = "", nil
	for name, member := range p.team {
		for _, m := range member.agent.Spec.Models {
			if object, ok := p.set.ModelProvider(p.turn.Namespace, m.ProviderRef.Name); ok {
				inputs.Providers[object.Name] = object.Spec
			}
		}
		for _, s := range member.servers() {
			inputs.ToolServers[s.Name] = s.Spec
		}
		if name != p.agent.Name {
			inputs.SubAgents[name] = subAgentSpec{member.agent.Spec, member.profile.Name, member.profile.Spec}
		}
	}
	data, err := json.Marshal(inputs)
	if err != nil {
		return "", fmt.Errorf("failed to identify the Turn: %w", err)
	}
	return uidOf(data), nil
}

// subAgentSpec is what makes a sub-agent.
type subAgentSpec struct {
	Agent       v1alpha1.AgentSpec
	Profile     string
	ProfileSpec v1alpha1.PromptProfileSpec
}

// uidOf is the UID of whatever these bytes identify.
func uidOf(data []byte) types.UID {
	const version = 8 // of UUIDs whose making is the maker's own
	return types.UID(uuid.NewHash(sha256.New(), uuid.Nil, data, version).String())
}

// contents returns what the objects refer to in ConfigMaps, by name and key, nil for what is missing. What is read to make
// the messages is what bears on them, so it is found by reading. Where that fails, the run will fail likewise and say why.
func (p *project) contents(ctx context.Context, now time.Time) map[string]*string {
	for _, member := range p.team {
		_, _ = translate.Preparation(ctx, member.objects(), now)
	}
	found := make(map[string]*string, len(p.read))
	for ref, value := range p.read {
		found[ref.Name+"/"+ref.Key] = value
	}
	return found
}

// binding is one run's hold on a Turn.
type binding struct {
	epoch int64
	clock func() time.Time
	// ended is when the Turn had ended already, zero if it had not.
	ended time.Time
}

// end returns when the Turn ended: now, if it had not before.
func (b binding) end() time.Time {
	if b.ended.IsZero() {
		return b.clock()
	}
	return b.ended
}

// bind takes hold of a Turn. One that had stopped gets a new epoch and its time anew, as after a suspension; one that had ended
// is shown with the epoch and the times it had.
func (r *runner) bind(t *v1alpha1.Turn, p past) binding {
	b := boundAfter(p, r.clock())
	if !b.ended.IsZero() {
		r.env.tell("note: the Turn had ended at %s and is not run again: change it, or remove %s, to run it anew",
			b.ended.Format(time.RFC3339), filepath.Join(r.dataDir, journalFile))
	}
	b.write(t, p)
	return b
}

// boundAfter is the hold on a Turn of which the journal knows this.
func boundAfter(p past, clock func() time.Time) binding {
	if p.last.Kind == journal.Finalized {
		return binding{epoch: p.last.Epoch, clock: clock, ended: p.last.Time}
	}
	return binding{epoch: p.last.Epoch + 1, clock: clock}
}

// write writes into the status what a cluster writes when it binds a Turn.
func (b binding) write(t *v1alpha1.Turn, p past) {
	now := b.end()
	start := metav1.NewMicroTime(now)
	if !b.ended.IsZero() {
		start = metav1.NewMicroTime(p.first.Time)
	}
	translate.Wait(t, v1alpha1.TurnReasonRunning, fmt.Sprintf("bound to executor %q", executorName), now)
	t.Status.StartTime = &start
	t.Status.Executor = &v1alpha1.ExecutorBinding{Name: executorName, Epoch: b.epoch}
}
