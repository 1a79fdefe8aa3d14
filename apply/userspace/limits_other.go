//go:build !unix

package userspace

// affordable returns l: only memory limits the number of sockets.
func affordable(l Limits) Limits { return l }
