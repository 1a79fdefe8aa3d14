//go:build !unix

package userspace

// affordable returns the limits: sockets are bounded by memory alone.
func affordable(l Limits) Limits { return l }
