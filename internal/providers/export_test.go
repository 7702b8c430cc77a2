package providers

// MaxIdleSweeps is the number of sweeps for which an unused provider is kept.
const MaxIdleSweeps = maxIdleSweeps

// Len returns the number of entries.
func (c *Cache) Len() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.entries)
}
