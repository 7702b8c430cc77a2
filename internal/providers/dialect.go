package providers

import (
	"fmt"
	"slices"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/model/anthropic"
	"github.com/capstan-dev/capstan/internal/model/endpoint"
	"github.com/capstan-dev/capstan/internal/model/openai"
	"github.com/capstan-dev/capstan/internal/runtime/model"
)

// systemPlaces, callIDForms, returnedData, effortForms and seedNames map values of the API to values of the adapter.
var (
	systemPlaces = map[v1alpha1.SystemMessages]openai.SystemPlace{
		v1alpha1.SystemMessagesInPlace:       openai.SystemInPlace,
		v1alpha1.SystemMessagesBeforeReplies: openai.SystemBeforeReplies,
		v1alpha1.SystemMessagesMerged:        openai.SystemMerged,
	}
	callIDForms = map[v1alpha1.ToolCallIDForm]endpoint.CallIDForm{
		v1alpha1.ToolCallIDsAny:            endpoint.CallIDsAny,
		v1alpha1.ToolCallIDsPlain:          endpoint.CallIDsPlain,
		v1alpha1.ToolCallIDsNineCharacters: endpoint.CallIDsNine,
	}
	returnedData = map[v1alpha1.ReturnedData]openai.ReturnedData{
		v1alpha1.ReturnedDataNothing:           openai.ReturnNothing,
		v1alpha1.ReturnedDataReasoningContent:  openai.ReturnReasoningContent,
		v1alpha1.ReturnedDataReasoningDetails:  openai.ReturnReasoningDetails,
		v1alpha1.ReturnedDataThoughtSignatures: openai.ReturnSignatures,
	}
	effortForms = map[v1alpha1.ThinkingForm]openai.ThinkingForm{
		v1alpha1.ThinkingFormEffort:       openai.ThinkingEffort,
		v1alpha1.ThinkingFormSwitch:       openai.ThinkingSwitch,
		v1alpha1.ThinkingFormChatTemplate: openai.ThinkingTemplate,
	}
	seedNames = map[v1alpha1.SeedParameter]openai.SeedName{
		v1alpha1.SeedParameterSeed:       openai.SeedPlain,
		v1alpha1.SeedParameterRandomSeed: openai.SeedRandom,
		v1alpha1.SeedParameterNone:       openai.SeedNone,
	}
)

// CheckParameters returns the first parameter that cannot be sent to a model of a provider, or nil.
func CheckParameters(spec *v1alpha1.ModelProviderSpec, name string, p *model.Parameters) *model.Unsupported {
	if spec.Type == v1alpha1.ProviderTypeAnthropic {
		return anthropic.Check(name, p, anthropicOptions(spec))
	}
	d := dialectOf(spec)
	return openai.Check(name, p, &d)
}

// TakesSchemas reports whether the endpoint of a provider accepts the schema of an answer, and whether its models can
// call tools in the same request.
func TakesSchemas(spec *v1alpha1.ModelProviderSpec) (alone, withTools bool) {
	if spec.Type == v1alpha1.ProviderTypeAnthropic {
		return true, true
	}
	d := dialectOf(spec)
	return !d.NoSchemas, !d.NoSchemas && !d.SchemasExcludeTools
}

// HasEmbeddings reports whether the protocol of a provider has embeddings.
func HasEmbeddings(spec *v1alpha1.ModelProviderSpec) bool {
	return spec.Type != v1alpha1.ProviderTypeAnthropic
}

// NoEmbeddings returns the message about a provider without embeddings.
func NoEmbeddings(name string, spec *v1alpha1.ModelProviderSpec) string {
	return fmt.Sprintf("ModelProvider %q has the type %s, whose protocol has no embeddings: name one of type %s in "+
		"spec.embeddings.providerRef, or remove spec.embeddings", name, spec.Type, v1alpha1.ProviderTypeOpenAI)
}

// Accepts returns the images and files that a model of a provider accepts: the types that its endpoint accepts and for
// which the ModelProvider declares the capability of the model.
func Accepts(spec *v1alpha1.ModelProviderSpec, name string) model.Accepts {
	accepts := model.AnyAttachment()
	if spec.Type != v1alpha1.ProviderTypeAnthropic {
		accepts = openai.DialectOf(string(spec.Dialect), spec.BaseURL).Accepts
	}
	if r := spec.Requests; r != nil {
		replace(&accepts.Files, r.Files, v1alpha1.SwitchOn)
		switch {
		case r.Images == v1alpha1.SwitchOff:
			accepts.Images = nil
		case r.Images == v1alpha1.SwitchOn && len(accepts.Images) == 0:
			accepts.Images = model.AnyAttachment().Images
		}
	}
	capable := func(c v1alpha1.ModelCapability) bool {
		return slices.ContainsFunc(spec.Models, func(m v1alpha1.Model) bool { return m.Name == name && slices.Contains(m.Capabilities, c) })
	}
	accepts.Files = accepts.Files && capable(v1alpha1.CapabilityFiles)
	if !capable(v1alpha1.CapabilityImages) {
		accepts.Images = nil
	}
	return accepts
}

