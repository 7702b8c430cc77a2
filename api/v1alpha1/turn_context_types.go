package v1alpha1

import apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"

// TurnContext is the data that a caller adds to a request. The model receives it as data that cannot instruct it,
// except for a skill if the Agent's contributionTrust is Trusted. Despite its name, that field does not make
// contributions instructions: they never instruct the model.
// +kubebuilder:validation:MinProperties=1
type TurnContext struct {
	// facts are 1 to 128 short texts for this request. Each may name its source. The model receives them in this order.
	// +optional
	// +listType=map
	// +listMapKey=id
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=128
	Facts []Fact `json:"facts,omitempty"`

	// contributions are 1 to 16 texts for the section live_context. They come after the contributions of the profile
	// and those of the Agent.
	// +optional
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=16
	Contributions []Contribution `json:"contributions,omitempty"`

	// memories are 1 to 64 texts that the application has kept from earlier requests. The prompt contains the most
	// relevant ones, at most memory.maxItems of the Agent. status.preparation.provenance lists which memories were used
	// and which were dropped.
	// +optional
	// +listType=map
	// +listMapKey=id
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=64
	Memories []Memory `json:"memories,omitempty"`

	// enrichments are 1 to 64 results of other parts of the application. The prompt contains the 8 most important ones
	// whose audience is not Product. status.preparation.provenance lists which enrichments were used and which were
	// dropped.
	// +optional
	// +listType=map
	// +listMapKey=id
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=64
	Enrichments []Enrichment `json:"enrichments,omitempty"`

	// preferences lists 1 to 32 preferences of the user, such as "short answers". Each has 1 to 1024 characters.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=32
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=1024
	Preferences []string `json:"preferences,omitempty"`

	// data is a JSON object of any form, for knowledge that fits none of the other fields, at most 65536 bytes. The
	// model receives it as JSON with sorted names.
	// +optional
	// +kubebuilder:validation:Type=object
	// +kubebuilder:pruning:PreserveUnknownFields
	Data *apiextensionsv1.JSON `json:"data,omitempty"`

	// session describes the conversation, as the caller knows it.
	// +optional
	Session *ConversationContext `json:"session,omitempty"`

	// skill says how to do this Turn, such as "You are acting as a travel planner.", 1 to 32768 characters. It becomes
	// a separate system message. If the Agent's contributionTrust is Trusted, the text is an instruction, unchanged.
	// Otherwise it is a wish: fenced data that does not instruct the model.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=32768
	// +kubebuilder:validation:XValidation:rule="!self.contains('\\u0000')",message="skill must not contain the character U+0000"
	Skill string `json:"skill,omitempty"`
}

// Fact is a short text, which may name its source.
type Fact struct {
	// id is the ID of the fact, unique in this Turn, at most 128 characters.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=128
	// +kubebuilder:validation:XValidation:rule="!self.contains('\\u0000')",message="id must not contain the character U+0000"
	ID string `json:"id"`

	// text is the text of the fact, 1 to 4096 characters.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=4096
	// +kubebuilder:validation:XValidation:rule="!self.contains('\\u0000')",message="text must not contain the character U+0000"
	Text string `json:"text"`

	// source is the source of the fact, such as notes/project.md, at most 512 characters. If it is set, the result
	// cites it.
	// +optional
	// +kubebuilder:validation:MaxLength=512
	// +kubebuilder:validation:XValidation:rule="!self.contains('\\u0000')",message="source must not contain the character U+0000"
	Source string `json:"source,omitempty"`
}

// MemoryScope is the owner of a memory.
// +kubebuilder:validation:Enum=Session;User;Workspace;Org;Object
type MemoryScope string

// The scopes of memories: Session to Org from the narrowest to the widest, and Object, which has no place in this
// order.
const (
	MemoryScopeSession   MemoryScope = "Session"
	MemoryScopeUser      MemoryScope = "User"
	MemoryScopeWorkspace MemoryScope = "Workspace"
	MemoryScopeOrg       MemoryScope = "Org"
	MemoryScopeObject    MemoryScope = "Object"
)

// MemoryFreshness is how old a memory is.
// +kubebuilder:validation:Enum=Stale;Recent;Current
type MemoryFreshness string

// The levels of freshness, oldest first.
const (
	MemoryStale   MemoryFreshness = "Stale"
	MemoryRecent  MemoryFreshness = "Recent"
	MemoryCurrent MemoryFreshness = "Current"
)

// Memory is a text that an application has kept from earlier requests.
type Memory struct {
	// id is the ID of the memory, unique in this Turn, 1 to 64 characters. It is recorded and is not part of the
	// prompt.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=64
	ID string `json:"id"`

	// text is the text of the memory, 1 to 4096 characters.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=4096
	Text string `json:"text"`

	// scope is the owner of the memory: Session, User, Workspace, Org or Object. It is part of the prompt.
	// +optional
	Scope MemoryScope `json:"scope,omitempty"`

	// relevance is how relevant the memory is to the request, a decimal from "0" (the default) to "1" with at most
	// 6 decimals. The memories with the highest values are used.
	// +optional
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:XValidation:rule=`self.matches(r"^(0(\.[0-9]{1,6})?|1(\.0{1,6})?)$")`,
	// + message="relevance must be a decimal from 0 to 1 with at most 6 decimals, such as 0.9"
	Relevance *string `json:"relevance,omitempty"`

	// freshness is the age of the memory: Stale, Recent or Current. It is recorded, and does not affect which memories
	// are used.
	// +optional
	Freshness MemoryFreshness `json:"freshness,omitempty"`
}

