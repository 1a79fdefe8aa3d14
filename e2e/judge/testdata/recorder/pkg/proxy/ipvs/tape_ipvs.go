//go:build linux

package ipvs

import (
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/sets"

	"k8s.io/kubernetes/pkg/proxy/tape"
)

type tapeServer struct {
	At        string   `json:"at"`
	Scheduler string   `json:"scheduler"`
	Flags     uint32   `json:"flags,omitempty"`
	Timeout   uint32   `json:"timeout,omitempty"`
	Real      []string `json:"real"` // those that get new clients
}

// tapeState records the arguments of the proxier, and its state in the kernel.
func tapeState(p *Proxier) {
	settings := tape.Proxier{Family: string(p.ipFamily), Node: p.nodeName, Labels: p.topologyLabels,
		PodsFrom: strings.Join(p.localDetector.IfLocal(), " "), MasqueradeAll: p.masqueradeAll, NodePortAddresses: p.nodePortAddresses.String()}
	if p.nodeIP != nil {
		settings.NodeIP = p.nodeIP.String()
	}
	tape.Say("proxier", settings)

	local, err := p.netlinkHandle.GetAllLocalAddressesExcept(defaultDummyDevice)
	if err != nil {
		panic(err)
	}
	if !p.nodePortAddresses.MatchAll() {
		ips, err := p.nodePortAddresses.GetNodeIPs(p.networkInterfacer)
		if err != nil {
			panic(err)
		}
		for _, ip := range ips {
			local.Insert(ip.String())
		}
	}
	tape.Say("local", sets.List(local))

	servers, err := p.ipvs.GetVirtualServers()
	if err != nil {
		panic(err)
	}
	out := []tapeServer{}
	for _, v := range servers {
		if v == nil || v.Address == nil {
			return // a test double without state
		}
		t := tapeServer{At: strings.ToLower(v.String()), Scheduler: v.Scheduler, Flags: uint32(v.Flags), Timeout: v.Timeout, Real: []string{}}
		real, err := p.ipvs.GetRealServers(v)
		if err != nil {
			panic(err)
		}
		for _, r := range real {
			if r.Weight > 0 {
				t.Real = append(t.Real, r.String())
			}
		}
		slices.Sort(t.Real)
		out = append(out, t)
	}
	slices.SortFunc(out, func(a, b tapeServer) int { return strings.Compare(a.At, b.At) })
	entries := map[string][]string{}
	for name, set := range p.ipsetList {
		if set.activeEntries.Len() > 0 {
			entries[name] = sets.List(set.activeEntries)
		}
	}
	tape.Say("ipvs", map[string]any{"servers": out, "sets": entries})
}
