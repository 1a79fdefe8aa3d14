package review

import (
	"cmp"
	"fmt"
	"io"
	"strings"

	"github.com/proxyc/proxyc/ir"
	"github.com/proxyc/proxyc/ir/prove"
	"github.com/proxyc/proxyc/ir/sim"
	"github.com/proxyc/proxyc/render"
	"github.com/proxyc/proxyc/render/hns"
	hnseval "github.com/proxyc/proxyc/render/hns/eval"
	"github.com/proxyc/proxyc/render/iptables"
	ipteval "github.com/proxyc/proxyc/render/iptables/eval"
	"github.com/proxyc/proxyc/render/ipvs"
	ipvseval "github.com/proxyc/proxyc/render/ipvs/eval"
	"github.com/proxyc/proxyc/render/nftables"
	nfteval "github.com/proxyc/proxyc/render/nftables/eval"
	"github.com/proxyc/proxyc/render/userspace"
	userspaceeval "github.com/proxyc/proxyc/render/userspace/eval"
)

// Outputs returns all texts that can be made of the programs of one node: the
// mode's own, the first of which is the default, and the IR's two forms.
func Outputs(programs ir.Programs) (own []render.Output, all []render.Output, rendered render.Rendered) {
	rendered = Renderers[programs.IPv4.Node.Mode].Lower(programs)
	own = rendered.Outputs()
	all = append(own[:len(own):len(own)],
		render.Output{Format: "ir", Write: func(w io.Writer) error { return ir.WriteText(w, programs) }},
		render.Output{Format: "ir-json", Write: func(w io.Writer) error { return ir.WriteJSON(w, programs) }})
	return own, all, rendered
}

// WriteFormat writes one text of the programs; format "" is the mode's own.
func WriteFormat(w io.Writer, programs ir.Programs, format string) error {
	_, all, _ := Outputs(programs)
	names := make([]string, len(all))
	for i, o := range all {
		if o.Format == cmp.Or(format, all[0].Format) {
			return Buffered(w, o.Write)
		}
		names[i] = o.Format
	}
	return &FormatError{programs.IPv4.Node.Mode, names, format}
}

// FormatError is the error of a format that a mode does not write.
type FormatError struct {
	Mode   ir.Mode
	Writes []string
	got    string
}

func (e *FormatError) Error() string {
	return fmt.Sprintf("-o: mode %s writes %s, got %q%s", e.Mode, strings.Join(e.Writes, ", "), e.got, DidYouMean(e.got, e.Writes))
}

// Renderers are all back ends, by mode: the one list of them.
var Renderers = map[ir.Mode]render.Renderer{
	ir.ModeIPTables:    iptables.Renderer,
	ir.ModeIPVS:        ipvs.Renderer,
	ir.ModeNFTables:    nftables.Renderer,
	ir.ModeKernelspace: hns.Renderer,
	ir.ModeUserspace:   userspace.Renderer,
}

// Evaluators lower a Program to the rules of its mode, and walk packets through them.
var Evaluators = map[ir.Mode]func(*ir.Program) prove.Side{
	ir.ModeIPTables:    func(p *ir.Program) prove.Side { return ipteval.NewEvaluator(iptables.Lower(p), sim.OwnOfNode(p)) },
	ir.ModeNFTables:    func(p *ir.Program) prove.Side { return nfteval.NewEvaluator(nftables.Lower(p), sim.OwnOfNode(p)) },
	ir.ModeIPVS:        func(p *ir.Program) prove.Side { return ipvseval.NewEvaluator(ipvs.Lower(p), sim.OwnOfNode(p)) },
	ir.ModeKernelspace: func(p *ir.Program) prove.Side { return hnseval.NewEvaluator(hns.Lower(p), sim.OwnOfNode(p)) },
	ir.ModeUserspace: func(p *ir.Program) prove.Side {
		return userspaceeval.NewEvaluator(userspace.Lower(p), sim.OwnOfNode(p))
	},
}
