package pace

// Models returns the number of models whose state is kept.
func (g *Gate) Models() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return len(g.lanes)
}
