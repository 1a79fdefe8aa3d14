// Package eval walks packets through the rules, sets and virtual servers of mode ipvs.
package eval
