// Package eval evaluates packets against the rules and listeners of mode
// userspace.
package eval
