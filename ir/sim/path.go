package sim

import "fmt"

// Path is the result of evaluating rules for one packet.
type Path struct {
	Outcome Outcome
	Met     []Met                  // in order
	Unknown []string               // parts of the rules on its path with unknown meaning
	Marks   map[Destination]uint32 // with which the node routes the packet; nil if unknown
}

// Met is a rule that affected a packet, a chain's policy, or another element (NoRule).
type Met struct {
	Table    string `json:"table"` // "ip proxyc", "nat"
	Chain    string `json:"chain"`
	Rule     int    `json:"rule,omitempty"` // from 1; 0 for the chain's policy
	Text     string `json:"text"`           // as listed by the tool, with the matching element of a map
	Drops    bool   `json:"drops,omitempty"`
	Missing  bool   `json:"lacks,omitempty"`   // its map lacks an element for a random number, which Text contains
	Foreign  bool   `json:"foreign,omitempty"` // of neither proxyc nor kube-proxy; set by package review/rules
	Forwards bool   `json:"-"`                 // it forwards the packet to another chain or accepts it, without a final decision
	NoRule   bool   `json:"-"`                 // an element of a set, a server, an address of a device, or a route, named by Chain
	Packets  uint64 `json:"packets,omitempty"` // that its counter, or that of Element, has counted; set by package review/rules
	Element  string `json:"-"`                 // the matching element of a named set or map; "" if none
}

// Where returns the place of the rule: table, chain and number.
func (m *Met) Where() string {
	switch {
	case m.NoRule:
		return m.Table + " " + m.Chain
	case m.Rule == 0:
		return fmt.Sprintf("table %s, chain %s", m.Table, m.Chain)
	}
	return fmt.Sprintf("table %s, chain %s, rule %d", m.Table, m.Chain, m.Rule)
}

// Same reports whether both are the same rule, at any position in its chain.
func (m *Met) Same(o *Met) bool {
	return m.Table == o.Table && m.Chain == o.Chain && m.Text == o.Text
}
