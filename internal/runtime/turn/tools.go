package turn

import (
	"context"
	"encoding/json"
	"slices"
	"sync"

	"github.com/capstan-dev/capstan/internal/runtime/prompt"
	"github.com/capstan-dev/capstan/internal/runtime/template"
	"github.com/capstan-dev/capstan/internal/runtime/tool"
)

// tools returns the tools of the input, the exposed tools and Capstan's own. load_skill and read_artifact are
// always there: without a skill or an artifact, they return an error that says so.
func (r *run) tools() []tool.Tool {
	exposed := r.exposed().Tools
	all := append(make([]tool.Tool, 0, len(r.in.Tools)+len(exposed)+2), r.in.Tools...) // with exactly the needed capacity
	for _, t := range exposed {
		all = append(all, r.withCaller(t))
	}
	read, load := ownTools()
	read.Caller, load.Caller = tool.CallerFunc(r.readArtifact), tool.CallerFunc(r.loadSkill)
	return append(all, read, load)
}

// ownTools returns the tools read_artifact and load_skill without their Callers. All Turns share their schemas.
var ownTools = sync.OnceValues(func() (read, load tool.Tool) {
	read = tool.Tool{Tool: prompt.ReadArtifact(), Effect: tool.ReadOnly}
	load = tool.Tool{Tool: prompt.LoadSkill(), Effect: tool.ReadOnly, Trusted: true}
	for _, t := range []*tool.Tool{&read, &load} {
		t.Shown, _ = t.JSONSchema() // if it fails, ShownSchema tries again and returns the error
	}
	return read, load
})

// offers reports whether the prompt offers a tool. It offers Capstan's own tools only if they have something to
// return.
func (r *run) offers(name string) bool {
	p := r.replayed.prompt
	return p == nil || !slices.Contains(tool.Reserved(), name) ||
		slices.ContainsFunc(p.Tools, func(t prompt.Tool) bool { return t.Name == name })
}

// loadSkill implements the tool load_skill. It returns a skill as it was when the prompt was made.
func (r *run) loadSkill(_ context.Context, c tool.Call) (tool.Result, error) {
	var arguments struct {
		Key string `json:"key"`
	}
	if err := json.Unmarshal(c.Arguments, &arguments); err != nil {
		return tool.Result{}, &tool.Error{Class: tool.InvalidArguments, Message: `the arguments must be {"key": "..."}`, Err: err}
	}
	var available []prompt.Skill
	if p := r.replayed.prompt; p != nil {
		for _, s := range p.Skills {
			available = append(available, prompt.Skill{Key: s.Key, Name: s.Name, Content: template.Text{Body: s.Content}})
		}
	}
	s, err := prompt.FindSkill(available, arguments.Key)
	if err != nil {
		return tool.Result{}, &tool.Error{Class: tool.InvalidArguments, Message: err.Error(), Err: err}
	}
	content, err := s.Result()
	return tool.Result{Content: content}, err
}
