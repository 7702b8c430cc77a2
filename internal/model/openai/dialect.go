package openai

import (
	"cmp"
	"net/url"
	"regexp"
	"strings"

	"github.com/capstan-dev/capstan/internal/model/endpoint"
	"github.com/capstan-dev/capstan/internal/runtime/model"
)

// Dialect describes how the requests to an endpoint are written. The zero value is the protocol as OpenAI defines it.
type Dialect struct {
	// UseMaxTokens sends the output limit as max_tokens instead of max_completion_tokens.
	UseMaxTokens bool
	// System says where system messages may be.
	System SystemPlace
	// NoNames omits the names of system messages. Other messages never have names.
	NoNames bool
	// NoStreamOptions omits stream_options, which ask for the usage.
	NoStreamOptions bool
	// CallIDs is the form of the IDs of calls.
	CallIDs endpoint.CallIDForm
	// StrictSchemas marks the schemas of tools and of the answer as strict.
	StrictSchemas bool
	// ParallelCalls is sent with tools. If it is nil, the endpoint decides.
	ParallelCalls *bool
	// DeveloperRole sends system messages with the role developer.
	DeveloperRole bool
	// Returned is the part of replies that is sent back to the endpoint. If ReturnInLaterTurns is true, later Turns of
	// a Session send it, too.
	Returned           ReturnedData
	ReturnInLaterTurns bool
	// APIVersion is the api-version of Azure's deployment-based API. If it is empty, the URLs are those of OpenAI.
	APIVersion string
	// Seed is the name of the parameter for a seed.
	Seed SeedName
	// Tiers are the names of the service tiers that the endpoint accepts. If Tiers is nil, they are not known, and any
	// name is sent. If Tiers is empty but not nil, the endpoint has no tiers.
	Tiers []string
	// Thinking is the form of the setting for reasoning.
	Thinking ThinkingForm
	// OnlyHighEffort is true if models of the endpoint accept only the reasoning efforts high and none.
	OnlyHighEffort bool
	// NoSchemas is true if the endpoint refuses the schema of an answer. SchemasExcludeTools is true if the endpoint
	// accepts the schema, but refuses or ignores tools in the same request.
	NoSchemas, SchemasExcludeTools bool
	// InlineSchemas is true if the endpoint refuses references in the schemas of tools and answers, and required
	// properties that are not declared: see schema.Inline.
	InlineSchemas bool
	// SchemaInJSONObject sends the schema of an answer in a response_format of type json_object instead of json_schema.
	SchemaInJSONObject bool
	// Accepts are the images and files that the endpoint accepts, for models that can read them.
	Accepts model.Accepts
	// Stop says which models accept stop sequences.
	Stop StopSupport
	// OpenEnd is true if an answer may end without a finish reason and without [DONE]. All servers with a preset other
	// than Generic send one of them; LiteLLM adds one if the service behind it sends neither:
	// github.com/BerriAI/litellm/issues/40260. If OpenEnd is false, an answer without either counts as cut off, even if
	// the HTTP response ends properly: github.com/ollama/ollama/issues/17118.
	OpenEnd bool
	// ForbidsCalls is true if the endpoint supports the tool_choice none. A request whose tools must not be called then
	// has them, and otherwise lacks them: some servers ignore none, and others return calls as text.
	ForbidsCalls bool
	// NeedsTool is true if the endpoint may refuse calls in the messages of a request without tools. Such a request
	// then offers a tool that does nothing, unless SchemasExcludeTools excludes it.
	NeedsTool bool
	// OutputDimension sends the length of vectors as output_dimension instead of dimensions.
	OutputDimension bool
	// Extra are further fields of the body of a request. Their names differ from each other and from the names of other
	// fields.
	Extra []model.ExtraField
}

// SeedName is the name of the parameter for the seed.
type SeedName int

const (
	// SeedPlain sends seed.
	SeedPlain SeedName = iota
	// SeedRandom sends random_seed.
	SeedRandom
	// SeedNone means that the endpoint does not support a seed.
	SeedNone
)

// StopSupport says which models accept stop sequences.
type StopSupport int

const (
	// StopAccepted sends stop sequences to every model. If a model does not accept them, the endpoint refuses the
	// request.
	StopAccepted StopSupport = iota
	// StopByOpenAI means that the models are OpenAI's. Some of them refuse stop sequences.
	StopByOpenAI
	// StopRefused means that no model accepts stop sequences.
	StopRefused
)

// ThinkingForm is the form of the setting for reasoning.
type ThinkingForm int

