// Package eval walks packets through the rules and listeners of mode userspace.
package eval
