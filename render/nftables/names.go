package nftables

import (
	"crypto/sha256"
	"encoding/base32"
	"strconv"
	"strings"

	"github.com/proxyc/proxyc/ir"
)

// Table is the name of the table in both families, reserved for proxyc.
const Table = "proxyc"

// Chains.
const (
	chainNATPrerouting  = "nat-prerouting"
	chainNATOutput      = "nat-output"
	chainNATPostrouting = "nat-postrouting"

	chainAffinityInput      = "affinity-input"
	chainAffinityPortsInput = "affinity-nodeports-input"

	chainServices      = "services"
	chainIPsBySource   = "service-ips-by-source"
	chainPortsBySource = "service-nodeports-by-source"
	chainNodePorts     = "node-ports"
	chainNoBackend     = "no-backend"
	chainAffinity      = "affinity"
	chainAffinityPorts = "affinity-nodeports"
)

// maxName is the maximum length of chain and set names. The kernel's limit is 255
// bytes.
const maxName = 240

// marks defines which packets a chain marks for masquerade.
type marks uint8

const (
	markNone     marks = iota
	markNonLocal       // all except those of detected pods
	markAll
)

var markPrefixes = [...]string{markNone: "", markNonLocal: "masq-nonlocal-", markAll: "masq-"}

// backendTable is a map of backends, with the prefix of its chains.
type backendTable struct {
	set    SetID
	prefix string
}

// backendTables are indexed by node port and outside.
var backendTables = [2][2]backendTable{
	{{Backends, "lb-"}, {OutsideBackends, "lb-outside-"}},
	{{PortBackends, "lb-nodeport-"}, {OutsidePortBackends, "lb-outside-nodeport-"}},
}

// maglevTables are indexed by node port. All sources share them.
var maglevTables = [2]backendTable{{MaglevBackends, "lb-maglev-"}, {MaglevPortBackends, "lb-maglev-nodeport-"}}

// target is a chain that ends in a translation, or jumps to one that does. Chains
// without affinity are shared by all frontends with the same number of backends
// or slots.
type target struct {
	marks    marks
	nodePort bool
	outside  bool
	n        int    // number of backends, or of slots with maglev
	maglev   bool   // the client's hash selects the slot
	affinity string // the pool's name; empty without affinity
	pool     string // the pool's name, if it is shared
}

func (t target) table() backendTable {
	if t.maglev {
		return maglevTables[ir.Int(t.nodePort)]
	}
	return backendTables[ir.Int(t.nodePort)][ir.Int(t.outside)]
}

// picks returns the target whose chain only selects a backend. There are few of
// them, for two reasons. For each new element, the kernel traverses all rules
// with a lookup in its map. For each such rule, it traverses all elements.
// A shared pool is the only user of its map, and its chain contains its affinity.
func (t target) picks() target {
	if t.marks = markNone; t.pool == "" {
		t.affinity = ""
	}
	return t
}

func (t target) prefix() string { return markPrefixes[t.marks] + t.table().prefix }

func (t target) name() string {
	switch {
	case t.pool != "":
		return cut(markPrefixes[t.marks] + poolPrefixes[ir.Int(t.maglev)] + t.pool)
	case t.affinity != "":
		return cut(t.prefix() + t.affinity)
	}
	return t.prefix() + strconv.Itoa(t.n)
}

// poolName returns a name for parts of a single service port. Eight characters of
// a hash make it unique; the rest is for readers. what is the policy of the pool,
// or "both"; rest are further parts of the name.
func poolName(port ir.ServicePort, what string, rest ...string) string {
	s := strings.Join(append([]string{port.Service.Namespace, port.Service.Name, what, port.Protocol.String(), port.Port}, rest...), "/")
	sum := sha256.Sum256([]byte(s))
	return base32.StdEncoding.EncodeToString(sum[:5]) + "-" + plain(s)
}

// PortOf parses the service port in a name from poolName, within the name of a
// chain or set. If the name was truncated or contains replaced characters, the
// result is suitable only for display.
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

// hashEnd returns the offset of the namespace, after a dash, the hash and a dash;
// 0 if there is none.
func hashEnd(s string) int {
	const hash = 8
	for i := 0; i+hash+2 <= len(s); i++ {
		if s[i] == '-' && s[i+hash+1] == '-' && strings.Trim(s[i+1:i+hash+1], "ABCDEFGHIJKLMNOPQRSTUVWXYZ234567") == "" {
			return i + hash + 2
		}
	}
	return 0
}

// plain replaces characters that nft does not accept in a name.
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
