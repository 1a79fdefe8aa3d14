//go:build linux

package conntrack

import (
	"slices"

	"github.com/vishvananda/netlink"

	"k8s.io/kubernetes/pkg/proxy/tape"
)

// tapeFlow is an entry: the target of the client's packets, the source of the replies, and
// whether the cleanup kept it.
type tapeFlow struct {
	Protocol uint8  `json:"protocol"`
	To       string `json:"to"` // "": any address of the node
	ToPort   uint16 `json:"toPort"`
	From     string `json:"from"`
	FromPort uint16 `json:"fromPort,omitempty"`
	Kept     bool   `json:"kept,omitempty"`
}

func tapeFlows(before, after []*netlink.ConntrackFlow) {
	var out []tapeFlow
	for _, f := range before {
		t := tapeFlow{Protocol: f.Forward.Protocol, ToPort: f.Forward.DstPort, From: f.Reverse.SrcIP.String(), FromPort: f.Reverse.SrcPort,
			Kept: slices.Contains(after, f)}
		if f.Forward.DstIP != nil {
			t.To = f.Forward.DstIP.String()
		}
		out = append(out, t)
	}
	tape.Say("conntrack", out)
}
