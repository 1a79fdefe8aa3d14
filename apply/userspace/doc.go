// Package userspace proxies connections to Services in a process of the node, as in kube-proxy's
// mode userspace. It also maintains the iptables rules that redirect connections to the process.
//
// A Proxy serves listeners, on all systems. A TCP connection is forwarded through a second
// connection to a backend. A UDP client has its own socket to its backend. Backends are selected
// round robin, or by client with session affinity. The backends of a listener may change at any
// time; existing connections continue.
//
// A Dataplane is a Proxy with its rules. A listener is opened before the rules that redirect to it,
// and closed after them. Unlike the rules of other modes, these do not work without the process.
// Close therefore removes them, and Drain then waits for connections to end.
package userspace
