// Package server is a fake model: an HTTP server for the OpenAI chat-completions format, with and without
// streaming. It computes its answers from the requests by rules. Tests and benchmarks serve it over real HTTP:
//
//	cfg, err := server.ParseConfig([]byte(`rules: [{reply: {text: "Hello, {{ .User }}"}}]`))
//	fake, err := server.New(cfg)
//	web := httptest.NewServer(fake)
//	defer web.Close()
//	defer fake.Close() // runs before web.Close, which would otherwise wait for hangs
//	baseURL := web.URL + "/v1"
//	err = fake.Wait(ctx, func(s server.Stats) bool { return s.InFlight == 1 })
//
// It serves POST /v1/chat/completions, POST /v1/embeddings, GET /v1/models and GET /v1/models/{model}. It also has
// endpoints for the owner of the server, which require no key:
//
//   - GET /_fake/stats returns [Stats].
//   - GET /_fake/requests returns a list of [Request].
//   - GET /_fake/billing returns a list of [Bill].
//   - PUT /_fake/rules replaces the configuration with the rules file in the body.
//   - POST /_fake/reset resets the counts, the requests, the bills and the match counts of the rules.
//
// The server checks requests as the real API does: the names and schemas of tools and of the answer, and the length
// of the messages if contextTokens bounds it. Each tool call must be answered exactly once, directly after the
// assistant's message that contains the call. Anything else is a 400 with the real API's message.
//
// # Rules files
//
// A rules file is YAML or JSON with the fields of [Config]; an unknown field is an error. The first rule whose
// conditions all hold defines the response. If there is no such rule, the answer repeats the last user message.
//
//	apiKeys: [demo-key]           # accepted bearer tokens; if empty, no key is required
//	models: [demo-small]          # other models get a 404 model_not_found; if empty, all are served
//	contextTokens: 8000           # longer prompts get a 400 context_length_exceeded
//	rules:
//	- when: {contains: weather}   # see When for all conditions
//	  times: 1                    # only the first matching request; later ones use the rules below
//	  reply:
//	    toolCalls:
//	    - name: forecast
//	      arguments: '{"place": "Paris"}'
//	- when: {matches: '(?i)^slow'}
//	  reply: {text: "{{ .User | upper }}", chunkChars: 4, usage: {cachedTokens: 8}}
//	  fault: {latencyMilliseconds: 300, chunkDelayMilliseconds: 20}
//	- when: {model: demo-small, contains: busy}
//	  fault: {status: 429, retryAfterSeconds: 2}
//	- when: {contains: stuck}
//	  fault: {hang: AfterHeaders}
//	- when: {systemContains: "You translate"}
//	  reply: {text: "{{ len .System }} system texts, {{ .Count \"user\" }} messages of the user"}
//
//	- when: {responseFormat: json_schema}
//	  reply: {text: '{"capital": "Oslo"}', reasoning: "Norway, then.", reasoningField: reasoning}
//
// [When], [Reply] and [Fault] describe every field. Token counts are estimates: four characters are a token,
// rounded up.
//
// # Conversations of several steps
//
// The number of tool messages after the last user message shows how far a conversation is. These rules call the
// tool count three times, one call per step, and then answer. They answer earlier if a request offers no tools. To
// get more steps, change the number.
//
//	rules:
//	- when: {contains: "turn=", toolMessages: 3}
//	  reply: {text: "Counted to {{ .ToolMessages }}."}
//	- when: {contains: "turn=", hasTools: true}
//	  reply:
//	    toolCalls:
//	    - name: count
//	      arguments: '{"turn": {{ first "turn=(\\S+)" .User | json }}, "step": {{ add .ToolMessages 1 }}}'
//	- when: {contains: "turn="}
//	  reply: {text: "Counted to {{ .ToolMessages }} only."}
//
// # Templates
//
// A reply's text and reasoning, and the arguments of a tool call, are Go templates over a [View]. In addition to the
// functions of text/template there are:
//
//	add a b, sub a b        the sum and the difference of whole numbers
//	join list sep           the texts of a list, with sep between
//	lower, upper, trim      as in package strings
//	trimEnd cutset text     text without the characters of cutset at its end
//	contains text part      whether part is within text
//	truncate n text         at most n characters, the last an ellipsis if text was longer
//	groups pattern text     every match of a regular expression, each as a list: the match, then its groups
//	first pattern text      the first group of the first match, or the whole match if the pattern has no groups
//	json value              a value as JSON, a text with its quotes
//	unescape text           &lt;, &amp; and other HTML entities as characters
//
// Every template must render for a request with a single user message. The server checks this when it loads the
// rules.
package server
