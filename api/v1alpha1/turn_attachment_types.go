package v1alpha1

// Attachment is an image or a file that belongs to the message of a Turn. Its content is read once, when the prompt is
// prepared, and kept in the journal.
// +kubebuilder:validation:XValidation:rule="[has(self.url), has(self.configMapKeyRef), has(self.artifactRef)].filter(g, g).size() == 1",
// + message="exactly one of url, configMapKeyRef and artifactRef must be given"
type Attachment struct {
	// name is the name of the attachment, a lower-case DNS label of 1 to 63 characters, unique within the Turn.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:XValidation:rule="!format.dns1123Label().validate(self).hasValue()",
	// + message="name must be a lower-case DNS label: letters, digits and '-', starting and ending with a letter or
	// +  digit"
	Name string `json:"name"`

	// mediaType is the type of the content, at most 64 characters. image/png, image/jpeg, image/webp and image/gif: for
	// models with the capability Images, at most 3932160 bytes and 8000 x 8000 pixels. application/pdf: for models with
	// the capability Files, at most 3932160 bytes. text/... and application/json: for every model, as text that is
	// marked as data, at most 262144 bytes of UTF-8. All attachments together may have 8388608 bytes. The content must
	// be of this type.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=64
	// +kubebuilder:validation:XValidation:rule=`self.matches(r"^(image/(png|jpeg|webp|gif)|application/(pdf|json)|
	// + text/[a-z0-9][a-z0-9.+-]*)$")`,
	// + message="mediaType must be image/png, image/jpeg, image/webp, image/gif, application/pdf, application/json or
	// +  text/..., in lower case and without parameters"
	MediaType string `json:"mediaType"`

	// url is the https URL of the content, at most 2048 characters, without credentials and fragment. Capstan fetches
	// it itself, from addresses that the manager may connect to, and follows redirects within the same host only.
	// Exactly one of url, configMapKeyRef and artifactRef must be given.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=2048
	// +kubebuilder:validation:XValidation:rule="isURL(self) && url(self).getScheme() == 'https'
	// +  && url(self).getHostname() != ''",message="url must be an https URL with a host"
	// +kubebuilder:validation:XValidation:rule="!self.matches('^[^/]*//[^/?]*@') && !self.contains('#')",
	// + message="url must not contain credentials or a fragment"
	URL string `json:"url,omitempty"`

	// configMapKeyRef names the key of a ConfigMap with the content, in data or binaryData. The Turn waits until the
	// ConfigMap exists.
	// +optional
	ConfigMapKeyRef *ConfigMapKeyReference `json:"configMapKeyRef,omitempty"`

	// artifactRef names an artifact of another Turn of the namespace: an output of a tool, an answer or an attachment.
	// That Turn must have the artifact when the prompt of this Turn is prepared.
	// +optional
	ArtifactRef *ArtifactReference `json:"artifactRef,omitempty"`
}

// ArtifactScope says which Turns an ArtifactReference may name.
// +kubebuilder:validation:Enum=Session;Namespace
type ArtifactScope string

// The scopes.
const (
	// ArtifactScopeSession means the Turns of the same Session.
	ArtifactScopeSession ArtifactScope = "Session"
	// ArtifactScopeNamespace means all Turns of the namespace, if the author of the reference may read their journals.
	ArtifactScopeNamespace ArtifactScope = "Namespace"
)

// ArtifactReference names an artifact in the journal of another Turn.
type ArtifactReference struct {
	// turnName is the name of the Turn that has the artifact, 1 to 253 characters.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:XValidation:rule="!format.dns1123Subdomain().validate(self).hasValue()",
	// + message="turnName must be a lower-case DNS name: letters, digits, '-' and '.', starting and ending with a letter
	// +  or digit"
	TurnName string `json:"turnName"`

	// name is the name of the artifact, 1 to 80 characters: of an output, as in status.toolCalls[].artifact, such as
	// call-3-1; of an answer, as in status.result.artifacts[].name, such as answer.txt; or attachments/NAME for the
	// attachment NAME of that Turn.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=80
	// +kubebuilder:validation:XValidation:rule="self.matches('^(attachments/)?[a-z0-9]([a-z0-9.-]*[a-z0-9])?$')",
	// + message="name must be the name of an artifact, such as call-3-1, answer.txt or attachments/plan"
	Name string `json:"name"`

	// scope says which Turns may be named. Session (the default): Turns of the same Session, so this Turn must have a
	// sessionRef. Namespace: all Turns of the namespace; the author of this Turn must have the permission to get
	// turns/log in the namespace.
	// +optional
	// +kubebuilder:default=Session
	Scope ArtifactScope `json:"scope,omitempty"`
}
