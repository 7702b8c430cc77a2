package openai

import (
	"cmp"
	"net/url"
	"regexp"
	"strings"

	"github.com/capstan-dev/capstan/internal/model/endpoint"
	"github.com/capstan-dev/capstan/internal/runtime/model"
)

// Dialect says how the requests to an endpoint are written. The zero value is the protocol as OpenAI defines it.
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
	// Returned is the part of replies that is sent back. ReturnedLasting is true if later Turns of a Session send it,
	// too.
	Returned        ReturnedData
	ReturnedLasting bool
	// APIVersion is the version of Azure's API of deployments. If it is empty, the API has no version.
	APIVersion string
	// Seed is the name of the parameter for a seed.
	Seed SeedName
	// Tiers are the names of service tiers. If it is nil, the endpoint decides which names it accepts. If it is empty,
	// the endpoint has no tiers.
	Tiers []string
	// Thinking is the form of the setting for reasoning.
	Thinking ThinkingForm
	// OneEffort is true if models of the endpoint refuse other efforts than high.
	OneEffort bool
	// NoSchemas is true if the endpoint refuses the schema of an answer. SchemasExcludeTools is true if it accepts the
	// schema, but refuses tools beside it, or does not call them.
	NoSchemas, SchemasExcludeTools bool
	// SchemasOfObjects sends the schema of an answer beside the type json_object, instead of within json_schema.
	SchemasOfObjects bool
	// Accepts are the images and files that the endpoint accepts, for models that can read them.
	Accepts model.Accepts
	// Stop says which models accept stop sequences.
	Stop StopSupport
	// OpenEnd is true if an answer may end without a finish reason and without [DONE]. Servers that are known send
	// them, LiteLLM even if the service behind it does not: github.com/BerriAI/litellm/issues/40260. Then an answer
	// without them is cut off, also if the response ends properly: github.com/ollama/ollama/issues/17118.
	OpenEnd bool
	// Extra are further fields of a request's body. Their names differ from each other and from those of other fields.
	Extra []model.ExtraField
}

// SeedName is the name of the parameter for a seed.
type SeedName int

const (
	// SeedPlain sends seed.
	SeedPlain SeedName = iota
	// SeedRandom sends random_seed.
	SeedRandom
	// SeedNone means that the endpoint has no seed.
	SeedNone
)

// StopSupport says which models accept stop sequences.
type StopSupport int

const (
	// StopAccepted means that all models accept them, or that the endpoint refuses those of others.
	StopAccepted StopSupport = iota
	// StopByOpenAI means that the models are those of OpenAI, some of which refuse them.
	StopByOpenAI
	// StopRefused means that no model accepts them.
	StopRefused
)

// ThinkingForm is the form of the setting for reasoning.
type ThinkingForm int

const (
	// ThinkingEffort sends reasoning_effort.
	ThinkingEffort ThinkingForm = iota
	// ThinkingSwitch sends thinking with the type enabled. It has no levels.
	ThinkingSwitch
	// ThinkingTemplate sends enable_thinking to the chat template of the model. It has no levels: servers pass
	// reasoning_effort on to templates that have some, and others refuse levels that they do not know.
	ThinkingTemplate
)

// refusesStop finds models of OpenAI that refuse stop sequences: github.com/huggingface/smolagents/pull/1662 and
// github.com/EleutherAI/lm-evaluation-harness/pull/3215.
var refusesStop = regexp.MustCompile(`^(o3|o4-mini|gpt-5|gpt-5-mini|gpt-5-nano)(-20\d{2}-\d{2}-\d{2})?$`)

// noTiers are the service tiers of an endpoint without tiers.
var noTiers = []string{}

// SystemPlace says where system messages may be.
type SystemPlace int

const (
	// SystemInPlace allows system messages anywhere.
	SystemInPlace SystemPlace = iota
	// SystemBeforeReplies allows them before the first message of the assistant or of a tool.
	SystemBeforeReplies
	// SystemMerged allows a single one, at the front.
	SystemMerged
)

// Generic is the name of the dialect for servers that are not known. It is what most servers accept.
const Generic = "Generic"

// nameOpenAI is the name of the dialect of OpenAI itself.
const nameOpenAI = "OpenAI"

