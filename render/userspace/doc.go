// Package userspace lowers Programs for the userspace mode: a proxy process
// listens on one port of the node for each service port, and iptables rules
// lead connections to the Service there (rules USR-1 to USR-8). What the
// process has to do is written as a table of listeners.
//
// The mode is the oldest of all: backends see the node's address, policies,
// source ranges and SCTP are not known to it.
package userspace
