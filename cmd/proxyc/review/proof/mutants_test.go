package proof_test

import (
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"testing"
	"time"

	"github.com/proxyc/proxyc/cmd/proxyc/review/reviewtest"
	"github.com/proxyc/proxyc/ir"
	"github.com/proxyc/proxyc/ir/prove"
	"github.com/proxyc/proxyc/ir/sim"
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

// mutant is a ruleset with one fault.
type mutant struct {
	what string
	side func() prove.Side
}

// newMutant lowers a Program, changes the rules, and evaluates them, when asked to.
func newMutant[R any, S prove.Side](what string, p *ir.Program, lower func(*ir.Program) R, change func(R), evaluate func(R, *sim.Own) S) mutant {
	return mutant{what, func() prove.Side {
		r := lower(p)
		change(r)
		return evaluate(r, sim.OwnOfNode(p))
	}}
}

// TestMutants puts single faults into the rules of random clusters. The proof must find each fault
// that random packets find. Faults that neither finds are logged by kind.
func TestMutants(t *testing.T) {
	for mode, mutate := range map[ir.Mode]func(*ir.Program) []mutant{
		ir.ModeNFTables: nftMutants, ir.ModeIPTables: iptablesMutants, ir.ModeIPVS: ipvsMutants,
		ir.ModeUserspace: userspaceMutants, ir.ModeKernelspace: hnsMutants,
	} {
		t.Run(string(mode), func(t *testing.T) {
			t.Parallel()
			found, sampled, alike := 0, 0, map[string]int{}
			for n := range uint64(2) {
				r := reviewtest.New(7, n)
				w := r.World(mode)
				for _, p := range ir.Present(w.Compile(t)) {
					meaning := sim.NewEvaluator(p)
					pkts := make([]sim.Packet, 200)
					for i := range pkts {
						pkts[i] = r.Packet(p)
					}
					for _, m := range mutate(p) {
						side := m.side()
						result, err := prove.Compare(t.Context(), prove.NodeOf(p), meaning, side)
						if err != nil {
							t.Fatal(err)
						}
						differs := slices.ContainsFunc(pkts, func(pkt sim.Packet) bool {
							return !side.Outcome(pkt, nil).Equal(meaning.Outcome(pkt, nil))
						})
						if differs {
							sampled++
						}
						switch {
						case !result.Equal():
							found++
						case differs:
							t.Errorf("world %d: %s: a packet at random shows the fault, the proof does not", n, m.what)
						default:
							alike[m.what]++
							if whyAlike(mode, m.what) == "" {
								t.Errorf("world %d: %s: nothing shows the fault, and nobody has said why that is right", n, m.what)
							}
						}
					}
				}
			}
			t.Logf("found %d, of which packets at random %d; alike %d:", found, sampled, len(alike))
			for what, n := range alike {
				t.Logf("%4d %s", n, what)
			}
		})
	}
}

func nftMutants(p *ir.Program) (all []mutant) {
	add := func(what string, change func(*nftables.Ruleset)) {
		all = append(all, newMutant(what, p, nftables.Lower, change, nfteval.NewEvaluator))
	}
	of := nftables.Lower(p)
	for i, s := range of.Sets {
		for j, e := range s.Elements {
			what := fmt.Sprintf("element of %s", s.Name)
			add(what+" lost", func(r *nftables.Ruleset) { r.Sets[i].Elements = slices.Delete(r.Sets[i].Elements, j, j+1) })
			if slices.Contains(s.Key, nftables.TypePort) {
				add(what+" for another port", func(r *nftables.Ruleset) { r.Sets[i].Elements[j].Key.Port++ })
			}
			add(what+" for another protocol", func(r *nftables.Ruleset) { r.Sets[i].Elements[j].Key.Proto ^= ir.TCP ^ ir.UDP })
			if s.Interval && e.Key.Bits > 0 {
				add(what+" one bit wider", func(r *nftables.Ruleset) {
					k := &r.Sets[i].Elements[j].Key
					k.Bits--
					k.Addr2 = netip.PrefixFrom(k.Addr2, int(k.Bits)).Masked().Addr()
				})
			}
			if s.Data == nftables.AddrPortData {
				add(what+" to another port", func(r *nftables.Ruleset) {
					to := &r.Sets[i].Elements[j].To
					*to = netip.AddrPortFrom(to.Addr(), to.Port()+1)
				})
			}
			if j > 0 && s.Data == nftables.VerdictData && s.Elements[j-1].Verdict != e.Verdict {
				add(what+" with another verdict", func(r *nftables.Ruleset) {
					r.Sets[i].Elements[j].Verdict = r.Sets[i].Elements[j-1].Verdict
				})
			}
		}
	}
	for i, c := range of.Chains {
		for j, rule := range c.Rules {
			what := fmt.Sprintf("rule %d of %s", j, c.Name)
			add(what+" lost", func(r *nftables.Ruleset) { r.Chains[i].Rules = slices.Delete(r.Chains[i].Rules, j, j+1) })
			if j > 0 {
				add(what+" before the one before", func(r *nftables.Ruleset) {
					rules := r.Chains[i].Rules
					rules[j], rules[j-1] = rules[j-1], rules[j]
				})
			}
			for k := range rule.Stmts {
				add(fmt.Sprintf("%s: %T lost", what, rule.Stmts[k]), func(r *nftables.Ruleset) {
					rule := &r.Chains[i].Rules[j]
					rule.Stmts = slices.Delete(slices.Clone(rule.Stmts), k, k+1)
				})
			}
		}
	}
	return all
}

func iptablesMutants(p *ir.Program) (all []mutant) {
	add := func(what string, change func(*iptables.Ruleset)) {
		all = append(all, newMutant(what, p, iptables.Lower, change, ipteval.NewEvaluator))
	}
	ruleMutants(iptables.Lower(p), add)
	return all
}

// ruleMutants adds those of all rules of iptables.
func ruleMutants(of *iptables.Ruleset, add func(what string, change func(*iptables.Ruleset))) {
	for i, table := range of.Tables() {
		for j, c := range table.Chains {
			for k, rule := range c.Rules {
				stem, _, _ := cutLast(c.Name)
				what := fmt.Sprintf("%s: rule of %s", table.Name, stem)
				at := func(r *iptables.Ruleset) *[]iptables.Rule { return &r.Tables()[i].Chains[j].Rules }
				edit := func(how string, change func(*iptables.Rule)) {
					add(what+" "+how, func(r *iptables.Ruleset) {
						rules := slices.Clone(*at(r))
						change(&rules[k])
						*at(r) = rules
					})
				}
				add(what+" lost", func(r *iptables.Ruleset) { *at(r) = slices.Delete(slices.Clone(*at(r)), k, k+1) })
				if k > 0 {
					add(what+" before the one before", func(r *iptables.Ruleset) {
						rules := slices.Clone(*at(r))
						rules[k], rules[k-1] = rules[k-1], rules[k]
						*at(r) = rules
					})
				}
				if rule.Ports != (iptables.PortRange{}) {
					edit("for one port more", func(r *iptables.Rule) { r.Ports.Last++ })
				}
				if rule.Src.IsValid() {
					edit("with a source one bit wider", func(r *iptables.Rule) {
						r.Src = netip.PrefixFrom(r.Src.Addr(), r.Src.Bits()-1).Masked()
					})
				}
				if rule.Dst.IsValid() {
					edit("with a destination one bit wider", func(r *iptables.Rule) {
						r.Dst = netip.PrefixFrom(r.Dst.Addr(), r.Dst.Bits()-1).Masked()
					})
				}
				if rule.OneIn > 1 {
					edit("with another share", func(r *iptables.Rule) { r.OneIn++ })
				}
				if rule.Not != 0 {
					edit("without its negation", func(r *iptables.Rule) { r.Not = 0 })
				}
				if rule.States != 0 {
					edit("without its state", func(r *iptables.Rule) { r.States = 0 })
				}
				if rule.Protocol != 0 && rule.Ports == (iptables.PortRange{}) {
					edit("without its protocol", func(r *iptables.Rule) { r.Protocol = 0 })
				}
				if rule.To.IsValid() {
					edit("to another port", func(r *iptables.Rule) { r.To = netip.AddrPortFrom(r.To.Addr(), r.To.Port()+1) })
				}
			}
		}
	}
}

func userspaceMutants(p *ir.Program) (all []mutant) {
	add := func(what string, change func(*userspace.Ruleset)) {
		all = append(all, newMutant(what, p, userspace.Lower, change, userspaceeval.NewEvaluator))
	}
	of := userspace.Lower(p)
	for i, l := range of.Listeners {
		add("listener lost", func(r *userspace.Ruleset) { r.Listeners = slices.Delete(r.Listeners, i, i+1) })
		add(emptyOr("listener", len(l.Backends))+" with other affinity", func(r *userspace.Ruleset) { r.Listeners[i].Affinity = time.Hour - r.Listeners[i].Affinity })
		for j := range l.Backends {
			add("backend lost", func(r *userspace.Ruleset) {
				r.Listeners[i].Backends = slices.Delete(slices.Clone(l.Backends), j, j+1)
			})
		}
	}
	ruleMutants(of.Rules, func(what string, change func(*iptables.Ruleset)) {
		add(what, func(r *userspace.Ruleset) { change(r.Rules) })
	})
	return all
}

func hnsMutants(p *ir.Program) (all []mutant) {
	add := func(what string, change func(*hns.Ruleset)) {
		all = append(all, newMutant(what, p, hns.Lower, change, hnseval.NewEvaluator))
	}
	of := hns.Lower(p)
	for i := range of.LoadBalancers {
		add("load balancer lost", func(r *hns.Ruleset) { r.LoadBalancers = slices.Delete(r.LoadBalancers, i, i+1) })
		add("load balancer at another port", func(r *hns.Ruleset) { r.LoadBalancers[i].Match.Port++ })
		add("load balancer to another port", func(r *hns.Ruleset) {
			r.LoadBalancers[i].HCN.PortMappings = slices.Clone(r.LoadBalancers[i].HCN.PortMappings)
			r.LoadBalancers[i].HCN.PortMappings[0].InternalPort++
		})
	}
	for i := range of.Endpoints {
		add("endpoint lost", func(r *hns.Ruleset) { r.Endpoints = slices.Delete(r.Endpoints, i, i+1) })
	}
	return all
}

func ipvsMutants(p *ir.Program) (all []mutant) {
	add := func(what string, change func(*ipvs.Ruleset)) {
		all = append(all, newMutant(what, p, ipvs.Lower, change, ipvseval.NewEvaluator))
	}
	of := ipvs.Lower(p)
	for i, x := range of.Elements {
		add(fmt.Sprintf("element of %s lost", x.Set), func(r *ipvs.Ruleset) { r.Elements = slices.Delete(r.Elements, i, i+1) })
		if x.Source.IsValid() && x.Source.Bits() > 1 && !x.Source.IsSingleIP() {
			add(fmt.Sprintf("element of %s one bit wider", x.Set), func(r *ipvs.Ruleset) {
				s := &r.Elements[i].Source
				*s = netip.PrefixFrom(s.Addr(), s.Bits()-1).Masked()
			})
		}
	}
	for i, v := range of.VirtualServers {
		add("virtual server lost", func(r *ipvs.Ruleset) { r.VirtualServers = slices.Delete(r.VirtualServers, i, i+1) })
		add(emptyOr("virtual server", len(v.RealServers))+" with other affinity", func(r *ipvs.Ruleset) { r.VirtualServers[i].Flags ^= ipvs.Persistent })
		for j := range v.RealServers {
			add("real server lost", func(r *ipvs.Ruleset) {
				r.VirtualServers[i].RealServers = slices.Delete(slices.Clone(v.RealServers), j, j+1)
			})
		}
	}
	ruleMutants(of.Rules, func(what string, change func(*iptables.Ruleset)) {
		add(what, func(r *ipvs.Ruleset) { change(r.Rules) })
	})
	return all
}

// emptyOr names a target with or without backends. One without refuses all clients and has no
// affinity.
func emptyOr(what string, backends int) string {
	if backends == 0 {
		return "empty " + what
	}
	return what
}

const ownPool = "its own backend never comes to the pool: a pod, where pods go to that of policy Cluster, or where the node alone comes"

// alikes are the kinds of faults that may have no effect on any first packet, with the reason. Each
// was checked by hand, with its rule and the cluster. Faults of other kinds must always be found.
var alikes = []struct {
	mode ir.Mode // "": all
	what string  // of the fault
	why  string
}{
	{"", `before the one before$`, "two rules that no packet meets both, or that do the same"},
	{"", `^rule \d+ of filter-.*MatchNew lost$|without its state$`, "a first packet is new, and no other is asked about"},
	{"", `^empty .* with other affinity$`, "it refuses everybody, whom nobody has to remember"},

	{ir.ModeNFTables, `: nftables.Counter lost$`, "a counter does not affect a packet"},
	{ir.ModeNFTables, `^rule \d+ of (affinity|affinity-nodeports|(masq-|masq-nonlocal-)?lb-\S+): nftables.MatchProto lost$`, "the keys that are looked up have the protocol"},
	{ir.ModeNFTables, `^rule [0-3] of (affinity-(nodeports-)?input|nat-postrouting): nftables.MatchDNAT lost$`, "what nobody translated has no backend's address, or is the node's own"},
	{ir.ModeNFTables, `^rule 0 of (affinity-input|nat-postrouting): nftables.MatchSet lost$`, "connections to other addresses are looked up as well, and not found"},
	{ir.ModeNFTables, `^rule 0 of affinity-(nodeports-)?input(: nftables.Verdict)? lost$`, "no backend is the node itself"},
	{ir.ModeNFTables, `^rule \d+ of affinity(-nodeports)?(:.*LookupVerdict)? lost$`, "no Service of that protocol has affinity, or source ranges, and the map is empty"},
	{ir.ModeNFTables, `^rule \d+ of service-(ips|nodeports)-by-source(:.*)? lost$`, "no Service has elements in that map"},
	{ir.ModeNFTables, `^rule \d+ of (services|node-ports|no-backend|service-(ips|nodeports)-by-source)(:.*(Verdict|LookupVerdict))? lost$`, "every frontend has endpoints, or what is translated before has another address"},
	{ir.ModeNFTables, `^element of count-\d+-(ips|nodeports) (lost|for another (port|protocol))$`, "the bit is not asked for: the numbers in use differ in others"},
	{ir.ModeNFTables, `^rule 2 of nat-(prerouting|output)(: nftables.Verdict)? lost$`, "only a packet during a commit arrives there"},
	{ir.ModeNFTables, `^rule 1 of nat-(prerouting|output)(: nftables.Verdict)? lost$|^rule [01] of services: nftables.Verdict lost$|^rule \d+ of (masq-nonlocal-lb|masq-lb|masq-lb-nodeport)(:.*)? lost$`, "no frontend is led there"},
	{ir.ModeNFTables, `^rule 1 of masq-lb-\d+(: nftables.LookupDNAT)? lost$`, "what comes back from it goes to masq-lb, which does the same"},
	{ir.ModeNFTables, `^rule \d+ of (services|no-backend): nftables.Match(Net|Local) lost$`, "no node port is a port of the addresses that come in, too"},
	{ir.ModeNFTables, `^element of no-endpoint-services (lost|for another (port|protocol))$`, "a ClusterIP without endpoints: the rule for unused ports refuses it, too"},
	{ir.ModeNFTables, `^element of hairpin-addresses (lost|for another protocol)$|^rule [1-3] of nat-postrouting(: nftables.Masquerade)? lost$`, ownPool},

	{ir.ModeIPTables, `^filter: rule of KUBE-FORWARD lost$`, "it accepts what the policy accepts, or drops what is in state INVALID"},
	{ir.ModeIPTables, `^filter: rule of KUBE-FIREWALL (lost|without its negation|with a source one bit wider)$`, "packets to 127.0.0.0/8 from elsewhere do not come by a first packet's way"},
	{ir.ModeIPTables, `^filter: rule of KUBE-NODEPORTS (lost|for one port more)$`, "it accepts health checks, as the policy does"},
	{ir.ModeIPTables, `^filter: rule of KUBE-(EXTERNAL-SERVICES (lost|for one port more)|PROXY-FIREWALL for one port more|SERVICES for one port more)$`, "another rule refuses the neighbour or the same, too"},
	{ir.ModeIPTables, `^nat: rule of KUBE-FW-\S+ (lost|with a source one bit wider)$`, "the frontend drops all the others anyway, or the rule has a comment alone"},
	{ir.ModeIPTables, `^nat: rule of KUBE-MARK-MASQ (lost|with a destination one bit wider)$`, "node ports at localhost, which this cluster has not at these addresses"},
	{ir.ModeIPTables, `^nat: rule of KUBE-POSTROUTING lost$`, "no client of the cluster is its own backend"},
	{ir.ModeIPTables, `^nat: rule of KUBE-SEP (lost|with a source one bit wider)$`, ownPool},
	{ir.ModeIPTables, `^nat: rule of KUBE-HAIRPIN with a destination one bit wider$`, "the neighbour's address is no backend's"},
	{ir.ModeIPTables, `^nat: rule of KUBE-(SVC|SVL|SEP) without its protocol$`, "only packets of that protocol come to the chain"},
	{ir.ModeIPTables, `^nat: rule of KUBE-(SVC|SERVICES) (for one port more|with a destination one bit wider)$`, "only the frontend's packets come to the chain, or the neighbour is nobody's"},

	{ir.ModeUserspace, `^filter: rule of KUBE-NODEPORT-NON-LOCAL (lost|for one port more)$`, "it accepts what the policy accepts"},
	{ir.ModeUserspace, `^nat: rule of KUBE-NODEPORT-(CONTAINER|HOST) (lost|with a destination one bit wider)$`, "it lets localhost be: no packet comes from elsewhere to it, or there are no node ports"},
	{ir.ModeUserspace, `^nat: rule of KUBE-PORTALS-CONTAINER (lost|with a destination one bit wider)$`, "an external address that the node has not, for those that it has"},
	{ir.ModeUserspace, `^nat: rule of KUBE-PORTALS-(CONTAINER|HOST) for one port more$`, "that, or the rule before has the neighbour"},

	{ir.ModeIPVS, `^nat: rule of KUBE-POSTROUTING lost$`, "no client of the cluster is its own backend, or nothing is marked for masquerade"},
	{ir.ModeIPVS, `^nat: rule of KUBE-SERVICES lost$`, "it accepts what the end of the chain accepts, or asks for a set without elements"},
	{ir.ModeIPVS, `^nat: rule of KUBE-SERVICES (without its negation|with a source one bit wider)$`, "it accepts what the end of the chain accepts"},
	{ir.ModeIPVS, `^nat: rule of KUBE-(LOAD-BALANCER|NODE-PORT) (lost|without its protocol)$`, "its set is empty, or of that protocol alone; or what it marks is marked, or refused, anyway"},
	{ir.ModeIPVS, `^filter: rule of KUBE-(FORWARD|NODE-PORT) (lost|without its protocol)$`, "it accepts what the policy accepts, or drops what is in state INVALID"},
	{ir.ModeIPVS, `^filter: rule of KUBE-(IPVS-FILTER|PROXY-FIREWALL|SOURCE-RANGES-FIREWALL) (lost|without its protocol)$`, "it returns what no later rule takes, or its set is empty"},
	{ir.ModeIPVS, `^filter: rule of KUBE-IPVS-OUT-FILTER (lost|with a source one bit wider)$`, "the frontend has no endpoint, and refuses the node, too"},
	{ir.ModeIPVS, `^element of KUBE-\S+ lost$`, "the frontend has no endpoint, and ip_vs refuses before it matters; or the source is a load balancer's own address"},
}

// whyAlike returns the reason why a fault of a mode's rules may have no effect, or "".
func whyAlike(mode ir.Mode, what string) string {
	for _, a := range alikes {
		if (a.mode == "" || a.mode == mode) && regexp.MustCompile(a.what).MatchString(what) {
			return a.why
		}
	}
	return ""
}

// cutLast parts a chain's name from the hash at its end.
func cutLast(name string) (stem, hash string, ok bool) {
	if len(name) == len("KUBE-SVC-")+16 {
		return name[:8], name[9:], true
	}
	return name, "", false
}
