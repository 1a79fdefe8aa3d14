package main

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
)

// fields are settings whose check differs between releases, and some that no release accepts.
var fields = []string{
	`nodePortAddresses: [primary]`, `nodePortAddresses: [localhost]`, `nodePortAddresses: [all]`, `nodePortAddresses: [primary, localhost]`,
	`nodePortAddresses: [primary, 10.0.0.0/8]`, `nodePortAddresses: [10.0.0.0/8, primary]`, `nodePortAddresses: [primary, primary]`,
	`nodePortAddresses: [127.0.0.2/32]`, `nodePortAddresses: [x]`,
	`logging: {format: json}`, `logging: {format: json, vmodule: [{filePattern: a, verbosity: 1}]}`, `logging: {options: {text: {infoBufferSize: 1Ki}}}`,
	`iptables: {masqueradeBit: 40}`, `nftables: {syncPeriod: 1s, minSyncPeriod: 2s}`, `detectLocalMode: Guess`, `bindAddress: x`,
	`conntrack: {maxPerCore: -1}`, `windowsRunAsService: true`, `unknown: 1`, `clusterCIDR: "10.0.0.0/8,11.0.0.0/8"`,
}

// configurations returns files of kube-proxy: each field, and random mixtures with gates.
func configurations(gates []string) (all []string) {
	r := rand.New(rand.NewPCG(46, 200))
	for n := len(fields); len(all) < 200; n-- {
		var b strings.Builder
		b.WriteString("apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n")
		fmt.Fprintf(&b, "mode: %q\n", []string{"iptables", "ipvs", "nftables", ""}[r.IntN(4)])
		if n > 0 {
			b.WriteString(fields[n-1] + "\n")
		} else if r.IntN(3) == 0 {
			b.WriteString(fields[r.IntN(len(fields))] + "\n")
		}
		if n <= 0 {
			b.WriteString("featureGates:\n")
			names := []string{changing[r.IntN(len(changing))]}
			if r.IntN(2) == 0 {
				names[0] = gates[r.IntN(len(gates))]
			}
			for _, name := range append(changing, "AllAlpha", "AllBeta") {
				if r.IntN(30) == 0 {
					names = append(names, name)
				}
			}
			slices.Sort(names)
			for _, name := range slices.Compact(names) {
				fmt.Fprintf(&b, "  %s: %t\n", name, r.IntN(4) > 0)
			}
		}
		all = append(all, b.String())
	}
	return all
}

// changing are gates that kube-proxy reads and that are not in all releases, or not unlocked.
var changing = []string{
	"MultiCIDRServiceAllocator", "PreferSameTrafficDistribution", "WinDSR", "WinOverlay", "KubeProxyNFTablesLocalhostNodePorts", "KubeProxyIPVS",
	"AllowServiceExternalIPs", "NFTablesProxyMode", "KubeProxyDrainingTerminatingNodes", "LoggingAlphaOptions", "LoggingBetaOptions", "ComponentFlagz",
}
