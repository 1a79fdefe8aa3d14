//go:build !unix

package userspace

// fitLimits returns l: only memory limits the number of sockets.
func fitLimits(l Limits) Limits { return l }
