// Package monitor tells when somebody else may have changed the rules of the
// node: from the kernel's own messages where rules are nf_tables', by looking
// at the tables where they are the older iptables'.
//
// It is told when proxyc itself is at work, and is silent about that.
package monitor
