// Package eval evaluates packets against the rules, sets and virtual servers of
// mode ipvs.
package eval
