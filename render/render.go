// Package render turns Programs into the input of each kind of dataplane.
// Each package below it lowers ir to a typed Ruleset and writes that as bytes.
package render

import (
	"io"

	"github.com/proxyc/proxyc/ir"
)

// Output is one text that a mode needs.
type Output struct {
	Format string // the name that compile -o takes: "iptables", "nftables", "ipvsadm", ...
	File   string // the name under compile --out-dir: "iptables.rules", ...
	Load   string // the shell command that loads File: "iptables-restore --noflush iptables.rules"; empty if there is none
	Note   string // what to know before loading File, in sentences; never empty where Load is
	Write  func(io.Writer) error
}

// Entry says of one rule, chain or element which Origin it has.
type Entry struct {
	Where  string         // as the tool lists it: "iptables nat KUBE-SVC-… 2", "ip proxyc service-ips 10.96.0.10 . tcp . 80"
	Text   string         // of a rule, as the tool lists it there; empty for all else
	Match  string         // the ir.Match that it serves, as text; empty if none
	Port   ir.ServicePort // the service port behind it; zero for fixed rules
	Origin ir.Origin
}

// String returns Where and Text in one line.
func (e Entry) String() string {
	if e.Text == "" {
		return e.Where
	}
	return e.Where + ": " + e.Text
}

// Rendered is a lowered set of Programs, ready to be written.
type Rendered interface {
	// Outputs returns the texts in a fixed order; the first is the mode's own.
	Outputs() []Output
	// Explain calls yield for every rule and element in output order until it returns false.
	Explain(yield func(Entry) bool)
}

// Each lowers the Programs that are there, one by one.
func Each[R any](programs ir.Programs, lower func(*ir.Program) *R) (rulesets ir.PerFamily[*R]) {
	for f, p := range ir.Present(programs) {
		*rulesets.At(f) = lower(p)
	}
	return rulesets
}
