// Package xtables makes rules of nf_tables out of what iptables-save and ipset save print, so
// that a Follower meets the chains of every tool in the order in which the kernel calls them.
//
// It understands the matches and targets that firewalls and network plugins write. A match that
// it does not understand makes its rule a doubt, unless another match of the rule does not hold
// or the rule has no effect on the packet. Packets are first packets of connections.
package xtables
