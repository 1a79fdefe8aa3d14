package review

import (
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
	"github.com/proxyc/proxyc/render/xtables"
)

// Mode is one mode's back end. Its dataplane is in the table of apply/daemon.
type Mode struct {
	// Lower returns the rules of one node's Programs, ready to be written.
	Lower func(ir.Programs) render.Rendered
	// Evaluate returns what the rules of a Program do to packets.
	Evaluate func(*ir.Program) prove.Side
	// Follow returns a Follower of the rules of a Program; nil if they cannot be followed.
	Follow func(*ir.Program) Follower
}

// Follower returns the rules that packets meet, one packet at a time.
type Follower interface {
	Follow(sim.Packet) sim.Path
}

// Modes is the one table of modes, except for how they reach a kernel.
var Modes = map[ir.Mode]Mode{
	ir.ModeIPTables: {
		Lower:    func(programs ir.Programs) render.Rendered { return iptables.LowerAll(programs) },
		Evaluate: func(p *ir.Program) prove.Side { return ipteval.NewEvaluator(iptables.Lower(p), sim.OwnOfNode(p)) },
		Follow:   func(p *ir.Program) Follower { return xtables.NewFollower(iptables.Lower(p), sim.OwnOfNode(p)) },
	},
	ir.ModeIPVS: {
		Lower:    ipvs.LowerAll,
		Evaluate: func(p *ir.Program) prove.Side { return ipvseval.NewEvaluator(ipvs.Lower(p), sim.OwnOfNode(p)) },
		Follow:   func(p *ir.Program) Follower { return ipvseval.NewFollower(ipvs.Lower(p), sim.OwnOfNode(p)) },
	},
	ir.ModeNFTables: {
		Lower:    func(programs ir.Programs) render.Rendered { return nftables.LowerAll(programs) },
		Evaluate: func(p *ir.Program) prove.Side { return nfteval.NewEvaluator(nftables.Lower(p), sim.OwnOfNode(p)) },
		Follow:   func(p *ir.Program) Follower { return nfteval.NewFollower(nftables.Lower(p), sim.OwnOfNode(p)) },
	},
	ir.ModeKernelspace: {
		Lower:    hns.LowerAll,
		Evaluate: func(p *ir.Program) prove.Side { return hnseval.NewEvaluator(hns.Lower(p), sim.OwnOfNode(p)) },
	},
	ir.ModeUserspace: {
		Lower: userspace.LowerAll,
		Evaluate: func(p *ir.Program) prove.Side {
			return userspaceeval.NewEvaluator(userspace.Lower(p), sim.OwnOfNode(p))
		},
	},
}
