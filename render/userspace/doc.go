// Package userspace lowers Programs for mode userspace. A proxy process listens
// on one port of the node for each service port (USR-1), and iptables rules
// redirect connections there (USR-2). The table of listeners describes the work
// of the process.
//
// This is the oldest mode. Backends receive the node's address, and policies,
// source ranges and SCTP are not supported (USR-7).
package userspace
