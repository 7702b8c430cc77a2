package providers

// Keep is for how many sweeps a provider is kept without use.
const Keep = keep

// Len returns the number of entries.
func (c *Cache) Len() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.entries)
}
