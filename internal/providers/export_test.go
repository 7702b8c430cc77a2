package providers

// MaxIdleSweeps is the number of sweeps for which an unused provider is kept.
const MaxIdleSweeps = maxIdleSweeps

// MaxGenerations is the number of generations of an object whose providers are kept.
const MaxGenerations = maxGenerations

// Len returns the number of entries.
func (c *Cache) Len() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.entries)
}
