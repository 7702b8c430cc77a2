package openai

// SetLongest sets the number of bytes of a stream that a provider reads, instead of MaxStreamBytes.
func (p *Provider) SetLongest(bytes int) { p.longest = bytes }
