// Package controller holds the reconcilers of the kinds of capstan.dev: cheap, level-triggered, never blocking on a
// model, a tool or a database.
//
// What the manager may do in a cluster is declared in this file and nowhere else: config/rbac/role.yaml is generated
// from the markers below, and the Helm chart takes its rules from that file. A rule is here because a call of the
// manager needs it; the reason stands above each group.
package controller

// What people write: the manager follows these objects and never changes one. It sets no finalizer and makes none of
// them, so get, list and watch (a cache) are all it needs. It cannot approve a call: that takes the creation of a ToolApproval.
// +kubebuilder:rbac:groups=capstan.dev,resources=agents;modelproviders;promptprofiles;toolapprovals;toolservers,verbs=get;list;watch

// Turns are followed alike. create is for the Turns of sub-agents, patch cancels these with the Turn that waits for them;
// delete is for those whose ttlSecondsAfterFinished has passed.
// +kubebuilder:rbac:groups=capstan.dev,resources=turns,verbs=get;list;watch;create;patch;delete

// Sessions are made for Turns that name one that is not there; delete is for those whose ttlSecondsAfterLastTurn has passed.
// +kubebuilder:rbac:groups=capstan.dev,resources=sessions,verbs=get;list;watch;create;delete

// The observed state of the kinds that have one. All writes are updates, which fail if the object has changed meanwhile. Reading a status is part of reading its object, so get on the subresource is not needed.
// +kubebuilder:rbac:groups=capstan.dev,resources=agents/status;modelproviders/status;promptprofiles/status;sessions/status;toolservers/status;turns/status,verbs=update

// Credentials of model providers and tool servers, each read by the name that such an object gives, when it is used. Without list and
// watch a Secret that no object names cannot be found, and no Secret is kept in a cache.
// +kubebuilder:rbac:groups="",resources=secrets,verbs=get

// Which addresses are the cluster's: ModelProviders and ToolServers do not reach them. Nodes and ServiceCIDRs are followed, but not where
// --cluster-cidrs names the addresses. A Service, and the endpoints of a headless one, is read by the name that a URL gives: those of the
// same namespace are reached.
// +kubebuilder:rbac:groups="",resources=nodes,verbs=list;watch
// +kubebuilder:rbac:groups=networking.k8s.io,resources=servicecidrs,verbs=list;watch
// +kubebuilder:rbac:groups="",resources=services,verbs=get
// +kubebuilder:rbac:groups=discovery.k8s.io,resources=endpointslices,verbs=list

// Texts of prompts that profiles, agents and Turns take from ConfigMaps: get reads one by the name that such an object
// gives, when it is used. list and watch are for metadata alone, so that these objects are looked at again when a ConfigMap
// that they name appears, changes or goes; no text is kept in a cache. A manager without list and watch goes on, and looks
// at these objects from time to time.
// +kubebuilder:rbac:groups="",resources=configmaps,verbs=get;list;watch

// Events about these kinds, in the namespaces where these are. A patch raises the count of a repeated Event.
// +kubebuilder:rbac:groups=events.k8s.io,resources=events,verbs=create;patch

// Who asks for the journal of a Turn, and whether they may read it, is asked of the API server: the read API has no users
// of its own.
// +kubebuilder:rbac:groups=authentication.k8s.io,resources=tokenreviews,verbs=create
// +kubebuilder:rbac:groups=authorization.k8s.io,resources=subjectaccessreviews,verbs=create

// Whether the API server checks who decides about a call: the policy that does, and its binding, by the one name that they are
// installed under, when a decision is to be used. The Helm chart gives both another name, and puts it here.
// +kubebuilder:rbac:groups=admissionregistration.k8s.io,resources=validatingadmissionpolicies;validatingadmissionpolicybindings,resourceNames=capstan-toolapprovals,verbs=get

// In the manager's own namespace alone: the Lease of each executor (watched, so that the Turns of a lost one are bound
// anew; deleted when its executor has stopped) and the Lease of leader election.
// +kubebuilder:rbac:groups=coordination.k8s.io,namespace=capstan-system,resources=leases,verbs=get;list;watch;create;update;delete
