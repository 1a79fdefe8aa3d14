package ipvs

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/proxyc/proxyc/ir"
	rules "github.com/proxyc/proxyc/render/ipvs"
)

// set is an ipset of kube-proxy. Others have names that begin with KUBE- as
// well, kube-router's for one: only the names that kube-proxy uses count.
type set struct {
	name     string
	protocol ir.Protocol // of the node ports in it; 0: it holds something else
}

func (s set) String() string { return s.name }

// nodePortSets are those that tell which node ports there are. The sets of
// policy Local hold some of the same.
var nodePortSets = map[rules.Set]ir.Protocol{
	rules.NodePortTCP:  ir.TCP,
	rules.NodePortUDP:  ir.UDP,
	rules.NodePortSCTP: ir.SCTP,
}

// knownSets returns those of kube-proxy's sets that the kernel has.
func knownSets() ([]set, error) {
	there, err := setNames()
	if err != nil {
		return nil, err
	}
	var sets []set
	for _, f := range ir.Families() {
		for _, s := range rules.Sets() {
			if name := s.Name(f); there[name] {
				sets = append(sets, set{name, nodePortSets[s]})
			}
		}
	}
	return sets, nil
}

// nodePorts reads the node ports that sets hold.
func nodePorts(sets []set) (map[ir.Match]bool, error) {
	ports := map[ir.Match]bool{}
	for _, s := range sets {
		if s.protocol == 0 {
			continue
		}
		err := list(s.name, 0, func(a nl.Attribute) {
			if a.Type != nl.IPSET_ATTR_ADT|nl.NLA_F_NESTED {
				return
			}
			for element := range nl.ParseAttributes(a.Value) {
				for field := range nl.ParseAttributes(element.Value) {
					if field.Type == nl.IPSET_ATTR_PORT|nl.NLA_F_NET_BYTEORDER {
						ports[ir.Match{Protocol: s.protocol, Port: binary.BigEndian.Uint16(field.Value)}] = true
					}
				}
			}
		})
		if err != nil {
			return nil, fmt.Errorf("ipset %s: %w", s.name, err)
		}
	}
	return ports, nil
}

// setNames returns the names of all sets.
func setNames() (map[string]bool, error) {
	const namesOnly = 1 << 1 // IPSET_FLAG_LIST_SETNAME
	names := map[string]bool{}
	err := list("", namesOnly, func(a nl.Attribute) {
		if a.Type == nl.IPSET_ATTR_SETNAME {
			names[nl.BytesToString(a.Value)] = true
		}
	})
	if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.EPROTONOSUPPORT) {
		return nil, nil // a kernel without ip_set, or without netfilter
	}
	return names, err
}

// list asks the kernel for one set, or for all, and returns what it says of
// them. The library's own list writes to standard error what it does not know
// of newer kernels.
func list(name string, flags uint32, each func(nl.Attribute)) error {
	req := nl.NewNetlinkRequest(nl.IPSET_CMD_LIST|unix.NFNL_SUBSYS_IPSET<<8, nl.GetIpsetFlags(nl.IPSET_CMD_LIST))
	req.AddData(&nl.Nfgenmsg{NfgenFamily: unix.AF_UNSPEC, Version: nl.NFNETLINK_V0})
	req.AddData(nl.NewRtAttr(nl.IPSET_ATTR_PROTOCOL, nl.Uint8Attr(nl.IPSET_PROTOCOL)))
	if name != "" {
		req.AddData(nl.NewRtAttr(nl.IPSET_ATTR_SETNAME, nl.ZeroTerminated(name)))
	}
	if flags != 0 {
		req.AddData(&nl.Uint32Attribute{Type: nl.IPSET_ATTR_FLAGS | nl.NLA_F_NET_BYTEORDER, Value: flags})
	}
	msgs, err := req.Execute(unix.NETLINK_NETFILTER, 0)
	if err != nil {
		return err
	}
	for _, msg := range msgs {
		for a := range nl.ParseAttributes(msg[nl.SizeofNfgenmsg:]) {
			each(a)
		}
	}
	return nil
}

func removeSet(s set) error {
	err := netlink.IpsetDestroy(s.name) // no error if it is gone
	if errors.Is(err, nl.IPSetError(nl.IPSET_ERR_BUSY)) {
		return errors.New("iptables rules refer to it, which must go first")
	}
	return err
}