const (
	// ThinkingEffort sends reasoning_effort.
	ThinkingEffort ThinkingForm = iota
	// ThinkingSwitch sends thinking with the type enabled or disabled. It has no levels.
	ThinkingSwitch
	// ThinkingTemplate sends enable_thinking to the chat template of the model. It has no levels: whether a template
	// accepts effort levels, and which, depends on the model.
	ThinkingTemplate
)

// refusesStop matches the models of OpenAI that refuse stop sequences: github.com/huggingface/smolagents/pull/1662 and
// github.com/EleutherAI/lm-evaluation-harness/pull/3215.
var refusesStop = regexp.MustCompile(`^(o3|o4-mini|gpt-5|gpt-5-mini|gpt-5-nano)(-20\d{2}-\d{2}-\d{2})?$`)

// noTiers are the service tiers of an endpoint without tiers.
var noTiers = []string{}

// SystemPlace says where system messages may be.
type SystemPlace int

const (
	// SystemInPlace allows system messages anywhere.
	SystemInPlace SystemPlace = iota
	// SystemBeforeReplies allows system messages before the first message of the assistant or of a tool.
	SystemBeforeReplies
	// SystemMerged allows a single system message, at the front.
	SystemMerged
)

// Generic is the name of the dialect for unknown servers. Most servers accept it.
const Generic = "Generic"

// nameOpenAI is the name of the dialect of OpenAI itself. voyage is the name of the dialect of Voyage, which a
// ModelProvider cannot name: it follows from the host.
const (
	nameOpenAI = "OpenAI"
	voyage     = "Voyage"
)

// generic is Generic without SchemasExcludeTools and OpenEnd. Chat templates of many models allow a single system
// message at the front: see github.com/vllm-project/vllm/issues/41114 and github.com/ggml-org/llama.cpp/issues/20733.
// Mistral and xAI refuse names, also behind gateways. All servers except OpenAI's own accept max_tokens.
var generic = Dialect{UseMaxTokens: true, System: SystemMerged, NoNames: true, Accepts: anyImages}

// selfHosted is the dialect of self-hosted servers: generic, without service tiers.
var selfHosted = Dialect{UseMaxTokens: true, System: SystemMerged, NoNames: true, Tiers: noTiers, Accepts: anyImages}

// The images and files that endpoints accept. PDFs are a part of the protocol, but few servers support them:
// developers.openai.com/api/docs/guides/file-inputs.
var (
	anyImagesAndPDFs = model.AnyAttachment()
	anyImages        = model.Accepts{Images: anyImagesAndPDFs.Images}
	withoutGIF       = model.Accepts{Images: []string{model.MediaPNG, model.MediaJPEG, model.MediaWebP}}
	withoutWebP      = model.Accepts{Images: []string{model.MediaPNG, model.MediaJPEG, model.MediaGIF}}
	onlyPNGAndJPEG   = model.Accepts{Images: []string{model.MediaPNG, model.MediaJPEG}}
)

// withAccepts returns d for servers that accept these attachments.
func withAccepts(d Dialect, a model.Accepts) Dialect {
	d.Accepts = a
	return d
}

// withSchemasAlone returns d for servers that do not call tools in a request with a schema.
func withSchemasAlone(d Dialect) Dialect {
	d.SchemasExcludeTools = true
	return d
}

// withOpenEnd returns d for servers that may end an answer without a finish reason and without [DONE].
func withOpenEnd(d Dialect) Dialect {
	d.OpenEnd = true
	return d
}

// withNeedsTool returns d for servers that may refuse calls in a request without tools.
func withNeedsTool(d Dialect) Dialect {
	d.NeedsTool = true
	return d
}

