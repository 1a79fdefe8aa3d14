// Package xtables has iptables rules as values, for the modes that need few of
// them beside another dataplane (ipvs, userspace): a rule is a list of matches
// and a target, which write themselves as iptables-restore and
// ip6tables-restore read them, and which a packet can be walked through.
//
// The iptables mode, whose rules are hundreds of thousands and are compared
// with those of the kernel, has a flat form of its own in render/iptables.
package xtables
