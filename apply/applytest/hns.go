package applytest

import (
	"encoding/json"
	"fmt"
	"io/fs"
	"net/netip"
	"strconv"
	"strings"
)

// HNSState is the state of a Windows host in the format of the records; see
// testdata/conformance/README.md.
type HNSState struct {
	LoadBalancers []string `json:"load balancers"`
	Endpoints     []string `json:"endpoints made"`
}

// UsedEndpoints returns the endpoints that a load balancer uses as backend, address or source.
// kube-proxy.exe creates others that nothing uses.
func (s *HNSState) UsedEndpoints() []string {
	used := map[string]bool{}
	for _, l := range s.LoadBalancers {
		for word := range strings.FieldsSeq(l) {
			used[word] = true
		}
	}
	out := []string{}
	for _, e := range s.Endpoints {
		if addr, _, _ := strings.Cut(e, " "); used[addr] {
			out = append(out, e)
		}
	}
	return out
}

// HNSRecords are the states that kube-proxy.exe created on a host: family → case → step.
type HNSRecords struct {
	Network string                                    `json:"network"`
	DSR     bool                                      `json:"dsr"`
	Results map[string]map[string]map[string]HNSState `json:"results"`
}

// LoadHNSRecords reads one of the records.
func LoadHNSRecords(dir fs.FS, file string) (*HNSRecords, error) {
	data, err := fs.ReadFile(dir, file)
	if err != nil {
		return nil, err
	}
	r := &HNSRecords{}
	if err := json.Unmarshal(data, r); err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	return r, nil
}

// HNSPods returns the addresses of the host's own endpoints in the records: the pods of node1.
func HNSPods(family string) (pods []netip.Addr) {
	for _, last := range []int{10, 11, 12, 100, 101, 102, 103, 104, 105, 106, 107, 108, 109} {
		text := "10.244.1." + strconv.Itoa(last)
		if family == IPv6 {
			text = Twin(text)
		}
		pods = append(pods, netip.MustParseAddr(text))
	}
	return pods
}
