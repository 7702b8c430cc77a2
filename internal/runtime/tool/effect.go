package tool

// Hints are the annotations of a server about the effect of a tool. A hint never grants an effect, but it may make
// a declared one stricter.
type Hints struct {
	// ReadOnly is true for a tool that changes nothing. Idempotent is true for a tool whose repeated calls change
	// nothing more. False has no meaning: servers send it even if the author of the tool has not set a hint.
	ReadOnly, Idempotent bool
	// Destructive reports whether the tool may destroy something. It is nil if the server does not say.
	Destructive *bool
}

// Claims returns the effect that the hints claim, to show it to people. ResolveEffect returns the effect that applies.
func (h Hints) Claims() Effect {
	switch {
	case h.destroys():
		return Destructive
	case h.ReadOnly:
		return ReadOnly
	case h.Idempotent && h.Destructive != nil:
		return Idempotent // the protocol says that a tool without this hint is destructive
	}
	return Destructive
}

// contradict reports whether the hints claim more than the declared effect allows.
func (h Hints) contradict(declared Effect) bool {
	switch declared {
	case ReadOnly:
		return h.destroys()
	case Idempotent:
		return h.destroys() && !h.Idempotent
	case Destructive:
	}
	return false
}

// ResolveEffect returns the effect of a tool: the effect that the owner of the ToolServer declares. It returns
// Destructive if there is no valid declaration, or if the server's hints contradict the declaration.
func ResolveEffect(declared Effect, h Hints) Effect {
	if !declared.Repeatable() || h.contradict(declared) {
		return Destructive
	}
	return declared
}

// Stricter returns the stricter of two effects. An unknown effect is Destructive.
func Stricter(a, b Effect) Effect {
	switch {
	case !a.Repeatable() || !b.Repeatable():
		return Destructive
	case a == Idempotent || b == Idempotent:
		return Idempotent
	}
	return ReadOnly
}

// destroys reports whether the server says that the tool may destroy something.
func (h Hints) destroys() bool { return h.Destructive != nil && *h.Destructive }
