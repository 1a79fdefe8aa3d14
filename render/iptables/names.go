package iptables

import (
	"crypto/sha256"
	"encoding/base32"
	"net/netip"
	"slices"
	"strings"

	"github.com/proxyc/proxyc/ir"
)

// The chains that exist once (IPT-1). KUBE-FIREWALL is shared with the kubelet,
// which keeps the same rule in it. KUBE-HAIRPIN is proxyc's own. Those that
// other modes have as well (IPV-1, USR-2) are there for the same thing.
const (
	ChainServices    = "KUBE-SERVICES"          // nat: dispatch by address; filter: ClusterIPs that refuse
	ChainNodePorts   = "KUBE-NODEPORTS"         // nat: dispatch by node port; filter: health check ports
	ChainPostrouting = "KUBE-POSTROUTING"       // nat: masquerade
	ChainMarkMasq    = "KUBE-MARK-MASQ"         // nat: asks for masquerade
	chainHairpin     = "KUBE-HAIRPIN"           // nat: connections to oneself
	chainExternal    = "KUBE-EXTERNAL-SERVICES" // filter: other addresses that refuse
	ChainForward     = "KUBE-FORWARD"           // filter
	ChainProxyFW     = "KUBE-PROXY-FIREWALL"    // filter: clients outside of loadBalancerSourceRanges
	chainFirewall    = "KUBE-FIREWALL"          // filter: localhost is for the node itself
)

// The chains that only the ipvs mode has.
const (
	ChainLoadBalancer  = "KUBE-LOAD-BALANCER"
	ChainNodePort      = "KUBE-NODE-PORT"
	ChainSourceRanges  = "KUBE-SOURCE-RANGES-FIREWALL"
	ChainIPVSFilter    = "KUBE-IPVS-FILTER"
	ChainIPVSOutFilter = "KUBE-IPVS-OUT-FILTER"
)

// The chains that only the userspace mode has (USR-2).
const (
	ChainPortalsContainer  = "KUBE-PORTALS-CONTAINER"  // what comes in by an interface, to addresses of Services
	ChainPortalsHost       = "KUBE-PORTALS-HOST"       // what the node itself sends there
	ChainNodePortContainer = "KUBE-NODEPORT-CONTAINER" // what comes in to node ports
	ChainNodePortHost      = "KUBE-NODEPORT-HOST"      // what the node itself sends there
	ChainNodePortNonLocal  = "KUBE-NODEPORT-NON-LOCAL" // filter: lets connections to proxy ports in
)

// BuiltInChains returns the chains that are the kernel's, of all tables.
func BuiltInChains() [5]string {
	return [...]string{"PREROUTING", "INPUT", "FORWARD", "OUTPUT", "POSTROUTING"}
}

// BuiltIn reports whether a chain is one of BuiltInChains.
func BuiltIn(chain string) bool {
	all := BuiltInChains()
	return slices.Contains(all[:], chain)
}

// KubeletChains returns the chains that tell that the kubelet keeps the node's
// iptables (KEP-3178).
func KubeletChains() [2]string {
	return [...]string{"KUBE-IPTABLES-HINT", "KUBE-KUBELET-CANARY"}
}

// The stems of chains of one service port (IPT-2); a hash follows.
const (
	stemCluster  = "KUBE-SVC-" // pool of policy Cluster
	stemLocal    = "KUBE-SVL-" // pool of policy Local
	stemExternal = "KUBE-EXT-" // routes by source
	stemFirewall = "KUBE-FW-"  // source ranges
	stemEndpoint = "KUBE-SEP-" // one endpoint, for affinity
)

// The stems of chains in dispatch trees; the start of the address or port follows.
const (
	stemServicesTree  = "KUBE-SVCS-"
	stemNodePortsTree = "KUBE-NPS-"
	stemHairpinTree   = "KUBE-HPS-"
	stemExternalTree  = "KUBE-EXTS-"
	stemEmptyNPTree   = "KUBE-ENPS-"
	stemProxyFWTree   = "KUBE-FWS-"
)

// ProbeChain holds rules that apply/iptables tries, and is gone afterwards.
const ProbeChain = "KUBE-PROXYC-PROBE"

