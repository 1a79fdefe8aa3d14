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
// which keeps the same rule in it. KUBE-HAIRPIN is proxyc's own.
const (
	chainServices    = "KUBE-SERVICES"          // nat: dispatch by address; filter: ClusterIPs that refuse
	chainNodePorts   = "KUBE-NODEPORTS"         // nat: dispatch by node port; filter: health check ports
	chainPostrouting = "KUBE-POSTROUTING"       // nat: masquerade
	chainMarkMasq    = "KUBE-MARK-MASQ"         // nat: asks for masquerade
	chainHairpin     = "KUBE-HAIRPIN"           // nat: connections to oneself
	chainExternal    = "KUBE-EXTERNAL-SERVICES" // filter: other addresses that refuse
	chainForward     = "KUBE-FORWARD"           // filter
	chainProxyFW     = "KUBE-PROXY-FIREWALL"    // filter: clients outside of loadBalancerSourceRanges
	chainFirewall    = "KUBE-FIREWALL"          // filter: localhost is for the node itself
)

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

// former are chains that are not wanted in this mode: of kube-proxy's ipvs and
// userspace modes, whose other chains have names that are used here as well,
// and what a killed process left.
var former = [...]string{
	"KUBE-LOAD-BALANCER", "KUBE-NODE-PORT", "KUBE-SOURCE-RANGES-FIREWALL", "KUBE-IPVS-FILTER", "KUBE-IPVS-OUT-FILTER", "KUBE-FIRE-WALL",
	"KUBE-PORTALS-CONTAINER", "KUBE-PORTALS-HOST", "KUBE-NODEPORT-CONTAINER", "KUBE-NODEPORT-HOST", "KUBE-NODEPORT-NON-LOCAL",
	ProbeChain,
}

// Owned tells whether a chain is one that proxyc or kube-proxy makes and no
// other program does. KUBE-FIREWALL, which the kubelet owns too, is not.
func Owned(chain string) bool {
	switch chain {
	case chainServices, chainNodePorts, chainPostrouting, chainMarkMasq, chainHairpin, chainExternal, chainForward, chainProxyFW:
		return true
	}
	return OfService(chain) || OnlyOurs(chain) || slices.Contains(former[:], chain)
}

// OnlyOurs tells whether a chain is one that proxyc makes and kube-proxy does not.
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

// OfService tells whether a chain is one of a single Service.
func OfService(chain string) bool {
	const stemXLB = "KUBE-XLB-" // KUBE-EXT- of kube-proxy before 1.24
	for _, stem := range [...]string{stemCluster, stemLocal, stemExternal, stemFirewall, stemEndpoint, stemXLB} {
		if strings.HasPrefix(chain, stem) {
			return true
		}
	}
	return false
}

// portKey is what the names of a service port's chains are hashed from:
// ns/name:port and the protocol, with room for more (IPT-2).
func portKey(p *ir.ServicePort) []byte {
	b := make([]byte, 0, len(p.Service.Namespace)+len(p.Service.Name)+len(p.Port)+56)
	b = append(append(append(b, p.Service.Namespace...), '/'), p.Service.Name...)
	if p.Port != "" {
		b = append(append(b, ':'), p.Port...)
	}
	return append(b, p.Protocol.String()...)
}

// hashed gives stem and 16 characters for key: chain names end at 28.
func hashed(stem string, key []byte) string {
	sum := sha256.Sum256(key)
	var name [28]byte
	n := copy(name[:], stem)
	base32.StdEncoding.Encode(name[n:], sum[:10])
	return string(name[:n+16])
}

// endpointChain is the name of the chain of one endpoint of a service port.
func endpointChain(key []byte, endpoint netip.AddrPort) string {
	return hashed(stemEndpoint, endpoint.AppendTo(key))
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
