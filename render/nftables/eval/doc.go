// Package eval evaluates packets against nf_tables tables as the kernel does:
// those from render/nftables, and those of any author from render/nftables/parse.
//
// An Evaluator uses only hooks, chains, statements and sets, and does not depend
// on the purpose of the tables. It evaluates every result of every random choice.
// Everything that it cannot evaluate like the kernel is a doubt, never a match.
package eval
