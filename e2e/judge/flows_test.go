package judge

import (
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/proxyc/proxyc/ir"
	"github.com/proxyc/proxyc/ir/sim"
	"github.com/proxyc/proxyc/render/iptables"
	ipteval "github.com/proxyc/proxyc/render/iptables/eval"
	"github.com/proxyc/proxyc/render/nftables"
	nfteval "github.com/proxyc/proxyc/render/nftables/eval"
)

// A flow is one row of kube-proxy's tables of packets.
type flow struct {
	Name, From, Protocol, To, Output string

	Port       uint16
	Masquerade bool
}

func (f flow) String() string {
	return fmt.Sprintf("%s: %s -> %s/%s", f.Name, f.From, net.JoinHostPort(f.To, fmt.Sprint(f.Port)), strings.ToLower(f.Protocol))
}

// want returns the flow's outcome. A packet that reaches nothing is not masqueraded.
func (f flow) want() string {
	switch f.Output {
	case "", "ACCEPT": // accepted, without a backend
		return "pass"
	case "DROP", "REJECT":
		return strings.ToLower(f.Output)
	}
	backends := strings.Split(f.Output, ", ")
	slices.Sort(backends)
	return outcome(backends, f.Masquerade)
}

func outcome(backends []string, masquerade bool) string {
	s := strings.Join(backends, ", ")
	if masquerade {
		s += " masqueraded"
	}
	return s
}

// summary returns an outcome in the form of kube-proxy's tables. It is masqueraded if it is so
// for any backend.
func summary(o sim.Outcome) string {
	switch o.Fate {
	case sim.NotOurs:
		return "pass"
	case sim.Dropped:
		return "drop"
	case sim.Rejected:
		return "reject"
	}
	var backends []string
	masquerade := false
	for _, d := range o.Destinations {
		backends = append(backends, d.AddrPort.String())
		masquerade = masquerade || d.SNAT
	}
	slices.Sort(backends)
	return outcome(backends, masquerade)
}

type evaluator interface {
	Outcome(sim.Packet, *sim.Cuts) sim.Outcome
}

// TestFlows checks that the IR, and the rules of the mode, handle each packet of kube-proxy's
// tables in the same way.
func TestFlows(t *testing.T) {
	for _, mode := range []struct {
		table string
		mode  ir.Mode
		lower func(*ir.Program) evaluator
	}{
		{"proxy-iptables", ir.ModeIPTables, func(p *ir.Program) evaluator {
			return ipteval.NewEvaluator(iptables.Lower(p), sim.OwnOf(p.Node.HasAddr))
		}},
		{"proxy-nftables", ir.ModeNFTables, func(p *ir.Program) evaluator {
			return nfteval.NewEvaluator(nftables.Lower(p), sim.OwnOf(p.Node.HasAddr))
		}},
	} {
		t.Run(mode.table, func(t *testing.T) {
			diffs := loadDifferences(t, mode.table)
			flows, traced, syncs := 0, 0, 0
			for _, test := range load(t, mode.table) {
				w := newWorld(t, mode.mode)
				for _, f := range test.Facts {
					var all []flow
					switch {
					case w.take(f):
						continue
					case f.Kind == "flow":
						all = []flow{decode[flow](t, f.Is)}
						flows++
					case f.Kind == "trace":
						syncs++
						for _, line := range decode[[]string](t, f.Is) {
							all = append(all, parseFlow(t, fmt.Sprintf("sync %d", syncs), line))
							traced++
						}
					default:
						continue
					}
					p := w.program()
					rules := mode.lower(p)
					for _, flow := range all {
						pkt := w.packet(flow)
						where := mode.table + " " + test.Test + ": " + flow.String()
						got := sim.Trace(p, pkt)
						diffs.compare(t, where, flow.want(), summary(got))
						if rules := rules.Outcome(pkt, nil); !rules.Equal(got) {
							t.Errorf("%s: the rules do %s, the IR %s", where, summary(rules), summary(got))
						}
					}
				}
			}
			t.Logf("%d flows of tables, %d after %d syncs", flows, traced, syncs)
			if flows < 200 || traced < 700 {
				t.Errorf("only %d flows of tables and %d after syncs", flows, traced)
			}
		})
	}
}

// parseFlow parses what kube-proxy's own tracer reports of a packet after a sync: "10.0.0.1
// 172.30.0.41 80/tcp = 10.180.0.1:80 masqueraded".
func parseFlow(t *testing.T, name, line string) flow {
	from, rest, _ := strings.Cut(line, " ")
	to, rest, _ := strings.Cut(rest, " ")
	port, output, ok := strings.Cut(rest, " = ")
	number, protocol, _ := strings.Cut(port, "/")
	if !ok {
		t.Fatalf("not a packet: %s", line)
	}
	f := flow{Name: name, From: from, To: to, Protocol: protocol, Port: mustPort(number)}
	f.Output, f.Masquerade = strings.CutSuffix(output, " masqueraded")
	return f
}

// packet returns a flow's first packet. The node itself sends packets from its own addresses.
func (w *world) packet(f flow) sim.Packet {
	protocol, ok := ir.ParseProtocol(f.Protocol)
	if !ok {
		w.t.Fatalf("%s: what protocol?", f)
	}
	pkt := sim.Packet{Src: netip.MustParseAddr(f.From), Dst: netip.MustParseAddr(f.To), Protocol: protocol, Port: f.Port}
	if !slices.Contains(w.local, f.From) {
		pkt.In = "eth0"
	}
	return pkt
}
