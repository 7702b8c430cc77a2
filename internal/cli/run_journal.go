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

// journalFile is the name of the journal in --data-dir. It differs from the manager's journal, because a manager
// deletes the journals of Turns that its cluster does not have.
const journalFile = "capstan-run.db"

// store is a SQLite store, which may be temporary.
type store struct {
	*sqlite.Store
	// temporary is the folder to remove at the end. It is empty if the journal is kept.
	temporary string
}

// openStore opens the journal of --data-dir, or a temporary one. Only the owner can read either.
func (r *runCommand) openStore(ctx context.Context) (*store, error) {
	dir, temporary := r.dataDir, ""
	if dir == "" {
		var err error
		if dir, err = os.MkdirTemp("", "capstan-run-"); err != nil {
			return nil, fmt.Errorf("failed to create a folder for the journal: %w", err)
		}
		temporary = dir
	}
	s, err := sqlite.Open(ctx, filepath.Join(dir, journalFile))
	if err != nil {
		if temporary != "" {
			err = errors.Join(err, os.RemoveAll(temporary))
		}
		if errors.Is(err, sqlite.ErrInUse) {
			err = fmt.Errorf("%w; another capstan run uses the same --data-dir: wait for it, or use another folder", err)
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

// earlierRuns describes the earlier runs of a Turn. It is the zero value if there were none.
type earlierRuns struct {
	// first and last are the first and the last entry of the journal.
	first, last journal.Entry
}

// earlierRuns reads the first and the last entry of a Turn's journal.
func (s *store) earlierRuns(ctx context.Context, uid string) (earlierRuns, error) {
	var p earlierRuns
	for e, err := range s.Read(ctx, uid, 0) {
		if err != nil {
			return earlierRuns{}, fmt.Errorf("failed to read the journal: %w", err)
		}
		if p.last = e; e.Seq == 1 {
			p.first = e
		}
	}
	return p, nil
}

// identity returns the UID of the Turn. The same inputs give the same UID, and any change gives another one.
// desiredState, the time to live and Secrets do not count as inputs: they do not change the run, and Secrets may be
// rotated.
func (p *bundle) identity(ctx context.Context, now time.Time) (types.UID, error) {
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
		// ToolServers and SubAgents are those that the Turn may use, directly or through sub-agents.
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

// subAgentSpec holds the objects that define a sub-agent.
type subAgentSpec struct {
	Agent       v1alpha1.AgentSpec
	Profile     string
	ProfileSpec v1alpha1.PromptProfileSpec
}

// uidOf returns the UID that these bytes identify.
func uidOf(data []byte) types.UID {
	const version = 8 // UUID version 8: the vendor defines how it is made
	return types.UID(uuid.NewHash(sha256.New(), uuid.Nil, data, version).String())
}

// contents returns the values that the objects take from ConfigMaps, by name and key; a missing value is nil. It
// prepares the messages and records which keys are read. If that fails, the run fails with the same error and
// reports it.
func (p *bundle) contents(ctx context.Context, now time.Time) map[string]*string {
	for _, member := range p.team {
		_, _ = translate.Preparation(ctx, member.objects(), now)
	}
	found := make(map[string]*string, len(p.read))
	for ref, value := range p.read {
		found[ref.Name+"/"+ref.Key] = value
	}
	return found
}

// binding is the assignment of a Turn to one run.
type binding struct {
	epoch int64
	clock func() time.Time
	// ended is when the Turn ended in an earlier run. It is zero if the Turn had not ended.
	ended time.Time
}

// end returns when the Turn ended: in an earlier run, or else now.
func (b binding) end() time.Time {
	if b.ended.IsZero() {
		return b.clock()
	}
	return b.ended
}

// bind binds a Turn to this run. An unfinished Turn gets a new epoch and its full time again, as after a
// suspension. A finished Turn is shown with its old epoch and times.
func (r *runCommand) bind(t *v1alpha1.Turn, p earlierRuns) binding {
	b := boundAfter(p, r.clock())
	if !b.ended.IsZero() {
		r.env.tell("note: the Turn ended at %s and does not run again: to run it again, change it or delete %s",
			b.ended.Format(time.RFC3339), filepath.Join(r.dataDir, journalFile))
	}
	b.write(t, p)
	return b
}

// boundAfter returns the binding that follows the earlier runs of a Turn.
func boundAfter(p earlierRuns, clock func() time.Time) binding {
	if p.last.Kind == journal.Finalized {
		return binding{epoch: p.last.Epoch, clock: clock, ended: p.last.Time}
	}
	return binding{epoch: p.last.Epoch + 1, clock: clock}
}

// write writes into the status what a cluster writes when it binds a Turn.
func (b binding) write(t *v1alpha1.Turn, p earlierRuns) {
	now := b.end()
	start := metav1.NewMicroTime(now)
	if !b.ended.IsZero() {
		start = metav1.NewMicroTime(p.first.Time)
	}
	translate.Wait(t, v1alpha1.TurnReasonRunning, fmt.Sprintf("bound to executor %q", executorName), now)
	t.Status.StartTime = &start
	t.Status.Executor = &v1alpha1.ExecutorBinding{Name: executorName, Epoch: b.epoch}
}
