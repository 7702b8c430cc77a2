package outputpolicy

import (
	"errors"
	"fmt"
	"slices"

	"github.com/google/cel-go/cel"
	"github.com/google/cel-go/common/types"

	"github.com/capstan-dev/capstan/internal/runtime/citation"
	"github.com/capstan-dev/capstan/internal/runtime/expression"
)

// Output is an answer as expressions see it.
type Output struct {
	// Text is the whole answer.
	Text string
	// Data is the decoded JSON of a structured answer, or nil if there is none.
	Data any
	// Usage is the usage of the Turn up to the answer, without its sub-agents.
	Usage Usage
	// Citations are the sources of the answer.
	Citations Citations
}

// Usage is the number of tokens that the requests of a Turn have used.
type Usage struct {
	InputTokens, OutputTokens, ReasoningTokens, CacheReadTokens, CacheCreationTokens int64
	// Cost is the cost of the requests, or nil if it is not known.
	Cost *float64
}

// Citations are the sources of an answer.
type Citations struct {
	// Local are the sources of the facts that the Turn received, and the documents that searches of local data found.
	Local []string
	// Web are the pages that web searches found.
	Web []citation.Page
}

// The names of the types in messages about invalid expressions.
const (
	typeOutput    = "Output"
	typeUsage     = "Usage"
	typeCitations = "Citations"
)

// field is one field of a type: its own type, and the function that reads it.
type field struct {
	kind *cel.Type
	get  func(any) any
}

// answer is an Output as CEL reads it. In expressions, it has the types Output and Citations. An expression can read a
// field many times, so the pages are converted only once, before the evaluation. Output is a pointer, because the error
// of CEL for an expression that uses the whole answer as a value is a text with the values of all fields. Of a pointer,
// it has only the address.
type answer struct {
	*Output
	pages []map[string]string
}

func newAnswer(o *Output) *answer {
	a := &answer{Output: o, pages: make([]map[string]string, 0, len(o.Citations.Web))}
	for _, p := range o.Citations.Web {
		a.pages = append(a.pages, map[string]string{"title": p.Title, "url": p.URL})
	}
	return a
}

// fields lists the fields of each type that expressions can see.
var fields = map[string]map[string]field{
	typeOutput: {
		"text":      {cel.StringType, get(func(a *answer) any { return a.Text })},
		"data":      {cel.DynType, get(func(a *answer) any { return a.Data })},
		"usage":     {cel.ObjectType(typeUsage), get(func(a *answer) any { return &a.Usage })},
		"citations": {cel.ObjectType(typeCitations), get(func(a *answer) any { return a })},
	},
	typeUsage: {
		"inputTokens":         {cel.IntType, get(func(u *Usage) any { return u.InputTokens })},
		"outputTokens":        {cel.IntType, get(func(u *Usage) any { return u.OutputTokens })},
		"totalTokens":         {cel.IntType, get(func(u *Usage) any { return u.InputTokens + u.OutputTokens })},
		"reasoningTokens":     {cel.IntType, get(func(u *Usage) any { return u.ReasoningTokens })},
		"cacheReadTokens":     {cel.IntType, get(func(u *Usage) any { return u.CacheReadTokens })},
		"cacheCreationTokens": {cel.IntType, get(func(u *Usage) any { return u.CacheCreationTokens })},
		"cost": {cel.DynType, get(func(u *Usage) any {
			if u.Cost == nil {
				return nil
			}
			return *u.Cost
		})},
	},
	typeCitations: {
		"local": {cel.ListType(cel.StringType), get(func(a *answer) any { return a.Citations.Local })},
		"web": {
			cel.ListType(cel.MapType(cel.StringType, cel.StringType)), get(func(a *answer) any { return a.pages }),
		},
	},
}

// errNoObject is returned if an object does not have the type that the type checker of expressions has determined.
var errNoObject = errors.New("there is no such object")

// get returns a function that reads a field of an object.
func get[T any](read func(*T) any) func(any) any {
	return func(object any) any {
		if o, ok := object.(*T); ok {
			return read(o)
		}
		return errNoObject
	}
}

// provider adds the types of an answer to the standard types.
type provider struct{ *types.Registry }

// FindStructType returns the type with this name.
func (p provider) FindStructType(name string) (*types.Type, bool) {
	if _, ok := fields[name]; ok {
		return types.NewTypeTypeWithParam(types.NewObjectType(name)), true
	}
	return p.Registry.FindStructType(name)
}

// FindStructFieldNames returns the fields of a type.
func (p provider) FindStructFieldNames(name string) ([]string, bool) {
	if of, ok := fields[name]; ok {
		return sortedNames(of), true
	}
	return p.Registry.FindStructFieldNames(name)
}

// FindStructFieldType returns the type of a field, with the functions that read it.
func (p provider) FindStructFieldType(name, fieldName string) (*types.FieldType, bool) {
	of, ok := fields[name]
	if !ok {
		return p.Registry.FindStructFieldType(name, fieldName)
	}
	f, ok := of[fieldName]
	if !ok {
		return nil, false
	}
	return &types.FieldType{
		Type:  f.kind,
		IsSet: func(object any) bool { return f.get(object) != nil },
		GetFrom: func(object any) (any, error) {
			value := f.get(object)
			if err, failed := value.(error); failed {
				return nil, err
			}
			return value, nil
		},
	}, true
}

func sortedNames(of map[string]field) []string {
	names := make([]string, 0, len(of))
	for name := range of {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// newEnv returns the environment of expressions, with the variable output.
func newEnv() (*cel.Env, error) {
	registry, err := types.NewRegistry()
	if err != nil {
		return nil, fmt.Errorf("failed to make the types of expressions: %w", err)
	}
	return expression.NewEnv(
		cel.CustomTypeAdapter(registry), cel.CustomTypeProvider(provider{registry}),
		cel.Variable("output", cel.ObjectType(typeOutput)),
	)
}