// dialects are the presets by name. The comments give the sources for the differences from generic.
var dialects = map[string]Dialect{
	// The server may be one that does not call tools in a request with a schema, or a gateway that omits the marks of
	// the end: github.com/earendil-works/pi/pull/7441 and github.com/anomalyco/opencode/issues/43379.
	Generic: withOpenEnd(withSchemasAlone(generic)),

	// The protocol as OpenAI defines it. Reasoning models refuse max_tokens: github.com/teilomillet/gollm/issues/33.
	// The tools are a part of the prefix that is cached: developers.openai.com, prompt caching.
	nameOpenAI: {
		Tiers: []string{"auto", "default", "flex", "priority"}, Accepts: anyImagesAndPDFs, ForbidsCalls: true,
	},
	// Only Azure's Responses API accepts PDFs: learn.microsoft.com, Azure OpenAI Responses API.
	"AzureOpenAI": {Accepts: anyImages, ForbidsCalls: true},

	// A schema restricts all output of the model, also its calls: github.com/vllm-project/vllm/issues/39929,
	// github.com/ollama/ollama-python/issues/546, github.com/modelship-ai/modelship/pull/71 and
	// github.com/sgl-project/sglang/pull/25777. LM Studio runs llama.cpp. Ollama does not support GIF, and refuses URLs
	// of other servers: github.com/ollama/ollama/issues/7247. llama.cpp reads images with stb_image, which does not
	// support WebP: github.com/nothings/stb. LM Studio reads JPEG, PNG and WebP: lmstudio.ai/docs, image input.
	"VLLM": withSchemasAlone(selfHosted), "SGLang": withSchemasAlone(selfHosted),
	"Ollama":   withSchemasAlone(withAccepts(selfHosted, withoutGIF)),
	"LlamaCpp": withSchemasAlone(withAccepts(selfHosted, withoutWebP)),
	"LMStudio": withSchemasAlone(withAccepts(selfHosted, withoutGIF)),

	// LiteLLM translates PDFs for the services behind it: docs.litellm.ai, document understanding. For Bedrock and
	// Claude, it refuses calls in a request without tools: github.com/BerriAI/litellm/issues/40735.
	"LiteLLM": withNeedsTool(withAccepts(generic, anyImagesAndPDFs)),

	// No tiers, and no reasoning efforts but high and none: docs.cohere.com, compatibility API. Error for
	// stream_options: strandsagents.com/docs, model provider Cohere. A schema excludes tools:
	// github.com/cohere-ai/cohere-developer-experience/pull/100. Error 400 for a schema within json_schema:
	// github.com/koharu-rs/koharu/issues/1128.
	"Cohere": {
		UseMaxTokens: true, System: SystemMerged, NoNames: true, NoStreamOptions: true, Tiers: noTiers, SchemasExcludeTools: true,
		SchemaInJSONObject: true, OnlyHighEffort: true, Accepts: anyImages,
	},

	// PDFs: openrouter.ai/docs/features/multimodal/pdfs. A model continues its reasoning only if it gets its own
	// reasoning blocks back: openrouter.ai/docs/use-cases/reasoning-tokens.
	"OpenRouter": {
		UseMaxTokens: true, System: SystemMerged, NoNames: true, Returned: ReturnReasoningDetails, Accepts: anyImagesAndPDFs,
	},

	// Error 400 for a call without a signature: github.com/TokenRhythm/opensquilla/issues/225. Error 400 for a schema
	// in a request with tools: github.com/vercel/ai/pull/16540. Error 400 for GIF:
	// github.com/microsoft/vscode/issues/286628. Error 400 for a seed: github.com/Vali-98/ChatterUI/issues/227 and
	// github.com/mcpchecker/mcpchecker/pull/188. Error 400 for references: github.com/memodb-io/Acontext/issues/107.
	// Error 400 for required properties that are not declared: github.com/Gitlawb/openclaude/issues/82.
	"Gemini": {
		UseMaxTokens: true, System: SystemMerged, NoNames: true, Returned: ReturnSignatures, SchemasExcludeTools: true,
		Seed: SeedNone, Accepts: withoutGIF, InlineSchemas: true,
	},

	// Error 422 for names and stream_options, and for max_completion_tokens:
	// github.com/Gage-Technologies/mistral-go/pull/2, github.com/dnakov/anon-kode/issues/53,
	// github.com/BerriAI/litellm/issues/9583. Error 400 for call IDs that are not nine letters or digits, and for
	// system messages after replies: github.com/nearai/ironclaw/issues/1241, github.com/charmbracelet/crush/issues/279.
	// The seed has another name: github.com/simonw/llm-mistral/issues/2. Error 422 for the usual name:
	// github.com/langchain-ai/langchain-azure/issues/82. Most reasoning models accept only the efforts none and high:
	// github.com/withceleste/celeste-python/pull/311, github.com/anomalyco/models.dev/pull/1986. Error 400 for
	// dimensions: github.com/garrytan/gbrain/pull/3001. The other name: docs.mistral.ai, embeddings.
	"Mistral": {
		UseMaxTokens: true, System: SystemBeforeReplies, NoNames: true, NoStreamOptions: true, CallIDs: endpoint.CallIDsNine,
		Seed: SeedRandom, Tiers: noTiers, OnlyHighEffort: true, Accepts: anyImages, OutputDimension: true,
	},

	// A service for embeddings alone. Error 400 for dimensions: github.com/fredrikburmester/streamystats/issues/420.
	// The other name: docs.voyageai.com, text embedding models.
	voyage: {OutputDimension: true},

	// System messages may be anywhere: github.com/can1357/oh-my-pi/issues/958. Error 400 for a call without its
	// reasoning, in all later requests: github.com/earendil-works/pi/issues/3636, github.com/FellouAI/eko/issues/281.
	// Error 400 for images: github.com/yilewang/llm-for-zotero/issues/143. Error 400 for schemas of answers:
	// github.com/UKGovernmentBEIS/inspect_ai/issues/4916. No seed and no tiers: api-docs.deepseek.com, chat completion.
	"DeepSeek": {
		UseMaxTokens: true, NoNames: true, Returned: ReturnReasoningContent, ReturnInLaterTurns: true,
		NoSchemas: true, Seed: SeedNone, Tiers: noTiers,
	},

	// Only the user's messages may have names: github.com/BerriAI/litellm/issues/9720. Roles may be in any order:
	// docs.x.ai.
	// Images: docs.x.ai/docs/guides/image-understanding.
	"XAI": {NoNames: true, Accepts: onlyPNGAndJPEG},

	// Moonshot and Groq deprecate max_tokens: platform.kimi.ai and console.groq.com, chat completions. Moonshot sends
	// error 400 for a call without reasoning, but ignores the reasoning of earlier Turns:
	// github.com/n8n-io/n8n/issues/29142, github.com/can1357/oh-my-pi/pull/1839.
	// The switch for thinking is an object: github.com/anomalyco/models.dev/pull/2294. Moonshot refuses it together
	// with reasoning_effort: github.com/HKUDS/nanobot/issues/3939. No seed and no tiers.
	"Moonshot": {
		System: SystemMerged, NoNames: true, Returned: ReturnReasoningContent, Thinking: ThinkingSwitch, Seed: SeedNone, Tiers: noTiers,
		Accepts: anyImages,
	},

	// The tiers: console.groq.com, service tiers. Error 400 for a schema in a request with tools:
	// github.com/vercel/ai/pull/16540.
	"Groq": {
		System: SystemMerged, NoNames: true, Tiers: []string{"auto", "on_demand", "flex", "performance"}, SchemasExcludeTools: true,
		Accepts: anyImages,
	},

	// Claude refuses call IDs with other characters than letters, digits, '_' and '-': docs.aws.amazon.com,
	// ToolUseBlock.
	"Bedrock": {
		UseMaxTokens: true, System: SystemMerged, NoNames: true, CallIDs: endpoint.CallIDsPlain, Accepts: anyImages,
	},
}

