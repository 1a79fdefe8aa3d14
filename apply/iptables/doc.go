// Package iptables applies a Ruleset of render/iptables to the iptables of a node.
//
// It reads with iptables-save, and writes with iptables-restore --noflush. The latter changes each
// table atomically: the kernel accepts all lines or none, and a packet passes either the old or the
// new rules.
//
// Plan is a pure function. It contains only the chains that differ, ordered so that large changes
// can be split into several runs. Targets of jumps come before the chains that jump to them: chains
// without references first, dispatch chains last. Obsolete chains are removed when nothing refers
// to them, in the opposite order. The jumps in built-in chains are replaced within one run, so that
// they are never missing.
//
// kube-proxy uses the same chain names, so taking over a node is an ordinary difference. Chains of
// other programs are not changed. KUBE-FIREWALL, which the kubelet uses, too, is only added to.
package iptables