// DefaultOutput returns the output limit of a request to a model whose Agent sets none, or 0 if the request has none.
func DefaultOutput(spec *v1alpha1.ModelProviderSpec, name, effort string) int64 {
	if spec.Type != v1alpha1.ProviderTypeAnthropic {
		return 0
	}
	return int64(anthropicOptions(spec).DefaultOutput(name, effort))
}

// dialectOf returns the dialect of a provider with the settings that its spec replaces.
func dialectOf(spec *v1alpha1.ModelProviderSpec) openai.Dialect {
	d := openai.DialectOf(string(spec.Dialect), spec.BaseURL)
	r := spec.Requests
	if r == nil {
		return d
	}
	if r.OutputLimit != "" {
		d.UseMaxTokens = r.OutputLimit == v1alpha1.OutputLimitMaxTokens
	}
	if place, ok := systemPlaces[r.SystemMessages]; ok {
		d.System = place
	}
	if form, ok := callIDForms[r.ToolCallIDs]; ok {
		d.CallIDs = form
	}
	if data, ok := returnedData[r.ReturnedData]; ok {
		d.Returned = data
	}
	replace(&d.NoNames, r.MessageNames, v1alpha1.SwitchOff)
	replace(&d.NoStreamOptions, r.StreamOptions, v1alpha1.SwitchOff)
	replace(&d.StrictSchemas, r.StrictSchemas, v1alpha1.SwitchOn)
	replace(&d.DeveloperRole, r.DeveloperRole, v1alpha1.SwitchOn)
	replaceParameters(&d, r)
	if form, ok := effortForms[r.Thinking]; ok {
		d.Thinking, d.OnlyHighEffort = form, false // the user knows the models
	}
	d.APIVersion = r.APIVersion
	d.ParallelCalls = parallelCalls(r)
	d.Extra = extraFields(r)
	return d
}

// replaceParameters replaces the settings of a dialect for schemas, parameters and the end of an answer.
func replaceParameters(d *openai.Dialect, r *v1alpha1.RequestOptions) {
	if r.AnswerSchemas != "" {
		d.NoSchemas = r.AnswerSchemas == v1alpha1.AnswerSchemasNever
		d.SchemasExcludeTools = r.AnswerSchemas == v1alpha1.AnswerSchemasWithoutTools
	}
	if r.AnswerSchemaForm != "" {
		d.SchemaInJSONObject = r.AnswerSchemaForm == v1alpha1.AnswerSchemaFormJSONObject
	}
	if name, ok := seedNames[r.Seed]; ok {
		d.Seed = name
	}
	switch r.ServiceTiers {
	case v1alpha1.SwitchOn:
		d.Tiers = nil
	case v1alpha1.SwitchOff:
		d.Tiers = []string{}
	}
	switch r.StopSequences {
	case v1alpha1.SwitchOn:
		d.Stop = openai.StopAccepted
	case v1alpha1.SwitchOff:
		d.Stop = openai.StopRefused
	}
	replace(&d.OpenEnd, r.EndMarks, v1alpha1.SwitchOff)
}

// thinkingForms maps values of the API to values of the adapter.
var thinkingForms = map[v1alpha1.ThinkingForm]anthropic.ThinkingForm{
	v1alpha1.ThinkingFormBudget:   anthropic.ThinkingBudget,
	v1alpha1.ThinkingFormAdaptive: anthropic.ThinkingAdaptive,
}

// anthropicOptions returns the options for requests in the Messages protocol of Anthropic.
func anthropicOptions(spec *v1alpha1.ModelProviderSpec) *anthropic.Options {
	o := &anthropic.Options{MaxOutput: map[string]int{}}
	for i := range spec.Models {
		if most := spec.Models[i].MaxOutputTokens; most != nil {
			o.MaxOutput[spec.Models[i].Name] = int(*most)
		}
	}
	r := spec.Requests
	if r == nil {
		return o
	}
	o.Thinking = thinkingForms[r.Thinking]
	replace(&o.StrictSchemas, r.StrictSchemas, v1alpha1.SwitchOn)
	o.ParallelCalls = parallelCalls(r)
	o.Extra = extraFields(r)
	return o
}

// parallelCalls returns whether the model may call several tools in one reply, or nil if the endpoint decides.
func parallelCalls(r *v1alpha1.RequestOptions) *bool {
	if r.ParallelToolCalls == "" {
		return nil
	}
	return new(r.ParallelToolCalls == v1alpha1.SwitchOn)
}

// extraFields returns the further fields of a request's body.
func extraFields(r *v1alpha1.RequestOptions) []model.ExtraField {
	var all []model.ExtraField
	for _, f := range r.ExtraFields {
		all = append(all, model.ExtraField{Name: f.Name, Value: f.Value})
	}
	return all
}

// replace sets a value if a switch is given. The value becomes true if the switch has this position, and otherwise
// false.
func replace(value *bool, given, position v1alpha1.Switch) {
	if given != "" {
		*value = given == position
	}
}