// generic is the dialect Generic, apart from schemas. Chat templates of many models allow a single system message at
// the front: see github.com/vllm-project/vllm/issues/41114 and github.com/ggml-org/llama.cpp/issues/20733. Names are
// refused by Mistral and xAI, also behind gateways. The older name of the output limit is known to all servers.
var generic = Dialect{UseMaxTokens: true, System: SystemMerged, NoNames: true, Accepts: anyImages}

// selfHosted is the dialect of self-hosted servers: generic, without service tiers.
var selfHosted = Dialect{UseMaxTokens: true, System: SystemMerged, NoNames: true, Tiers: noTiers, Accepts: anyImages}

// The images and files that endpoints accept. PDFs are a part of the protocol, but few servers know them:
// developers.openai.com/api/docs/guides/file-inputs.
var (
	anyImagesAndPDFs = model.AnyAttachment()
	anyImages        = model.Accepts{Images: anyImagesAndPDFs.Images}
	withoutGIF       = model.Accepts{Images: []string{model.MediaPNG, model.MediaJPEG, model.MediaWebP}}
	withoutWebP      = model.Accepts{Images: []string{model.MediaPNG, model.MediaJPEG, model.MediaGIF}}
	onlyPNGAndJPEG   = model.Accepts{Images: []string{model.MediaPNG, model.MediaJPEG}}
)

// accepting returns a dialect whose servers accept these attachments.
func accepting(d Dialect, a model.Accepts) Dialect {
	d.Accepts = a
	return d
}

// schemasAlone returns a dialect whose servers do not call tools in a request with a schema.
func schemasAlone(d Dialect) Dialect {
	d.SchemasExcludeTools = true
	return d
}

// openEnded returns a dialect whose servers may end an answer without any mark.
func openEnded(d Dialect) Dialect {
	d.OpenEnd = true
	return d
}

