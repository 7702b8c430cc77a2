package openai

// SetLongest makes a provider read at most so many bytes of a stream, in place of MaxStreamBytes.
func (p *Provider) SetLongest(bytes int) { p.longest = bytes }
