// Package iptables lowers Programs of mode iptables to typed tables, chains and
// rules, and writes them as input of iptables-restore and ip6tables-restore.
//
// # Layout of the rules
//
// The fixed chains (IPT-1), the names of the chains of a service port (IPT-2),
// the masquerade mark (IPT-3) and the jumps from built-in chains are those of
// kube-proxy. Users and programs find the chains that they expect, and a takeover
// from kube-proxy is a difference between two Rulesets. Three parts differ from
// kube-proxy:
//
//   - Dispatch. A dispatch chain, such as nat KUBE-SERVICES, has an entry for
//     each Service. A dispatch chain with more than treeThreshold entries becomes
//     a tree of chains by address or port, four bits per level (tree.go). A
//     packet then traverses about 40 rules instead of all, and a change touches a
//     leaf.
//   - Endpoints. DNAT is in the chain of the pool. Chains of one endpoint
//     (KUBE-SEP-) exist only for session affinity.
//   - Hairpin connections are detected after DNAT, in postrouting, by one rule
//     for each distinct backend address (KUBE-HAIRPIN) instead of in a chain of
//     the endpoint.
//
// # Structure of the package
//
// ruleset returns the part that depends only on the Node. LowerService returns a
// Fragment: the chains of one Service and its entries in the dispatch chains. It
// is independent of other Services. Assemble combines both. All are pure
// functions, and equal Programs yield equal bytes. A Lowerer works incrementally:
// it keeps the trees and rebuilds only the chains that a change touches.
//
// Rules are flat values instead of lists of matches, because a cluster of 50,000
// Services has a million of them, and they are compared often. Modes ipvs and
// userspace need only a few rules. They use the same types, so that their rules
// are parsed, planned and evaluated in the same way.
//
// Package parse parses rules of any author. Package eval evaluates packets
// against them.
package iptables
