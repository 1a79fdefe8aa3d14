// Package render turns Programs into the input of each kind of dataplane. Each
// package below it lowers ir to a typed Ruleset and writes that as bytes.
package render

import (
	"io"

	"github.com/proxyc/proxyc/ir"
)

// Output is one text that a mode produces.
type Output struct {
	Format string // format name for compile -o: "iptables", "nftables", "ipvsadm", ...
	File   string // file name for compile --out-dir: "iptables.rules", ...
	Load   string // shell command that loads File: "iptables-restore --noflush iptables.rules"; empty if there is none
	Note   string // instructions for loading File, in sentences; never empty if Load is empty
	Write  func(io.Writer) error
}

// Entry is the Origin of one rule, chain or element.
type Entry struct {
	Where  string         // in the tool's notation: "iptables nat KUBE-SVC-… 2", "ip proxyc service-ips 10.96.0.10 . tcp . 80"
	Text   string         // of a rule, in the tool's notation; empty for other entries
	Match  string         // text of the ir.Match that it serves; empty if none
	Port   ir.ServicePort // its service port; zero for fixed rules
	Origin ir.Origin
}

// String returns Where and Text on one line.
func (e Entry) String() string {
	if e.Text == "" {
		return e.Where
	}
	return e.Where + ": " + e.Text
}

// Rendered is a lowered set of Programs, ready to be written.
type Rendered interface {
	// Outputs returns the texts in a fixed order. The first is the mode's own.
	Outputs() []Output
	// Explain calls add with every rule and element, in output order.
	Explain(add func(Entry))
}

// Each lowers all non-nil Programs.
func Each[R any](programs ir.Programs, lower func(*ir.Program) *R) (rulesets ir.PerFamily[*R]) {
	for f, p := range ir.Present(programs) {
		*rulesets.At(f) = lower(p)
	}
	return rulesets
}

// Writer returns a function that writes the Rulesets of some families in turn.
func Writer[R any](rulesets ir.PerFamily[*R], write func(*R, io.Writer) error, of ...ir.Family) func(io.Writer) error {
	return func(w io.Writer) error {
		for _, f := range of {
			if r := rulesets.Of(f); r != nil {
				if err := write(r, w); err != nil {
					return err
				}
			}
		}
		return nil
	}
}
