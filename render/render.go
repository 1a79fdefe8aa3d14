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
	Load   string // the shell command that loads File: "iptables-restore --noflush iptables.rules"
	Write  func(io.Writer) error
}

// Entry says of one rule, chain or element which Origin it has.
type Entry struct {
	Where  string         // as the tool lists it: "nat KUBE-SVC-…", "ip proxyc service-ips 10.96.0.10 . tcp . 80"
	Match  string         // the ir.Match that it serves, as text; empty if none
	Port   ir.ServicePort // the service port behind it; zero for fixed rules
	Origin ir.Origin
}

// Rendered is a lowered set of Programs, ready to be written.
type Rendered interface {
	// Outputs gives the texts in a fixed order; the first is the mode's own.
	Outputs() []Output
	// Explain calls yield for every rule and element in output order until it returns false.
	Explain(yield func(Entry) bool)
}

// Renderer is one mode's back end.
type Renderer struct {
	Mode  ir.Mode
	Lower func(programs []*ir.Program) Rendered // programs of one node, IPv4 before IPv6
}
