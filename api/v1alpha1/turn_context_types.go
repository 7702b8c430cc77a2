package v1alpha1

// TurnContext is what the caller knows. All of it reaches the model as data that cannot instruct it, but for a skill
// where the Agent's contributionTrust is Trusted.
// +kubebuilder:validation:MinProperties=1
type TurnContext struct {
	// facts that bear on the request, in the order they are shown to the model, 1 to 128.
	// +optional
	// +listType=map
	// +listMapKey=id
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=128
	Facts []Fact `json:"facts,omitempty"`

	// contributions are texts of live context, after those of the profile and the Agent, 1 to 16.
	// +optional
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=16
	Contributions []Contribution `json:"contributions,omitempty"`

	// memories are candidates, 1 to 64. Of these the most relevant are used, as many as the Agent's memory.maxItems says;
	// status.preparation.provenance lists both those and the ones that were dropped.
	// +optional
	// +listType=map
	// +listMapKey=id
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=64
	Memories []Memory `json:"memories,omitempty"`

	// enrichments are candidates, 1 to 64. Of those that are meant for the assistant the 8 most important are used;
	// status.preparation.provenance lists both those and the ones that were dropped.
	// +optional
	// +listType=map
	// +listMapKey=id
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=64
	Enrichments []Enrichment `json:"enrichments,omitempty"`

	// preferences of the user, such as "short answers", 1 to 32 of 1 to 1024 characters.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=32
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=1024
	Preferences []string `json:"preferences,omitempty"`

	// session is what the caller knows of the conversation.
	// +optional
	Session *ConversationContext `json:"session,omitempty"`

	// skill is how this Turn should be done, such as "You are acting as a travel planner.", 1 to 32768 characters. It is a
	// system message of its own: data in a fence, or an instruction, inserted as it is, if the Agent's contributionTrust is
	// Trusted.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=32768
	// +kubebuilder:validation:XValidation:rule="!self.contains('\\u0000')",message="skill must not hold the character U+0000"
	Skill string `json:"skill,omitempty"`
}

// Fact is a piece of text with a source.
type Fact struct {
	// id of the fact, unique in this Turn, at most 128 characters.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=128
	// +kubebuilder:validation:XValidation:rule="!self.contains('\\u0000')",message="id must not hold the character U+0000"
	ID string `json:"id"`

	// text of the fact, 1 to 4096 characters.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=4096
	// +kubebuilder:validation:XValidation:rule="!self.contains('\\u0000')",message="text must not hold the character U+0000"
	Text string `json:"text"`

	// source the fact was taken from, such as notes/project.md, at most 512 characters. The result cites it.
	// +optional
	// +kubebuilder:validation:MaxLength=512
	// +kubebuilder:validation:XValidation:rule="!self.contains('\\u0000')",message="source must not hold the character U+0000"
	Source string `json:"source,omitempty"`
}

// MemoryScope is whom a memory belongs to.
// +kubebuilder:validation:Enum=Session;User;Workspace;Org;Object
type MemoryScope string

// The scopes of memories, narrowest first, and that of a single object.
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

// The steps of freshness, oldest first.
const (
	MemoryStale   MemoryFreshness = "Stale"
	MemoryRecent  MemoryFreshness = "Recent"
	MemoryCurrent MemoryFreshness = "Current"
)

// Memory is something that was learned before.
type Memory struct {
	// id of the memory, unique in this Turn, 1 to 64 characters. It is recorded and not part of the prompt.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=64
	ID string `json:"id"`

	// text of the memory, 1 to 4096 characters.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=4096
	Text string `json:"text"`

	// scope is Session, User, Workspace, Org or Object. The prompt says it.
	// +optional
	Scope MemoryScope `json:"scope,omitempty"`

	// relevance to the request, a decimal from "0" (the default) to "1" with at most 6 decimals. The highest are used.
	// +optional
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:XValidation:rule=`self.matches(r"^(0(\.[0-9]{1,6})?|1(\.0{1,6})?)$")`,message="relevance must be a decimal from 0 to 1 with at most 6 decimals, such as 0.9"
	Relevance *string `json:"relevance,omitempty"`

	// freshness is Stale, Recent or Current. It is recorded and does not bear on the selection.
	// +optional
	Freshness MemoryFreshness `json:"freshness,omitempty"`
}

