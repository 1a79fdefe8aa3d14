// Package tape records what kube-proxy's unit tests pass to its code, and the results. It is
// compiled into them, together with the packages that call it. It writes one fact per line to
// standard output, where "go test -json" knows the running test.
package tape

import (
	"encoding/json"
	"fmt"
)

// Mark begins each line.
const Mark = "@tape "

// Say writes one fact. A value that cannot be written is an error in the recorder.
func Say(kind string, v any) {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	fmt.Printf("\n%s%s %s\n", Mark, kind, b)
}

// Flow is one row of a table of packets.
func Flow(name, from, protocol, to string, port int, output string, masquerade bool) {
	if protocol == "" {
		protocol = "TCP"
	}
	Say("flow", struct {
		Name       string `json:"name"`
		From       string `json:"from"`
		Protocol   string `json:"protocol"`
		To         string `json:"to"`
		Port       int    `json:"port"`
		Output     string `json:"output"`
		Masquerade bool   `json:"masquerade,omitempty"`
	}{name, from, protocol, to, port, output, masquerade})
}

// Proxier contains the arguments of a proxier, or what a test set in it.
type Proxier struct {
	Family             string            `json:"family"`
	Node               string            `json:"node"`
	NodeIP             string            `json:"nodeIP,omitempty"`
	Labels             map[string]string `json:"labels,omitempty"`
	PodsFrom           string            `json:"podsFrom,omitempty"`
	MasqueradeAll      bool              `json:"masqueradeAll,omitempty"`
	LocalhostNodePorts bool              `json:"localhostNodePorts,omitempty"`
	NodePortAddresses  string            `json:"nodePortAddresses,omitempty"`
	ServiceCIDRs       string            `json:"serviceCIDRs,omitempty"`
}
