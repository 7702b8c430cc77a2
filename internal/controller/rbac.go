// Package controller contains the reconcilers of the kinds of capstan.dev. They are level-triggered. They run no Turn,
// and wait for no reply of a model and no result of a tool. They wait for endpoints only to probe them, and for the
// store only before they delete a Turn or a Session whose time to live is over.
//
// This file alone declares the permissions of the manager in a cluster: config/rbac/role.yaml is generated from the
// markers below, and the Helm chart takes its rules from that file. Each rule exists because a call of the manager
// needs it; the comment above each group gives the reason.
package controller

// People write these kinds. The manager watches them, and changes only their status, for which there is another rule
// below. It sets no finalizers and creates none of these objects, so get, list and watch (for a cache) are enough. The
// manager cannot approve a call, because that requires creating a ToolApproval.
// +kubebuilder:rbac:groups=capstan.dev,resources=agents;budgets;modelproviders;promptprofiles;
// + toolapprovals;toolservers,verbs=get;list;watch

// The manager also watches Turns. It creates the Turns of sub-agents (create), cancels them together with the Turn
// that waits for them (patch), and deletes Turns whose ttlSecondsAfterFinished has passed (delete).
// +kubebuilder:rbac:groups=capstan.dev,resources=turns,verbs=get;list;watch;create;patch;delete

// The Turn of a sub-agent has the requester of the Turn that called it. The policies of config/policy require that its
// creator may impersonate requesters, a resource that exists only in RBAC rules. Clusters may also require that the
// creator of a Turn may use its Agent. The manager may use all Agents, because the author of an Agent decides which
// sub-agents it calls.
// +kubebuilder:rbac:groups=capstan.dev,resources=requesters,verbs=impersonate
// +kubebuilder:rbac:groups=capstan.dev,resources=agents,verbs=use

// If the Session that a Turn names does not exist, the manager creates it. The manager deletes Sessions whose
// ttlSecondsAfterLastTurn has passed.
// +kubebuilder:rbac:groups=capstan.dev,resources=sessions,verbs=get;list;watch;create;delete

// The manager writes the status of the kinds that have a status. All writes are updates, which fail if the object has
// changed since it was read. The status is read with its object, so get on the subresource is not needed.
// +kubebuilder:rbac:groups=capstan.dev,resources=agents/status;budgets/status;modelproviders/status;promptprofiles/status;
// + sessions/status;toolservers/status;turns/status,verbs=update

// The manager reads the credentials of model providers and tool servers, each by the name in such an object, when it is
// used. Without list and watch, it cannot find a Secret that no object names, and no cache holds Secrets.
// +kubebuilder:rbac:groups="",resources=secrets,verbs=get

// ModelProviders and ToolServers must not reach the cluster's own addresses. To know these addresses, the manager
// watches Nodes, ServiceCIDRs and EndpointSlices, unless --cluster-cidrs gives the addresses. EndpointSlices show
// whether Pods have addresses outside of the podCIDRs of their Nodes. The manager reads a Service, and the endpoints of
// a headless Service, by the name in a URL: Services of the same namespace may be reached.
// +kubebuilder:rbac:groups="",resources=nodes,verbs=list;watch
// +kubebuilder:rbac:groups=networking.k8s.io,resources=servicecidrs,verbs=list;watch
// +kubebuilder:rbac:groups="",resources=services,verbs=get
// +kubebuilder:rbac:groups=discovery.k8s.io,resources=endpointslices,verbs=list;watch

// Objects may be shared with the namespaces that a selector selects. The manager reads the labels of a namespace that
// uses such an object.
// +kubebuilder:rbac:groups="",resources=namespaces,verbs=get

// Profiles, Agents and Turns take texts of prompts from ConfigMaps. The manager reads a ConfigMap by the name in such
// an object, when it is used (get). It watches only metadata (list and watch), so that objects are reconciled when a
// ConfigMap that they name appears, changes or is deleted. No text is kept in a cache. A manager without list and watch
// still works, and checks these objects at intervals.
// +kubebuilder:rbac:groups="",resources=configmaps,verbs=get;list;watch

// The manager emits Events about these kinds, in the namespaces of the objects.
// +kubebuilder:rbac:groups=events.k8s.io,resources=events,verbs=create

// The read API has no users of its own. The manager asks the API server who requests the journal of a Turn, and
// whether that user may read it.
// +kubebuilder:rbac:groups=authentication.k8s.io,resources=tokenreviews,verbs=create
// +kubebuilder:rbac:groups=authorization.k8s.io,resources=subjectaccessreviews,verbs=create

// Before the manager uses a decision about a call, it checks that the API server verifies who made the decision, and
// who requested the Turn. It reads the policies that verify this, and their bindings, by the names under which they are
// installed. The Helm chart gives them other names, and uses those names in this rule.
// +kubebuilder:rbac:groups=admissionregistration.k8s.io,resources=validatingadmissionpolicies;
// + validatingadmissionpolicybindings,resourceNames=capstan-requesters;capstan-toolapprovals,verbs=get

// These permissions apply only in the manager's own namespace: to the Lease of each executor, the Lease of leader
// election and the Leases that keep the positions of stores. The manager watches the Leases, so that the Turns of a
// lost executor are bound again. It deletes the Lease of a lost executor, but first writes the position of the store
// into the Lease of the store if no other Lease has it. It deletes the Lease of a store when the position is no longer
// needed.
// +kubebuilder:rbac:groups=coordination.k8s.io,namespace=capstan-system,resources=leases,verbs=get;list;watch;create;update;delete

// It also emits Events about these Leases there, although it may serve only other namespaces.
// +kubebuilder:rbac:groups=events.k8s.io,namespace=capstan-system,resources=events,verbs=create
