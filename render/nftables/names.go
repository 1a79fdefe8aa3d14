package nftables

import (
	"crypto/sha256"
	"encoding/base32"
	"strconv"
	"strings"

	"github.com/proxyc/proxyc/ir"
)

// Table is the name of the table in both families. It is proxyc's alone.
const Table = "proxyc"

// Chains.
const (
	chainFilterInput    = "filter-input"
	chainFilterForward  = "filter-forward"
	chainFilterOutput   = "filter-output"
	chainNATPrerouting  = "nat-prerouting"
	chainNATOutput      = "nat-output"
	chainNATPostrouting = "nat-postrouting"

	chainAffinityInput      = "affinity-input"
	chainAffinityPortsInput = "affinity-nodeports-input"

	chainServices         = "services"
	chainIPsBySource      = "service-ips-by-source"
	chainPortsBySource    = "service-nodeports-by-source"
	chainFirewallCheck    = "firewall-check"
	chainServiceEndpoints = "service-endpoints-check"
	chainClusterIPsCheck  = "cluster-ips-check"
	chainAffinity         = "affinity"
	chainAffinityPorts    = "affinity-nodeports"
)

// maxName is how long names of chains and sets get; the kernel takes 255 bytes.
const maxName = 240

// marks says which packets a chain marks for masquerade before it sends them on.
type marks uint8

const (
	markNone     marks = iota
	markNonLocal       // all but those of pods, as the detector has it
	markAll
)

var markPrefixes = [...]string{markNone: "", markNonLocal: "masq-nonlocal-", markAll: "masq-"}

// backendTable is one of the maps of backends, and how its chains are named.
type backendTable struct {
	set    SetID
	prefix string
}

// backendTables are indexed by whether a node port and whether outside.
var backendTables = [2][2]backendTable{
	{{Backends, "lb-"}, {OutsideBackends, "lb-outside-"}},
	{{PortBackends, "lb-nodeport-"}, {OutsidePortBackends, "lb-outside-nodeport-"}},
}

// maglevTables are indexed by whether a node port. All sources share them.
var maglevTables = [2]backendTable{{MaglevBackends, "lb-maglev-"}, {MaglevPortBackends, "lb-maglev-nodeport-"}}

// target is a chain that ends in a translation, or leads to one that does. Chains without affinity are
// shared by all frontends with as many backends, or slots.
type target struct {
	marks    marks
	nodePort bool
	outside  bool
	n        int    // backends, or slots with maglev
	maglev   bool   // the client chooses its slot
	affinity string // the pool's name; empty without affinity
}

func (t target) table() backendTable {
	if t.maglev {
		return maglevTables[btoi(t.nodePort)]
	}
	return backendTables[btoi(t.nodePort)][btoi(t.outside)]
}

// picks returns the target whose chain picks a backend, and does nothing else. There are few such: the kernel goes through
// all rules that look into a map for each element that comes, and through all its elements for each such rule.
func (t target) picks() target {
	t.marks, t.affinity = markNone, ""
	return t
}

func (t target) prefix() string { return markPrefixes[t.marks] + t.table().prefix }

func (t target) name() string {
	s := t.prefix()
	if t.affinity != "" {
		return cut(s + t.affinity)
	}
	return s + strconv.Itoa(t.n)
}

// poolName names what belongs to one service port alone: eight characters of a
// hash make it unique, the rest is for people. what is the policy of the pool,
// or "both"; rest is a further part of the name.
func poolName(port ir.ServicePort, what string, rest ...string) string {
	s := strings.Join(append([]string{port.Service.Namespace, port.Service.Name, what, port.Protocol.String(), port.Port}, rest...), "/")
	sum := sha256.Sum256([]byte(s))
	return base32.StdEncoding.EncodeToString(sum[:5]) + "-" + plain(s)
}

// PortOf reads the service port out of a name that poolName made, within a
// chain's or a set's. Of names that were cut, or had to be made plain, what it
// reads is for people only.
func PortOf(name string) (ir.ServicePort, bool) {
	part := strings.Split(name, "/")
	if len(part) < 5 {
		return ir.ServicePort{}, false
	}
	protocol, ok := ir.ParseProtocol(part[3])
	at := hashEnd(part[0])
	if !ok || at == 0 {
		return ir.ServicePort{}, false
	}
	return ir.ServicePort{Service: ir.Name{Namespace: part[0][at:], Name: part[1]}, Port: part[4], Protocol: protocol}, true
}

// hashEnd is where the namespace begins, behind a dash, the hash and a dash; 0 if nowhere.
func hashEnd(s string) int {
	const hash = 8
	for i := 0; i+hash+2 <= len(s); i++ {
		if s[i] == '-' && s[i+hash+1] == '-' && strings.Trim(s[i+1:i+hash+1], "ABCDEFGHIJKLMNOPQRSTUVWXYZ234567") == "" {
			return i + hash + 2
		}
	}
	return 0
}

// plain replaces what nft does not take in a name.
func plain(s string) string {
	b := []byte(s)
	for i, c := range b {
		switch {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9', c == '-', c == '_', c == '.', c == '/':
		default:
			b[i] = '_'
		}
	}
	return string(b)
}

func cut(s string) string {
	if len(s) > maxName {
		return s[:maxName-3] + "..."
	}
	return s
}

func btoi(b bool) int {
	if b {
		return 1
	}
	return 0
}
