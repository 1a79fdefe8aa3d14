package ipvs

import "github.com/proxyc/proxyc/ir"

// DefaultScheduler is the scheduler if the configuration names none.
const DefaultScheduler = "rr"

// Set is one of the ipsets. The order is that of creation.
type Set uint8

const (
	LoopBack               Set = iota // a local backend and itself as the client: hairpin connections
	ClusterIP                         // ClusterIP frontends
	ExternalIP                        // ExternalIP frontends, policy Cluster
	ExternalIPLocal                   // ExternalIP frontends, policy Local
	LoadBalancer                      // LoadBalancer frontends
	LoadBalancerLocal                 // LoadBalancer frontends, policy Local
	LoadBalancerFW                    // LoadBalancer frontends with source ranges
	LoadBalancerSourceIP              // admitted sources: the VIP itself, if a range contains the node (PKT-11)
	LoadBalancerSourceCIDR            // admitted sources: loadBalancerSourceRanges
	NodePortTCP
	NodePortLocalTCP // policy Local
	NodePortUDP
	NodePortLocalUDP
	NodePortSCTP
	NodePortLocalSCTP
	HealthCheckNodePort // TCP ports of healthCheckNodePort
	IPVSIPs             // the addresses of kube-ipvs0
	numSets
)

// SetType is an ipset type: the fields of an element.
type SetType uint8

const (
	HashIP        SetType = iota // address
	HashIPPort                   // address, protocol and port
	HashIPPortIP                 // and a second address
	HashIPPortNet                // and a network
	BitmapPort                   // port
)

// String returns ipset's name of the type.
func (t SetType) String() string {
	return [...]string{"hash:ip", "hash:ip,port", "hash:ip,port,ip", "hash:ip,port,net", "bitmap:port"}[t]
}

var setTable = [numSets]struct {
	name string // after KUBE-
	typ  SetType
}{
	LoopBack:               {"LOOP-BACK", HashIPPortIP},
	ClusterIP:              {"CLUSTER-IP", HashIPPort},
	ExternalIP:             {"EXTERNAL-IP", HashIPPort},
	ExternalIPLocal:        {"EXTERNAL-IP-LOCAL", HashIPPort},
	LoadBalancer:           {"LOAD-BALANCER", HashIPPort},
	LoadBalancerLocal:      {"LOAD-BALANCER-LOCAL", HashIPPort},
	LoadBalancerFW:         {"LOAD-BALANCER-FW", HashIPPort},
	LoadBalancerSourceIP:   {"LOAD-BALANCER-SOURCE-IP", HashIPPortIP},
	LoadBalancerSourceCIDR: {"LOAD-BALANCER-SOURCE-CIDR", HashIPPortNet},
	NodePortTCP:            {"NODE-PORT-TCP", BitmapPort},
	NodePortLocalTCP:       {"NODE-PORT-LOCAL-TCP", BitmapPort},
	NodePortUDP:            {"NODE-PORT-UDP", BitmapPort},
	NodePortLocalUDP:       {"NODE-PORT-LOCAL-UDP", BitmapPort},
	NodePortSCTP:           {"NODE-PORT-SCTP-HASH", HashIPPort},
	NodePortLocalSCTP:      {"NODE-PORT-LOCAL-SCTP-HASH", HashIPPort},
	HealthCheckNodePort:    {"HEALTH-CHECK-NODE-PORT", BitmapPort},
	IPVSIPs:                {"IPVS-IPS", HashIP},
}

// Sets returns all sets, in the order of creation.
func Sets() []Set {
	s := make([]Set, numSets)
	for i := range s {
		s[i] = Set(i)
	}
	return s
}

// Type returns the set's ipset type.
func (s Set) Type() SetType { return setTable[s].typ }

// maxSetName is IPSET_MAXNAMELEN without the final zero byte.
const maxSetName = 31

// Name returns the set's name in a family. IPv6 names are truncated to the
// kernel's limit.
func (s Set) Name(f ir.Family) string {
	if f != ir.IPv6 {
		return "KUBE-" + setTable[s].name
	}
	name := "KUBE-6-" + setTable[s].name
	return name[:min(len(name), maxSetName)]
}

// String returns the IPv4 name.
func (s Set) String() string { return s.Name(ir.IPv4) }

// nodePortSets returns the sets of node ports of a protocol: all, and those with
// policy Local.
func nodePortSets(p ir.Protocol) (all, local Set) {
	switch p {
	case ir.UDP:
		return NodePortUDP, NodePortLocalUDP
	case ir.SCTP:
		return NodePortSCTP, NodePortLocalSCTP
	}
	return NodePortTCP, NodePortLocalTCP
}
