// Package iptables lowers Programs of the iptables mode to typed tables,
// chains and rules, and writes those as input of iptables-restore and
// ip6tables-restore.
//
// # What a packet meets
//
// The fixed chains, their jumps from the built-in chains and the names of the
// chains of a service port are kube-proxy's (IPT-1 to IPT-3), so that people
// and programs find what they know, and taking a node over from kube-proxy is
// a difference between two Rulesets. Three things are not kube-proxy's:
//
//   - Dispatch. A dispatch chain holds an entry of each Service, such as
//     nat KUBE-SERVICES. One of more than treeThreshold entries becomes a
//     tree of chains by address or port, four bits a level (tree.go), so that
//     a packet meets some 40 rules instead of all, and a change touches a leaf.
//   - Endpoints. DNAT stands in the chain of the pool. Chains of one endpoint
//     (KUBE-SEP-) exist for session affinity only.
//   - Hairpin connections are found after DNAT, in postrouting, by one rule for
//     each distinct backend address (KUBE-HAIRPIN), not in a chain of the endpoint.
//
// # The parts
//
// ruleset returns what depends on the Node alone. LowerService returns a
// Fragment: the chains of one Service and its entries in the dispatch chains;
// it reads nothing of other Services. Assemble puts both together. Everything
// is a pure function of its arguments; equal Programs give equal bytes. A
// Lowerer does the same step by step: it keeps the trees, and makes of the
// chains those that a change touches.
//
// Rules are flat values, not lists of matches: a cluster of 50,000 Services has
// a million of them, and they are compared often. Modes ipvs and userspace,
// which need few rules beside what does their work, have them in the same form,
// so that they are read, planned and evaluated like these.
//
// Package parse, beneath, reads rules of any author; package eval walks packets through them.
package iptables