// EnrichmentKind says what an enrichment is. It is only a label: see Enrichment.
// +kubebuilder:validation:Enum=SpecialistMemo;Handoff;Review;WorkspaceState;ExternalSnapshot;CultureContext;ToolObservation;Other
type EnrichmentKind string

// The kinds of enrichments.
const (
	EnrichmentSpecialistMemo   EnrichmentKind = "SpecialistMemo"
	EnrichmentHandoff          EnrichmentKind = "Handoff"
	EnrichmentReview           EnrichmentKind = "Review"
	EnrichmentWorkspaceState   EnrichmentKind = "WorkspaceState"
	EnrichmentExternalSnapshot EnrichmentKind = "ExternalSnapshot"
	EnrichmentCultureContext   EnrichmentKind = "CultureContext"
	EnrichmentToolObservation  EnrichmentKind = "ToolObservation"
	EnrichmentOther            EnrichmentKind = "Other"
)

// Audience says for whom an enrichment is intended.
// +kubebuilder:validation:Enum=Assistant;Product;Mixed
type Audience string

const (
	// AudienceAssistant is the model.
	AudienceAssistant Audience = "Assistant"
	// AudienceProduct is the application around the model. The model never receives such an enrichment.
	AudienceProduct Audience = "Product"
	// AudienceMixed is both the model and the application.
	AudienceMixed Audience = "Mixed"
)

// Enrichment is a result of another part of the application.
type Enrichment struct {
	// id is the ID of the enrichment, unique in this Turn, 1 to 64 characters. It is recorded and is not part of
	// the prompt.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=64
	ID string `json:"id"`

	// kind says what the enrichment is: SpecialistMemo, Handoff, Review, WorkspaceState, ExternalSnapshot,
	// CultureContext, ToolObservation or Other (the default). It is only a label for the model: the prompt shows the
	// word if the enrichment has no title, and it has no other effect. So use the word that describes the content best.
	// +optional
	// +kubebuilder:default=Other
	Kind EnrichmentKind `json:"kind,omitempty"`

	// source is the origin of the enrichment, such as reviewer, at most 256 characters.
	// +optional
	// +kubebuilder:validation:MaxLength=256
	Source string `json:"source,omitempty"`

	// title is the label of the enrichment in the prompt, at most 256 characters. Default: kind and source.
	// +optional
	// +kubebuilder:validation:MaxLength=256
	Title string `json:"title,omitempty"`

	// content is the text of the enrichment, 1 to 8192 characters.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=8192
	Content string `json:"content"`

	// importance is Low, Medium (the default) or High. The enrichments with the highest importance are used first.
	// +optional
	// +kubebuilder:default=Medium
	Importance Level `json:"importance,omitempty"`

	// audience says for whom the enrichment is intended: Assistant (the default), Product or Mixed. The model never
	// receives an enrichment with the audience Product.
	// +optional
	// +kubebuilder:default=Assistant
	Audience Audience `json:"audience,omitempty"`
}

// ConversationState says whether a conversation begins, continues, or continues after a pause.
// +kubebuilder:validation:Enum=Cold;Active;Resumed
type ConversationState string

const (
	// ConversationCold means that the conversation has just begun.
	ConversationCold ConversationState = "Cold"
	// ConversationActive means that the conversation continues without a pause.
	ConversationActive ConversationState = "Active"
	// ConversationResumed means that the conversation continues after a pause.
	ConversationResumed ConversationState = "Resumed"
)

// ConversationContext describes a conversation, as the caller knows it.
// +kubebuilder:validation:MinProperties=1
type ConversationContext struct {
	// id is the ID of the conversation, 1 to 253 letters, digits, '.', '_' and '-'. Templates use it as
	// .Session.Name. It must be absent if the Turn has a sessionRef.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:XValidation:rule=`self.matches(r"^[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?$")`,
	// + message="id must consist of letters, digits, '.', '_' and '-', starting and ending with a letter or digit"
	ID string `json:"id,omitempty"`

	// subject is the subject of the conversation, such as "Order 1042", 1 to 32768 characters. The model receives
	// the first 20000. It must be absent if the Turn has a sessionRef.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=32768
	Subject string `json:"subject,omitempty"`

	// state says whether the conversation begins or continues. Cold: it has just begun. Active: it continues without a
	// pause. Resumed: it continues after a pause. The model receives the word as data; it has no other effect.
	// +optional
	State ConversationState `json:"state,omitempty"`

	// summary is a summary of the conversation, at most 8192 characters.
	// +optional
	// +kubebuilder:validation:MaxLength=8192
	Summary string `json:"summary,omitempty"`

	// unresolvedQuestions are 1 to 32 open questions of the conversation, each of 1 to 1024 characters.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=32
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=1024
	UnresolvedQuestions []string `json:"unresolvedQuestions,omitempty"`

	// momentum is how well the conversation proceeds: Low, Medium or High. If it is Low, an explanationDensity of Low
	// is raised to Medium.
	// +optional
	Momentum Level `json:"momentum,omitempty"`
}
