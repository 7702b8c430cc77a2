package parity_test

import (
	"encoding/json"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/runtime/journal"
	"github.com/capstan-dev/capstan/internal/runtime/model"
	"github.com/capstan-dev/capstan/internal/runtime/prepare"
	"github.com/capstan-dev/capstan/internal/runtime/prompt"
	"github.com/capstan-dev/capstan/internal/runtime/turncontext"
	"github.com/capstan-dev/capstan/internal/store/sqlite"
)

// rendering is the part of the output of `capstan render -o json` that a Turn in a cluster also has.
type rendering struct {
	Messages    []model.Message      `json:"messages"`
	Tools       []prompt.Tool        `json:"tools"`
	Preparation v1alpha1.Preparation `json:"preparation"`
	Assembly    turncontext.Assembly `json:"assembly"`
}

// expectPromptOfRender compares a finished Turn with the rendering of the same manifests at the Turn's start time.
// It compares the frozen prompt in the journal and the preparation in the status.
func (c cluster) expectPromptOfRender(t *testing.T, turn *v1alpha1.Turn, namespace, dir string) {
	t.Helper()
	if turn.Status.StartTime == nil || turn.Status.Preparation == nil {
		t.Fatalf("the Turn was not prepared: %+v", turn.Status)
	}
	want := read[rendering](t, capstan(t, "render", "-f", dir, "--namespace", namespace, "-o", "json", "--discover",
		"--now", turn.Status.StartTime.Format(time.RFC3339Nano)))

	all := c.frozenPrompts(t, turn)
	if diff := cmp.Diff(want.Tools, all[0].Tools, cmpopts.EquateEmpty()); diff != "" {
		t.Errorf("the tools of the prompt differ in the cluster: -capstan render +journal:\n%s", diff)
	}
	if n := len(turn.Status.ToolCalls); n > 0 && turn.Status.ToolCalls[0].Step == 0 {
		// Only a run calls the tools that fill the context. Without them, only the system prompt can be compared.
		want.Messages, all[0].Messages = want.Messages[:1], all[0].Messages[:1]
		if diff := cmp.Diff(want.Messages, all[0].Messages); diff != "" {
			t.Errorf("the messages of the prompt differ in the cluster: -capstan render +journal:\n%s", diff)
		}
		return
	}
	// Later prompts are for fallback models. render uses the first model of the chain.
	if diff := cmp.Diff(want.Messages, all[0].Messages); diff != "" {
		t.Errorf("the messages of the prompt differ in the cluster: -capstan render +journal:\n%s", diff)
	}
	if diff := cmp.Diff(want.Assembly, all[0].Assembly); diff != "" {
		t.Errorf("the assembly of the prompt differs in the cluster: -capstan render +journal:\n%s", diff)
	}
	if len(all) > 1 {
		return
	}
	got := *turn.Status.Preparation
	got.PromptProfile.Generation = 0 // without a cluster there is no generation
	if diff := cmp.Diff(want.Preparation, got); diff != "" {
		t.Errorf("the reported preparation differs: -capstan render +status:\n%s", diff)
	}
}

// frozenPrompts returns all prompts of a Turn in the manager's journal, oldest first.
func (c cluster) frozenPrompts(t *testing.T, turn *v1alpha1.Turn) []prepare.Prepared {
	t.Helper()
	store, err := sqlite.OpenReader(t.Context(), filepath.Join(c.dataDir, "journal.db"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := store.Close(); err != nil {
			t.Error(err)
		}
	}()
	entries, err := journal.Collect(t.Context(), store, string(turn.UID))
	if err != nil {
		t.Fatal(err)
	}
	var all []prepare.Prepared
	for _, e := range entries {
		if e.Kind != journal.Prepared {
			continue
		}
		var p prepare.Prepared
		if err := json.Unmarshal(e.Payload, &p); err != nil {
			t.Fatal(err)
		}
		all = append(all, p)
	}
	if len(all) == 0 {
		t.Fatalf("the journal has no entry %q for the Turn", journal.Prepared)
	}
	return all
}
