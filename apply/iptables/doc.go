// Package iptables makes the iptables of a node hold a Ruleset of
// render/iptables.
//
// Everything is read with iptables-save and written with iptables-restore
// --noflush, which changes a table in one step: the kernel takes all lines or
// none, and a packet meets the old rules or the new ones.
//
// Plan is pure. It sends only chains that differ, the targets of jumps before
// those who jump, so that large changes can go in several steps: chains that
// nobody refers to come first, dispatch comes last, and chains that are not
// wanted any longer go when nobody refers to them, those who jump first. The
// jumps in built-in chains are replaced within one step, so that there is no
// moment without. Chains of kube-proxy bear the same names, so taking a node
// over is a difference like any other. Chains of others are not touched, and
// KUBE-FIREWALL, which the kubelet fills too, is only added to.
package iptables
