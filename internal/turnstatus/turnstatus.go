// Package turnstatus writes the status of Turns, for the controller, the executor and the command line. Each function
// is pure: it changes the status of the given Turn from its arguments alone, and the caller sends the status to the
// API server.
package turnstatus
