// Package xtables converts the output of iptables-save and ipset save to
// nf_tables rules, so that a Follower evaluates the chains of every tool in the
// order of the kernel.
//
// It supports the matches and targets that firewalls and network plugins use. An
// unsupported match makes its rule a doubt, unless another match of the rule does
// not hold or the rule has no effect on the packet. Packets are the first of
// connections.
package xtables