// EnrichmentKind is what an enrichment is.
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

// Audience is whom an enrichment is for.
// +kubebuilder:validation:Enum=Assistant;Product;Mixed
type Audience string

const (
	// AudienceAssistant is for the model.
	AudienceAssistant Audience = "Assistant"
	// AudienceProduct is for the product around it, and never reaches the model.
	AudienceProduct Audience = "Product"
	// AudienceMixed is for both.
	AudienceMixed Audience = "Mixed"
)

// Enrichment is what another part of the product found out.
type Enrichment struct {
	// id of the enrichment, unique in this Turn, 1 to 64 characters. It is recorded and not part of the prompt.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=64
	ID string `json:"id"`

	// kind is SpecialistMemo, Handoff, Review, WorkspaceState, ExternalSnapshot, CultureContext, ToolObservation or
	// Other (the default).
	// +optional
	// +kubebuilder:default=Other
	Kind EnrichmentKind `json:"kind,omitempty"`

	// source it comes from, such as reviewer, at most 256 characters.
	// +optional
	// +kubebuilder:validation:MaxLength=256
	Source string `json:"source,omitempty"`

	// title is its label in the prompt, at most 256 characters. Default: kind and source.
	// +optional
	// +kubebuilder:validation:MaxLength=256
	Title string `json:"title,omitempty"`

	// content of the enrichment, 1 to 8192 characters.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=8192
	Content string `json:"content"`

	// importance is Low, Medium (the default) or High: the highest are used, and come first.
	// +optional
	// +kubebuilder:default=Medium
	Importance Level `json:"importance,omitempty"`

	// audience is Assistant (the default), Mixed, or Product, which never reaches the model.
	// +optional
	// +kubebuilder:default=Assistant
	Audience Audience `json:"audience,omitempty"`
}

// ConversationState is how far a conversation has got.
// +kubebuilder:validation:Enum=Cold;Active;Resumed
type ConversationState string

const (
	// ConversationCold has just begun.
	ConversationCold ConversationState = "Cold"
	// ConversationActive is under way.
	ConversationActive ConversationState = "Active"
	// ConversationResumed goes on after a pause.
	ConversationResumed ConversationState = "Resumed"
)

// ConversationContext is what a caller knows of a conversation.
// +kubebuilder:validation:MinProperties=1
type ConversationContext struct {
	// id of the conversation, 1 to 253 letters, digits, '.', '_' and '-'. Templates have it as .Session.Name.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:XValidation:rule=`self.matches(r"^[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?$")`,message="id must consist of letters, digits, '.', '_' and '-', starting and ending with a letter or digit"
	ID string `json:"id,omitempty"`

	// subject of the conversation, such as "Order 1042", 1 to 32768 characters, of which the model gets 20000.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=32768
	Subject string `json:"subject,omitempty"`

	// state is Cold, Active or Resumed.
	// +optional
	State ConversationState `json:"state,omitempty"`

	// summary of what was said, at most 8192 characters.
	// +optional
	// +kubebuilder:validation:MaxLength=8192
	Summary string `json:"summary,omitempty"`

	// unresolvedQuestions of the conversation, 1 to 32 of 1 to 1024 characters.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=32
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=1024
	UnresolvedQuestions []string `json:"unresolvedQuestions,omitempty"`

	// momentum is Low, Medium or High. Low raises the explanationDensity of the expression from Low to Medium.
	// +optional
	Momentum Level `json:"momentum,omitempty"`
}
