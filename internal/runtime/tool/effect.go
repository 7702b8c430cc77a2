package tool

// Hints are what a server says of the effect of a tool. They are the server's own word: they never grant an effect, and may make a
// declared one stricter.
type Hints struct {
	// ReadOnly is true for a tool that changes nothing, and Idempotent for one whose calls change no more when they are made twice.
	// False says nothing: servers send it for tools of which their authors said nothing.
	ReadOnly, Idempotent bool
	// Destructive says whether the tool may destroy something; nil where the server does not say.
	Destructive *bool
}

// Claims returns the effect that the hints claim. It is for people: what a tool may do, Judge says.
func (h Hints) Claims() Effect {
	switch {
	case h.destroys():
		return Destructive
	case h.ReadOnly:
		return ReadOnly
	case h.Idempotent && h.Destructive != nil:
		return Idempotent // without a word on it, a tool is destructive: so says the protocol
	}
	return Destructive
}

// contradict reports whether the hints say that a tool does more than an effect allows.
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

// Judge returns the effect of a tool: the one that the owner of the ToolServer declares, or Destructive if there is none, or if the
// server's hints contradict it.
func Judge(declared Effect, h Hints) Effect {
	if !declared.Repeatable() || h.contradict(declared) {
		return Destructive
	}
	return declared
}

// Stricter returns the stricter of two effects. An effect that is not known is Destructive.
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
