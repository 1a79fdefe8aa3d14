// Package trace compares what proxyc reports about the rules of a node, also those of other programs, with packets
// and with what the kernel does.
package trace
