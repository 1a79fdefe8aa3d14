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

// Mode is the back end of one proxy mode. Its dataplane is in the table of package apply/daemon/host.
type Mode struct {
	// Lower returns the rules of one node's Programs.
	Lower func(ir.Programs) render.Rendered
	// Evaluate returns the effect of a Program's rules on packets.
	Evaluate func(*ir.Program) prove.Side
	// Follow returns a Follower of a Program's rules, or nil if proxyc cannot follow them.
	Follow func(*ir.Program) Follower
	// OwnTable is set if the rules are a separate nf_tables table.
	OwnTable bool
	// Chain is the chain in table nat of iptables that identifies the rules; "" if there is none.
	Chain string
	Linux *Linux // nil if only Windows has the mode
}

// Linux describes the use of a mode on a Linux node. In its commands, INPUT stands for the flags of
// the configuration and the snapshot.
type Linux struct {
	Needs       []string // requirements of the node besides settings and findings
	Save        string   // commands that save the rules
	Look        string   // command that compares the rules with their meaning
	Connections string   // effect on open connections when the node changes to another mode
}

// Follower follows packets through rules, one at a time.
type Follower interface {
	Follow(sim.Packet) sim.Path
	// Toward returns the rules that a packet meets on a way to one of its results.
	Toward(sim.Packet, sim.Chance) []sim.Met
}

// Modes is the table of modes. It does not cover their access to a kernel.
var Modes = map[ir.Mode]Mode{
	ir.ModeIPTables: {
		Lower:    func(programs ir.Programs) render.Rendered { return iptables.LowerAll(programs) },
		Evaluate: func(p *ir.Program) prove.Side { return ipteval.NewEvaluator(iptables.Lower(p), sim.OwnOfNode(p)) },
		Follow:   func(p *ir.Program) Follower { return xtables.NewFollower(iptables.Lower(p), sim.OwnOfNode(p)) },
		Chain:    iptables.ChainNodePorts,
		Linux: &Linux{
			Needs:       []string{"iptables-save, iptables-restore and their IPv6 counterparts, of the variant (nft or legacy) that other programs on the node use"},
			Save:        saveIPTables,
			Look:        "proxyc prove INPUT --mode iptables ir kernel",
			Connections: "open connections continue",
		},
	},
	ir.ModeIPVS: {
		Lower:    ipvs.LowerAll,
		Evaluate: func(p *ir.Program) prove.Side { return ipvseval.NewEvaluator(ipvs.Lower(p), sim.OwnOfNode(p)) },
		Follow:   func(p *ir.Program) Follower { return ipvseval.NewFollower(ipvs.Lower(p), sim.OwnOfNode(p)) },
		Chain:    iptables.ChainLoadBalancer,
		Linux: &Linux{
			Needs: []string{"ip_vs and its scheduler, and dummy devices, in the kernel or as modules",
				"ipset, and iptables of the variant (nft or legacy) that other programs on the node use"},
			Save:        saveIPTables + "; ipset save >before.ipset; ipvsadm -Sn >before.ipvs",
			Look:        "proxyc apply INPUT --mode ipvs --check",
			Connections: "open connections continue; virtual servers remain until their connections end (docs/operate.md)",
		},
	},
	ir.ModeNFTables: {
		Lower:    func(programs ir.Programs) render.Rendered { return nftables.LowerAll(programs) },
		Evaluate: func(p *ir.Program) prove.Side { return nfteval.NewEvaluator(nftables.Lower(p), sim.OwnOfNode(p)) },
		Follow:   func(p *ir.Program) Follower { return nfteval.NewFollower(nftables.Lower(p), sim.OwnOfNode(p)) },
		OwnTable: true,
		Linux: &Linux{
			Needs:       []string{"Linux 5.13 or later; nft 1.0.1 or later, only to list the rules"},
			Save:        "nft list ruleset >before",
			Look:        "proxyc prove INPUT --mode nftables ir kernel",
			Connections: "open connections continue",
		},
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
		Chain: iptables.ChainPortalsContainer,
		Linux: &Linux{
			Needs: []string{"proxyc watch, which forwards the connections itself; apply does not support the mode",
				"iptables of the variant (nft or legacy) that other programs on the node use"},
			Save:        saveIPTables,
			Look:        "proxyc status",
			Connections: "connections through the process end with it",
		},
	},
}

const saveIPTables = "iptables-save >before; ip6tables-save >before6"