// dialects are the presets by name. Each comment says where a difference from generic is known from.
var dialects = map[string]Dialect{
	// It may be any of the servers that do not call tools in a request with a schema, and any of the gateways that omit
	// the marks of the end: github.com/earendil-works/pi/pull/7441 and github.com/anomalyco/opencode/issues/43379.
	Generic: openEnded(schemasAlone(generic)),

	// The protocol's own. Models with reasoning refuse max_tokens: github.com/teilomillet/gollm/issues/33.
	nameOpenAI: {
		Tiers: []string{"auto", "default", "flex", "priority"}, Accepts: anyImagesAndPDFs,
	},
	// PDFs are accepted by its other API only: learn.microsoft.com, Azure OpenAI Responses API.
	"AzureOpenAI": {Accepts: anyImages},

	// A schema restricts all that the model writes, also its calls: github.com/vllm-project/vllm/issues/39929,
	// github.com/ollama/ollama-python/issues/546, github.com/modelship-ai/modelship/pull/71 and
	// github.com/sgl-project/sglang/pull/25777. LM Studio runs llama.cpp.
	// Ollama knows no GIF, and refuses URLs of other servers: github.com/ollama/ollama/issues/7247. llama.cpp reads
	// images with stb_image, which knows no WebP: github.com/nothings/stb.
	// LM Studio reads JPEG, PNG and WebP: lmstudio.ai/docs, image input.
	"VLLM": schemasAlone(selfHosted), "SGLang": schemasAlone(selfHosted),
	"Ollama":   schemasAlone(accepting(selfHosted, withoutGIF)),
	"LlamaCpp": schemasAlone(accepting(selfHosted, withoutWebP)),
	"LMStudio": schemasAlone(accepting(selfHosted, withoutGIF)),

	// It translates PDFs for the services behind it: docs.litellm.ai, document understanding.
	"LiteLLM": accepting(generic, anyImagesAndPDFs),

	// It has no tiers, and one effort: docs.cohere.com, compatibility API. Error for stream_options:
	// strandsagents.com/docs, model provider Cohere. A schema excludes tools:
	// github.com/cohere-ai/cohere-developer-experience/pull/100. Error 400 for a schema within json_schema:
	// github.com/koharu-rs/koharu/issues/1128.
	"Cohere": {
		UseMaxTokens: true, System: SystemMerged, NoNames: true, NoStreamOptions: true, Tiers: noTiers, SchemasExcludeTools: true,
		SchemasOfObjects: true, OneEffort: true, Accepts: anyImages,
	},

	// PDFs: openrouter.ai/docs/features/multimodal/pdfs. A model continues its reasoning only if it gets its own
	// reasoning blocks back: openrouter.ai/docs/use-cases/reasoning-tokens.
	"OpenRouter": {
		UseMaxTokens: true, System: SystemMerged, NoNames: true, Returned: ReturnReasoningDetails, Accepts: anyImagesAndPDFs,
	},

	// Error 400 for a call without a signature: github.com/TokenRhythm/opensquilla/issues/225.
	// Error 400 for a schema beside tools: github.com/vercel/ai/pull/16540.
	// Error 400 for GIF: github.com/microsoft/vscode/issues/286628.
	"Gemini": {
		UseMaxTokens: true, System: SystemMerged, NoNames: true, Returned: ReturnSignatures, SchemasExcludeTools: true,
		Accepts: withoutGIF,
	},

	// Error 422 for names and stream_options, and for max_completion_tokens:
	// github.com/Gage-Technologies/mistral-go/pull/2, github.com/dnakov/anon-kode/issues/53,
	// github.com/BerriAI/litellm/issues/9583. Error 400 for call IDs that are not nine letters or digits, and for
	// system messages after replies: github.com/nearai/ironclaw/issues/1241, github.com/charmbracelet/crush/issues/279.
	// The seed has another name: github.com/simonw/llm-mistral/issues/2, and error 422 for the usual one:
	// github.com/langchain-ai/langchain-azure/issues/82. Most models with reasoning refuse other efforts than none and
	// high: github.com/withceleste/celeste-python/pull/311, github.com/anomalyco/models.dev/pull/1986.
	"Mistral": {
		UseMaxTokens: true, System: SystemBeforeReplies, NoNames: true, NoStreamOptions: true, CallIDs: endpoint.CallIDsNine,
		Seed: SeedRandom, Tiers: noTiers, OneEffort: true, Accepts: anyImages,
	},

	// System messages may be anywhere: github.com/can1357/oh-my-pi/issues/958. Error 400 for a call without its
	// reasoning, in all later requests: github.com/earendil-works/pi/issues/3636, github.com/FellouAI/eko/issues/281.
	// Error 400 for images: github.com/yilewang/llm-for-zotero/issues/143.
	// Error 400 for schemas of answers: github.com/UKGovernmentBEIS/inspect_ai/issues/4916. It has neither a seed nor
	// tiers: api-docs.deepseek.com, chat completion.
	"DeepSeek": {
		UseMaxTokens: true, NoNames: true, Returned: ReturnReasoningContent, ReturnedLasting: true,
		NoSchemas: true, Seed: SeedNone, Tiers: noTiers,
	},

	// Only the user's messages may have names: github.com/BerriAI/litellm/issues/9720. Roles may be in any order:
	// docs.x.ai.
	// Images: docs.x.ai/docs/guides/image-understanding.
	"XAI": {NoNames: true, Accepts: onlyPNGAndJPEG},

	// max_tokens is deprecated: platform.kimi.ai and console.groq.com, chat completions. Moonshot sends error 400 for a
	// call without reasoning, but ignores that of earlier Turns: github.com/n8n-io/n8n/issues/29142,
	// github.com/can1357/oh-my-pi/pull/1839.
	// The switch for thinking is an object: github.com/anomalyco/models.dev/pull/2294. It is refused together with
	// reasoning_effort: github.com/HKUDS/nanobot/issues/3939. There is neither a seed nor tiers.
	"Moonshot": {
		System: SystemMerged, NoNames: true, Returned: ReturnReasoningContent, Thinking: ThinkingSwitch, Seed: SeedNone, Tiers: noTiers,
		Accepts: anyImages,
	},

	// The tiers: console.groq.com, service tiers. Error 400 for a schema beside tools: github.com/vercel/ai/pull/16540.
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

// hosts are the hosts whose dialect is certain.
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
	{regexp.MustCompile(`^bedrock-runtime\.[a-z0-9-]+\.amazonaws\.com$`), "Bedrock"},
}

// azure finds hosts of Azure that have other APIs besides OpenAI's: github.com/openai/openai-java/pull/470.
var azure = regexp.MustCompile(`\.(services\.ai|cognitiveservices)\.azure\.(com|us)$`)

// DialectOf returns the preset with this name. Without a name it is the dialect of the URL's host if that is certain,
// and otherwise Generic, which also stands for a name that is not known.
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
