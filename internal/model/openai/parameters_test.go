package openai_test

import (
	"encoding/json"
	"net/http"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/capstan-dev/capstan/internal/model/openai"
	"github.com/capstan-dev/capstan/internal/runtime/model"
)

// TestParametersInEachDialect checks the fields of parameters on the wire, in each dialect that has them.
func TestParametersInEachDialect(t *testing.T) {
	parameters := func(change ...func(*model.Parameters)) model.Parameters {
		p := model.Parameters{
			Stop: []string{"END", "\n\n"}, Effort: "high", Extra: []model.ExtraField{{Name: "top_p", Value: "0.5"}},
		}
		for _, f := range change {
			f(&p)
		}
		return p
	}
	seed := func(p *model.Parameters) { p.Seed = new(int64(0)) } // zero is a seed, too
	tier := func(name string) func(*model.Parameters) {
		return func(p *model.Parameters) { p.ServiceTier = name }
	}
	const stop = `"stop":["END","\n\n"],"top_p":0.5`
	const effort, plainSeed = `"reasoning_effort":"high",`, `"seed":0,`
	for dialect, tc := range map[string]struct {
		parameters model.Parameters
		want       string
	}{
		"Generic":     {parameters(seed, tier("gold")), effort + plainSeed + `"service_tier":"gold",` + stop},
		"OpenAI":      {parameters(seed, tier("flex")), effort + plainSeed + `"service_tier":"flex",` + stop},
		"AzureOpenAI": {parameters(seed, tier("priority")), effort + plainSeed + `"service_tier":"priority",` + stop},
		"VLLM":        {parameters(seed), effort + plainSeed + stop},
		"SGLang":      {parameters(seed), effort + plainSeed + stop},
		"Ollama":      {parameters(seed), effort + plainSeed + stop},
		"LlamaCpp":    {parameters(seed), effort + plainSeed + stop},
		"LMStudio":    {parameters(seed), effort + plainSeed + stop},
		"LiteLLM":     {parameters(seed, tier("flex")), effort + plainSeed + `"service_tier":"flex",` + stop},
		"Mistral":     {parameters(seed), `"random_seed":0,` + effort + stop},
		"DeepSeek":    {parameters(), effort + stop},
		"Moonshot":    {parameters(), stop[:len(stop)-len(`"top_p":0.5`)] + `"thinking":{"type":"enabled"},"top_p":0.5`},
		"Gemini":      {parameters(tier("flex")), effort + `"service_tier":"flex",` + stop},
		"OpenRouter":  {parameters(seed, tier("flex")), effort + plainSeed + `"service_tier":"flex",` + stop},
		"XAI":         {parameters(seed), effort + plainSeed + stop},
		"Groq":        {parameters(seed, tier("on_demand")), effort + plainSeed + `"service_tier":"on_demand",` + stop},
		"Cohere":      {parameters(seed), effort + plainSeed + stop},
		"Bedrock":     {parameters(seed), effort + plainSeed + stop},
	} {
		t.Run(dialect, func(t *testing.T) {
			req := request("hello")
			req.Parameters = tc.parameters
			if diff := cmp.Diff("{"+tc.want+"}", sentParameters(t, req, openai.DialectOf(dialect, ""))); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}
}

// TestReasoningOnAndOff checks how each form of the setting for reasoning turns it on and off.
func TestReasoningOnAndOff(t *testing.T) {
	for dialect, tc := range map[string]struct {
		form    openai.ThinkingForm
		on, off string
	}{
		"VLLM": {
			openai.ThinkingTemplate, `{"chat_template_kwargs":{"enable_thinking":true}}`,
			`{"chat_template_kwargs":{"enable_thinking":false}}`,
		},
		"Moonshot": {openai.ThinkingSwitch, `{"thinking":{"type":"enabled"}}`, `{"thinking":{"type":"disabled"}}`},
		"OpenAI":   {openai.ThinkingEffort, `{"reasoning_effort":"high"}`, `{"reasoning_effort":"none"}`},
		"Mistral":  {openai.ThinkingEffort, `{"reasoning_effort":"high"}`, `{"reasoning_effort":"none"}`},
	} {
		t.Run(dialect, func(t *testing.T) {
			d := openai.DialectOf(dialect, "")
			d.Thinking = tc.form
			for effort, want := range map[string]string{"high": tc.on, model.EffortNone: tc.off, "": "{}"} {
				req := request("hello")
				req.Parameters.Effort = effort
				if diff := cmp.Diff(want, sentParameters(t, req, d)); diff != "" {
					t.Errorf("effort %q: -want +got:\n%s", effort, diff)
				}
			}
		})
	}
}

// sentParameters sends a request and returns the fields of its body that are parameters, sorted by their names.
func sentParameters(t *testing.T, req model.Request, d openai.Dialect) string {
	t.Helper()
	var body map[string]json.RawMessage
	url := serve(t, func(w http.ResponseWriter, r *http.Request) {
		if err := json.NewDecoder(r.Body).Decode(&body); err != nil {
			t.Errorf("request: %v", err)
		}
		respond(200, events(delta(`"content":"yes"`), finishEvent("stop"), "[DONE]"), stream)(w, r)
	})
	if _, err := generate(t.Context(), provider(t, url, withDialect(d)), req); err != nil {
		t.Fatalf("Generate: %v", err)
	}
	for _, name := range []string{"model", "messages", "stream", "stream_options"} {
		delete(body, name)
	}
	text, err := json.Marshal(body)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// TestUnsupportedParameterIsNotSent checks that the adapter refuses an unsupported parameter that no earlier check has
// refused.
func TestUnsupportedParameterIsNotSent(t *testing.T) {
	url := serve(t, func(http.ResponseWriter, *http.Request) { t.Error("a request was sent") })
	req := request("hello")
	req.Parameters.Seed = new(int64(1))
	const want = `provider "demo": the request cannot be sent: seed: the service of this dialect has no seed: remove it`
	for _, dialect := range []string{"DeepSeek", "Moonshot", "Gemini"} {
		_, err := generate(t.Context(), provider(t, url, withDialect(openai.DialectOf(dialect, ""))), req)
		if e := model.AsError(err); e.Kind != model.InvalidRequest || !e.Unsent || e.Message != want {
			t.Errorf("%s: error %+v, want %q", dialect, e, want)
		}
	}
}
