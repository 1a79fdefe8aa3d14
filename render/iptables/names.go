package iptables

import (
	"crypto/sha256"
	"encoding/base32"
	"net/netip"
	"slices"
	"strings"

	"github.com/proxyc/proxyc/ir"
)

// Chains that exist once (IPT-1). The kubelet shares KUBE-FIREWALL and keeps the
// same rule in it. KUBE-HAIRPIN is specific to proxyc. Some of these also exist
// in modes ipvs and userspace, with the same purpose.
const (
	ChainServices    = "KUBE-SERVICES"          // nat: dispatch by address; filter: ClusterIPs that reject
	ChainNodePorts   = "KUBE-NODEPORTS"         // nat: dispatch by node port; filter: health check ports
	ChainPostrouting = "KUBE-POSTROUTING"       // nat: masquerade
	ChainMarkMasq    = "KUBE-MARK-MASQ"         // nat: requests masquerade
	chainHairpin     = "KUBE-HAIRPIN"           // nat: hairpin connections
	chainExternal    = "KUBE-EXTERNAL-SERVICES" // filter: other addresses that reject
	ChainForward     = "KUBE-FORWARD"           // filter
	ChainProxyFW     = "KUBE-PROXY-FIREWALL"    // filter: clients outside of loadBalancerSourceRanges
	chainFirewall    = "KUBE-FIREWALL"          // filter: protects localhost from other machines
)

// Chains that only mode ipvs uses.
const (
	ChainLoadBalancer  = "KUBE-LOAD-BALANCER"
	ChainNodePort      = "KUBE-NODE-PORT"
	ChainSourceRanges  = "KUBE-SOURCE-RANGES-FIREWALL"
	ChainIPVSFilter    = "KUBE-IPVS-FILTER"
	ChainIPVSOutFilter = "KUBE-IPVS-OUT-FILTER"
)

// Chains that only mode userspace uses: for received and local packets, to
// addresses and node ports (USR-2).
const (
	ChainPortalsContainer  = "KUBE-PORTALS-CONTAINER"  // received packets to addresses of Services
	ChainPortalsHost       = "KUBE-PORTALS-HOST"       // local packets to addresses of Services
	ChainNodePortContainer = "KUBE-NODEPORT-CONTAINER" // received packets to node ports
	ChainNodePortHost      = "KUBE-NODEPORT-HOST"      // local packets to node ports
	ChainNodePortNonLocal  = "KUBE-NODEPORT-NON-LOCAL" // filter: accepts connections to proxy ports
)

// BuiltInChains returns the kernel's chains of all tables.
func BuiltInChains() [5]string {
	return [...]string{"PREROUTING", "INPUT", "FORWARD", "OUTPUT", "POSTROUTING"}
}

// BuiltIn reports whether a chain is one of BuiltInChains.
func BuiltIn(chain string) bool {
	all := BuiltInChains()
	return slices.Contains(all[:], chain)
}

// KubeletChains returns the chains which show that the kubelet manages the node's
// iptables (KEP-3178).
func KubeletChains() [2]string {
	return [...]string{"KUBE-IPTABLES-HINT", "KUBE-KUBELET-CANARY"}
}

// Prefixes of the chains of one service port; a hash follows (IPT-2).
const (
	stemCluster  = "KUBE-SVC-" // pool of policy Cluster
	stemLocal    = "KUBE-SVL-" // pool of policy Local
	stemExternal = "KUBE-EXT-" // routes by source
	stemFirewall = "KUBE-FW-"  // source ranges
	stemEndpoint = "KUBE-SEP-" // one endpoint, for affinity
)

// Prefixes of chains in dispatch trees; the leading digits of the address or port
// follow.
const (
	stemServicesTree  = "KUBE-SVCS-"
	stemNodePortsTree = "KUBE-NPS-"
	stemHairpinTree   = "KUBE-HPS-"
	stemExternalTree  = "KUBE-EXTS-"
	stemEmptyNPTree   = "KUBE-ENPS-"
	stemProxyFWTree   = "KUBE-FWS-"
)

// ProbeChain contains rules that apply/iptables tests. It is removed afterwards.
const ProbeChain = "KUBE-PROXYC-PROBE"

// otherwise reports whether a chain belongs to another mode of proxyc or
// kube-proxy, or remains from a killed process.
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

// Owned reports whether only proxyc or kube-proxy creates a chain. KUBE-FIREWALL,
// which the kubelet also owns, is not Owned.
func Owned(chain string) bool {
	switch chain {
	case ChainServices, ChainNodePorts, ChainPostrouting, ChainMarkMasq, chainHairpin, chainExternal, ChainForward, ChainProxyFW:
		return true
	}
	return OfService(chain) || OnlyOurs(chain) || otherwise(chain)
}

// OnlyOurs reports whether proxyc creates a chain and kube-proxy does not.
func OnlyOurs(chain string) bool {
	return chain == chainHairpin || chain == ProbeChain ||
		begins(chain, stemServicesTree, stemNodePortsTree, stemHairpinTree, stemExternalTree, stemEmptyNPTree, stemProxyFWTree)
}

func begins(chain string, stems ...string) bool {
	return slices.ContainsFunc(stems, func(stem string) bool { return strings.HasPrefix(chain, stem) })
}

// OfService reports whether a chain belongs to a single Service.
func OfService(chain string) bool {
	const stemXLB = "KUBE-XLB-" // KUBE-EXT- of kube-proxy before 1.24
	return begins(chain, stemCluster, stemLocal, stemExternal, stemFirewall, stemEndpoint, stemXLB)
}

// portKey returns the text from which the names of a service port's chains are
// hashed: ns/name:port and the protocol (IPT-2). Its capacity allows further
// text.
func portKey(p *ir.ServicePort) []byte {
	b := make([]byte, 0, len(p.Service.Namespace)+len(p.Service.Name)+len(p.Port)+56)
	b = append(append(append(b, p.Service.Namespace...), '/'), p.Service.Name...)
	if p.Port != "" {
		b = append(append(b, ':'), p.Port...)
	}
	return append(b, p.Protocol.String()...)
}

// hashed returns stem and 16 characters of a hash of key. Chain names have at
// most 28 bytes.
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

// ChainIsOf reports whether kube-proxy or proxyc uses a chain for a service port,
// or, if endpoint is valid, for that endpoint. The name contains a hash of both
// (IPT-2).
func ChainIsOf(chain string, p ir.ServicePort, endpoint netip.AddrPort) bool {
	if endpoint.IsValid() {
		return chain == endpointChain(portKey(&p), endpoint)
	}
	stem, _, _ := strings.Cut(strings.TrimPrefix(chain, "KUBE-"), "-")
	return OfService(chain) && chain == hashed("KUBE-"+stem+"-", portKey(&p))
}

// clean returns a comment that every version of the tools accepts: one line of
// printable ASCII, of at most 255 bytes as stored by the kernel. Names that the
// Kubernetes API accepts are returned unchanged.
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
