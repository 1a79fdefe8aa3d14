// Package eval walks packets through the tables of nf_tables as the kernel does: those that
// render/nftables lowers, and those of any author that render/nftables/parse reads.
//
// An Evaluator knows hooks, chains, statements and sets, and nothing of what the tables are for. A
// packet meets every outcome of every random choice. What cannot be followed as the kernel does it is a
// doubt, never a match.
package eval
