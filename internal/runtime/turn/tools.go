package turn

import (
	"context"
	"encoding/json"
	"slices"

	"github.com/capstan-dev/capstan/internal/runtime/canonical"
	"github.com/capstan-dev/capstan/internal/runtime/prompt"
	"github.com/capstan-dev/capstan/internal/runtime/template"
	"github.com/capstan-dev/capstan/internal/runtime/tool"
)

// tools are those that the Turn was given and Capstan's own. load_skill is among them also where the prompt offers no skill:
// it then says so.
func (r *run) tools() []tool.Tool {
	return append(slices.Clip(r.in.Tools), tool.Tool{Tool: prompt.LoadSkill(), Effect: tool.ReadOnly, Caller: tool.CallerFunc(r.loadSkill)})
}

// loadSkill is the tool load_skill: it returns a skill as it was when the prompt was made.
func (r *run) loadSkill(_ context.Context, c tool.Call) (tool.Result, error) {
	var arguments struct {
		Key string `json:"key"`
	}
	if err := json.Unmarshal(c.Arguments, &arguments); err != nil {
		return tool.Result{}, &tool.Error{Class: tool.InvalidArguments, Message: `the arguments must be {"key": "..."}`, Err: err}
	}
	var available []prompt.Skill
	if p := r.past.prepared; p != nil {
		for _, s := range p.Skills {
			available = append(available, prompt.Skill{Key: s.Key, Name: s.Name, Content: template.Text{Body: s.Content}})
		}
	}
	s, err := prompt.FindSkill(available, arguments.Key)
	if err != nil {
		return tool.Result{}, &tool.Error{Class: tool.InvalidArguments, Message: err.Error(), Err: err}
	}
	content, err := canonical.JSON(map[string]string{"key": s.Key, "name": s.Name, "content": s.Content.Body}) // which leaves < and & as they are
	return tool.Result{Content: string(content)}, err
}
