package main

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/proxyc/proxyc/apply/daemon"
	"github.com/proxyc/proxyc/compiler"
	"github.com/proxyc/proxyc/compiler/diag"
	"github.com/proxyc/proxyc/ir"
)

// readAddresses notes which addresses the node has beside those of its Node object.
func (in *input) readAddresses(e *env, j *job) (err error) {
	if j.facts.HNSEndpoints, err = parseHNSEndpoints(in.HNSEndpoint); err != nil {
		return err
	}
	if j.facts.Named, err = parseNodeAddresses(in.NodeAddress); err != nil || !in.Live {
		return err
	}
	if j.facts.Interfaces, err = e.interfaces(); err != nil {
		return fmt.Errorf("--live: %w", err)
	}
	j.facts.Interfaces = append(j.facts.Interfaces, j.facts.Named...)
	j.facts.TCPBeLiberal = daemon.Liberal()
	return nil
}

// parseNodeAddresses reads each IP[/LENGTH]@INTERFACE of --node-address.
func parseNodeAddresses(list []string) (named []compiler.Interface, err error) {
	for _, text := range list {
		addr, name, _ := strings.Cut(text, "@")
		p, perr := netip.ParsePrefix(addr)
		if a, err := netip.ParseAddr(strings.Trim(addr, "[]")); err == nil {
			p, perr = netip.PrefixFrom(a, a.BitLen()), nil
		}
		if perr != nil || name == "" {
			err = errors.Join(err, fmt.Errorf("--node-address: must be IP@INTERFACE or IP/LENGTH@INTERFACE, got %q", text))
			continue
		}
		named = append(named, compiler.Interface{Name: name, Addrs: []netip.Prefix{netip.PrefixFrom(p.Addr().Unmap(), p.Bits())}})
	}
	return named, err
}

// parseHNSEndpoints reads each IP of --hns-endpoint.
func parseHNSEndpoints(list []string) (map[netip.Addr]struct{}, error) {
	var errs []error
	addrs := make(map[netip.Addr]struct{}, len(list))
	for _, text := range list {
		a, err := netip.ParseAddr(text)
		if err != nil {
			errs = append(errs, fmt.Errorf("--hns-endpoint: must be an IP address, got %q", text))
			continue
		}
		addrs[a.Unmap()] = struct{}{}
	}
	return addrs, errors.Join(errs...)
}

// others returns the facts about another node, of which no more is known than its object says.
func (j *job) others(node string) compiler.Facts {
	facts := j.facts
	if node != facts.NodeName {
		facts.NodeName, facts.Interfaces, facts.Named = node, nil, nil
		facts.TCPBeLiberal, facts.HNSEndpoints = false, nil
	}
	return facts
}

// checkAddrs says where text lacks node ports, since mode ipvs has a virtual
// server for each on every address of the node.
func (j *job) checkAddrs(facts compiler.Facts, programs ir.Programs) {
	if facts.AllAddrsKnown() || j.Config.ProxyMode() != ir.ModeIPVS {
		return
	}
	for _, p := range programs.All() {
		if p.Node.NodePorts.Assigned() && slices.ContainsFunc(p.Services, hasNodePort) {
			j.diags.Add(diag.Diagnostic{Severity: diag.Info, Code: diag.NodeAddresses, Object: "Node " + facts.NodeName, Path: "status.addresses",
				Msg:  "has the only addresses that are known offline: in mode ipvs node ports answer at no others",
				Hint: "name the others with --node-address IP@INTERFACE, or take this machine's with --live"})
			return
		}
	}
}

func hasNodePort(s ir.Service) bool {
	return slices.ContainsFunc(s.Frontends, func(f ir.Frontend) bool { return f.Kind == ir.NodePort })
}
