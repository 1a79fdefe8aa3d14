// Package userspace carries connections to Services in a process of the node,
// as mode userspace has it, and keeps the iptables rules that lead them there.
//
// A Proxy serves listeners, on all systems: TCP connections are handed to a
// backend by a second connection, UDP clients have a socket each to theirs.
// Backends are taken in turn, by client where the Service has session affinity.
// What a listener leads to may change at any time; connections that are under
// way go on.
//
// A Dataplane is a Proxy and its rules. A listener is open before a rule leads
// to it, and the rule is gone before the listener is. Other than the rules of
// the other modes these are worth nothing without the process: Close takes them
// away, and then lets the connections end.
package userspace