// otherwise reports whether a chain is one that modes other than this one have,
// of proxyc or of kube-proxy, or what a killed process left.
func otherwise(chain string) bool {
	switch chain {
	case ChainLoadBalancer, ChainNodePort, ChainSourceRanges, ChainIPVSFilter, ChainIPVSOutFilter,
		ChainPortalsContainer, ChainPortalsHost, ChainNodePortContainer, ChainNodePortHost, ChainNodePortNonLocal,
		"KUBE-FIRE-WALL",
		ProbeChain:
		return true
	}
	return false
}

// Owned reports whether a chain is one that proxyc or kube-proxy makes and no
// other program does. KUBE-FIREWALL, which the kubelet owns too, is not.
func Owned(chain string) bool {
	switch chain {
	case ChainServices, ChainNodePorts, ChainPostrouting, ChainMarkMasq, chainHairpin, chainExternal, ChainForward, ChainProxyFW:
		return true
	}
	return OfService(chain) || OnlyOurs(chain) || otherwise(chain)
}

// OnlyOurs reports whether a chain is one that proxyc makes and kube-proxy does not.
func OnlyOurs(chain string) bool {
	if chain == chainHairpin || chain == ProbeChain {
		return true
	}
	for _, stem := range [...]string{
		stemServicesTree, stemNodePortsTree, stemHairpinTree, stemExternalTree, stemEmptyNPTree, stemProxyFWTree,
	} {
		if strings.HasPrefix(chain, stem) {
			return true
		}
	}
	return false
}

// OfService reports whether a chain is one of a single Service.
func OfService(chain string) bool {
	const stemXLB = "KUBE-XLB-" // KUBE-EXT- of kube-proxy before 1.24
	for _, stem := range [...]string{stemCluster, stemLocal, stemExternal, stemFirewall, stemEndpoint, stemXLB} {
		if strings.HasPrefix(chain, stem) {
			return true
		}
	}
	return false
}

// portKey returns what the names of a service port's chains are hashed from:
// ns/name:port and the protocol, with room for more (IPT-2).
func portKey(p *ir.ServicePort) []byte {
	b := make([]byte, 0, len(p.Service.Namespace)+len(p.Service.Name)+len(p.Port)+56)
	b = append(append(append(b, p.Service.Namespace...), '/'), p.Service.Name...)
	if p.Port != "" {
		b = append(append(b, ':'), p.Port...)
	}
	return append(b, p.Protocol.String()...)
}

// hashed returns stem and 16 characters for key: chain names end at 28.
func hashed(stem string, key []byte) string {
	sum := sha256.Sum256(key)
	var name [28]byte
	n := copy(name[:], stem)
	base32.StdEncoding.Encode(name[n:], sum[:10])
	return string(name[:n+16])
}

// endpointChain returns the name of the chain of one endpoint of a service port.
func endpointChain(key []byte, endpoint netip.AddrPort) string {
	return hashed(stemEndpoint, endpoint.AppendTo(key))
}

// ChainIsOf reports whether a chain is one that kube-proxy or proxyc has for a service
// port, or for one of its endpoints where that is valid (IPT-2).
func ChainIsOf(chain string, p ir.ServicePort, endpoint netip.AddrPort) bool {
	if endpoint.IsValid() {
		return chain == endpointChain(portKey(&p), endpoint)
	}
	stem, _, _ := strings.Cut(strings.TrimPrefix(chain, "KUBE-"), "-")
	return OfService(chain) && chain == hashed("KUBE-"+stem+"-", portKey(&p))
}

// clean makes a comment that every version of the tools takes: one line of
// printable ASCII, of at most 255 bytes as the kernel stores it. Names that the
// Kubernetes API admits are such already.
func clean(s string) string {
	const most = 255
	bad := func(r rune) bool { return r < ' ' || r > '~' }
	if len(s) <= most && strings.IndexFunc(s, bad) < 0 {
		return s
	}
	s = strings.Map(func(r rune) rune {
		if bad(r) {
			return '?'
		}
		return r
	}, s)
	return s[:min(len(s), most)]
}
