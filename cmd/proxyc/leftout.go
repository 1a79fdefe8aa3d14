package main

import (
	"net/netip"
	"slices"
	"strings"

	"github.com/proxyc/proxyc/apply/daemon"
	"github.com/proxyc/proxyc/compiler/diag"
	"github.com/proxyc/proxyc/compiler/snapshot"
	"github.com/proxyc/proxyc/ir"
)

// errorsOf are a daemon's findings that are errors: for each, something is left out of the
// rules, and who asks for that would otherwise hear that it does not exist.
type errorsOf []daemon.Finding

// of says what of a Service is left out; "": nothing is.
func (e errorsOf) of(name ir.Name) string {
	var all []string
	for _, f := range e {
		if f.Severity == diag.Error.String() && f.Object == "Service "+name.String() {
			all = append(all, f.Text())
		}
	}
	if len(all) == 0 {
		return ""
	}
	return name.String() + " is left out: " + strings.Join(all, "; ")
}

// at returns the Services, of which something is left out, that have an address; with a node port,
// those that have that.
func (e errorsOf) at(snap *snapshot.Snapshot, addr netip.Addr, nodePort uint16) (all []ir.Name) {
	if len(e) == 0 {
		return nil
	}
	for _, svc := range snap.Services() {
		has := slices.ContainsFunc(addressesOf(svc), func(text string) bool {
			a, err := netip.ParseAddr(text)
			return err == nil && a.Unmap() == addr
		}) || nodePort != 0 && slices.ContainsFunc(svc.Ports, func(p snapshot.ServicePort) bool { return p.NodePort == int32(nodePort) })
		if has && e.of(svc.Name) != "" {
			all = append(all, svc.Name)
		}
	}
	return all
}

// addressesOf returns what a Service has for addresses, as it was written.
func addressesOf(svc *snapshot.Service) []string {
	all := slices.Concat([]string{svc.ClusterIP}, svc.ClusterIPs, svc.ExternalIPs)
	for _, in := range svc.LoadBalancer {
		all = append(all, in.IP)
	}
	return all
}
