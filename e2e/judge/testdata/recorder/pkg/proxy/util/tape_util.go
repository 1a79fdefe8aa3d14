package util

import (
	"net"
	"slices"

	v1 "k8s.io/api/core/v1"

	"k8s.io/kubernetes/pkg/proxy/tape"
)

func tapeNodeIPs(npa *NodePortAddresses, nw NetworkInterfacer, ips []net.IP) {
	addrs, err := nw.InterfaceAddrs()
	if err != nil {
		panic(err)
	}
	all, picked := []string{}, []string{}
	for _, a := range addrs {
		all = append(all, a.String())
	}
	for _, ip := range ips {
		picked = append(picked, ip.String())
	}
	slices.Sort(all) // the test's are from a map
	slices.Sort(picked)
	tape.Say("nodeIPs", map[string]any{"interfaces": all, "all": npa.matchAll, "picked": picked})
}

func tapeClusterIP(family v1.IPFamily, service *v1.Service, ip string) {
	tape.Say("clusterIP", map[string]any{"family": family, "service": service, "ip": ip})
}

func tapeSkip(service *v1.Service, skip bool) {
	tape.Say("skip", map[string]any{"service": service, "skip": skip})
}
