package parse

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/proxyc/proxyc/ir"
	"github.com/proxyc/proxyc/render/ipvs"
)

// ParseServers parses the output of ipvsadm -Sn, for both families. Each server
// and each real server is one line. It ignores real servers of weight 0, which
// get no new connections. Other weights than 1, and real servers without
// masquerading, are errors.
func ParseServers(text string) (servers []ipvs.VirtualServer, err error) {
	type realKey struct {
		server int
		real   netip.AddrPort
	}
	at, have := map[ir.Match]int{}, map[realKey]bool{}
	n := 0
	for line := range strings.Lines(text) {
		n++
		args := strings.Fields(line)
		if len(args) == 0 {
			continue
		}
		if len(args) < 3 {
			return nil, fmt.Errorf("line %d: %q: is nothing that ipvsadm -Sn prints", n, strings.TrimSpace(line))
		}
		v, r, err := parseCommand(args)
		i, known := at[v.Key]
		switch {
		case err != nil:
			return nil, fmt.Errorf("line %d: %w", n, err)
		case args[0] == "-A" && !known && v.Scheduler != "" && !r.AddrPort.IsValid():
			at[v.Key] = len(servers)
			servers = append(servers, v)
		case args[0] == "-a" && known && r.AddrPort.IsValid() && v.Scheduler == "" && !have[realKey{i, r.AddrPort}]:
			have[realKey{i, r.AddrPort}] = true
			if r.Weight > 0 {
				servers[i].RealServers = append(servers[i].RealServers, r)
			}
		default:
			return nil, fmt.Errorf("line %d: %q: the kernel would refuse this", n, strings.TrimSpace(line))
		}
	}
	slices.SortStableFunc(servers, func(a, b ipvs.VirtualServer) int { return a.Key.Compare(b.Key) })
	return servers, nil
}

// schedulerFlags are ipvsadm's names of the flags of schedulers.
var schedulerFlags = map[string]ipvs.Flags{"mh-fallback": ipvs.Fallback, "sh-fallback": ipvs.Fallback, "mh-port": ipvs.SourceHash, "sh-port": ipvs.SourceHash}

// parseCommand parses a line by the grammar of ipvsadm(8).
func parseCommand(args []string) (v ipvs.VirtualServer, r ipvs.RealServer, err error) {
	proto, ok := map[string]ir.Protocol{"-t": ir.TCP, "-u": ir.UDP, "--sctp-service": ir.SCTP}[args[1]]
	if !ok {
		return v, r, fmt.Errorf("must have -t, -u or --sctp-service, got %q", args[1])
	}
	ap, err := netip.ParseAddrPort(args[2])
	v.Key = ir.Match{Addr: ap.Addr(), Port: ap.Port(), Protocol: proto}
	r.Weight = 1
	masq := false
	for rest := args[3:]; len(rest) > 0 && err == nil; rest = rest[1:] {
		switch {
		case slices.Contains([]string{"-m", "-g", "-i"}, rest[0]):
			masq = rest[0] == "-m"
			continue
		case len(rest) == 1:
			return v, r, fmt.Errorf("%s has no value", rest[0])
		}
		opt, value := rest[0], rest[1]
		rest = rest[1:]
		number := func() uint32 {
			n, wrong := strconv.ParseUint(value, 10, 32)
			if wrong != nil {
				err = fmt.Errorf("%s must be a number, got %q", opt, value)
			}
			return uint32(n)
		}
		switch opt {
		case "-s":
			v.Scheduler = value
		case "-p":
			v.Flags, v.Timeout = v.Flags|ipvs.Persistent, time.Duration(number())*time.Second
		case "-b":
			for name := range strings.SplitSeq(value, ",") {
				flag, known := schedulerFlags[name]
				if !known {
					return v, r, fmt.Errorf("flag %s is not known", name)
				}
				v.Flags |= flag
			}
		case "-r":
			r.AddrPort, err = netip.ParseAddrPort(value)
		case "-w":
			r.Weight = number()
		default:
			return v, r, fmt.Errorf("option %s is not known", opt)
		}
	}
	switch {
	case err != nil || !r.AddrPort.IsValid():
	case !masq:
		err = fmt.Errorf("real server %s must be masqueraded (-m)", r.AddrPort)
	case r.Weight > 1:
		err = fmt.Errorf("real server %s must have weight 1, has %d: shares are not followed", r.AddrPort, r.Weight)
	}
	return v, r, err
}

// ParseSets parses the output of ipset save: the elements of the sets of mode
// ipvs in a family, in order. It ignores foreign sets.
func ParseSets(f ir.Family, text string) (elements []ipvs.Element, err error) {
	sets := map[string]ipvs.Set{}
	for _, s := range ipvs.Sets() {
		sets[s.Name(f)] = s
	}
	n := 0
	for line := range strings.Lines(text) {
		n++
		words := strings.Fields(line)
		if len(words) < 3 {
			continue
		}
		s, ours := sets[words[1]]
		switch {
		case !ours:
		case words[0] == "create" && words[2] != s.Type().String():
			return nil, fmt.Errorf("line %d: set %s must be %s, got %s", n, words[1], s.Type(), words[2])
		case words[0] == "add":
			e, err := parseElement(s, f, words[2])
			if err == nil && len(words) > 3 {
				err = fmt.Errorf("%q is not known", strings.Join(words[3:], " "))
			}
			if err != nil {
				return nil, fmt.Errorf("line %d: set %s: %w", n, words[1], err)
			}
			elements = append(elements, ipvs.Element{ElementKey: e})
		}
	}
	slices.SortFunc(elements, func(a, b ipvs.Element) int { return a.Compare(b.ElementKey) })
	return elements, nil
}

// parseElement parses 10.96.0.10,tcp:80,10.0.0.0/8, or the fields of it that the
// type has.
func parseElement(s ipvs.Set, f ir.Family, text string) (k ipvs.ElementKey, err error) {
	k.Set = s
	parts := strings.Split(text, ",")
	wrong := fmt.Errorf("%q is no element of %s", text, s.Type())
	number := func(text string) bool {
		n, err := strconv.ParseUint(text, 10, 16)
		k.Number = uint16(n)
		return err == nil
	}
	if s.Type() == ipvs.BitmapPort {
		if len(parts) != 1 || !number(parts[0]) {
			return k, wrong
		}
		return k, nil
	}
	if k.Addr, err = netip.ParseAddr(parts[0]); err != nil || !f.Has(k.Addr) {
		return k, wrong
	}
	if len(parts) != map[ipvs.SetType]int{ipvs.HashIP: 1, ipvs.HashIPPort: 2, ipvs.HashIPPortIP: 3, ipvs.HashIPPortNet: 3}[s.Type()] {
		return k, wrong
	}
	if len(parts) > 1 {
		protocol, port, _ := strings.Cut(parts[1], ":")
		if k.Protocol, _ = ir.ParseProtocol(protocol); k.Protocol == 0 || !number(port) {
			return k, wrong
		}
	}
	if len(parts) > 2 {
		if a, err := netip.ParseAddr(parts[2]); err == nil {
			k.Source = netip.PrefixFrom(a, a.BitLen())
		} else if k.Source, err = netip.ParsePrefix(parts[2]); err != nil {
			return k, wrong
		}
		if !f.Has(k.Source.Addr()) {
			return k, wrong
		}
	}
	return k, nil
}

// Of returns the virtual servers of a family.
func Of(f ir.Family, servers []ipvs.VirtualServer) []ipvs.VirtualServer {
	return slices.DeleteFunc(slices.Clone(servers), func(v ipvs.VirtualServer) bool { return !f.Has(v.Key.Addr) })
}