// hosts are the hosts whose dialect is known.
var hosts = []struct {
	host    *regexp.Regexp
	dialect string
}{
	{regexp.MustCompile(`^(.+\.)?api\.openai\.com$`), nameOpenAI},
	{regexp.MustCompile(`\.openai\.azure\.(com|us)$`), "AzureOpenAI"},
	{regexp.MustCompile(`^(api|codestral)\.mistral\.ai$`), "Mistral"},
	{regexp.MustCompile(`^api\.deepseek\.com$`), "DeepSeek"},
	{regexp.MustCompile(`^api\.moonshot\.(ai|cn)$`), "Moonshot"},
	{regexp.MustCompile(`^generativelanguage\.googleapis\.com$`), "Gemini"},
	{regexp.MustCompile(`^openrouter\.ai$`), "OpenRouter"},
	{regexp.MustCompile(`^(.+\.)?api\.x\.ai$`), "XAI"},
	{regexp.MustCompile(`^api\.groq\.com$`), "Groq"},
	{regexp.MustCompile(`^api\.cohere\.(ai|com)$`), "Cohere"},
	{regexp.MustCompile(`^api\.voyageai\.com$`), voyage},
	{regexp.MustCompile(`^bedrock-runtime\.[a-z0-9-]+\.amazonaws\.com$`), "Bedrock"},
}

// azure matches hosts of Azure that have other APIs besides OpenAI's: github.com/openai/openai-java/pull/470.
var azure = regexp.MustCompile(`\.(services\.ai|cognitiveservices)\.azure\.(com|us)$`)

// DialectOf returns the preset with this name. If name is empty, DialectOf returns the preset of the URL's host, or
// Generic if the host is not known. For an unknown name, it returns Generic.
func DialectOf(name, baseURL string) Dialect {
	host := hostDialect(baseURL)
	name = cmp.Or(name, host)
	d, ok := dialects[name]
	if !ok {
		d = dialects[Generic]
	}
	if name == nameOpenAI && host == nameOpenAI { // other hosts may have other models with the same names
		d.Stop = StopByOpenAI
	}
	return d
}

// hostDialect returns the name of the dialect of a URL's host, or an empty name.
func hostDialect(baseURL string) string {
	u, err := url.Parse(baseURL)
	if err != nil {
		return ""
	}
	host := strings.ToLower(strings.TrimSuffix(u.Hostname(), "."))
	for _, h := range hosts {
		if h.host.MatchString(host) {
			return h.dialect
		}
	}
	if azure.MatchString(host) && strings.HasPrefix(u.Path, "/openai") {
		return "AzureOpenAI"
	}
	return ""
}
