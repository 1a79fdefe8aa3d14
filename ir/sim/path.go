package sim

import "fmt"

// Path is what rules do to one packet.
type Path struct {
	Outcome Outcome
	Met     []Met    // in order
	Unknown []string // what is not understood on its way
}

// Met is a rule that did something to a packet, a chain's policy, or what NoRule names.
type Met struct {
	Table   string `json:"table"` // "ip proxyc", "nat"
	Chain   string `json:"chain"`
	Rule    int    `json:"rule,omitempty"` // from 1; 0: the chain's policy
	Text    string `json:"text"`           // as the tool lists it, with the element of a map that it found
	Drops   bool   `json:"drops,omitempty"`
	Lacks   bool   `json:"lacks,omitempty"`   // its map has nothing for a number that chance picked: Text says for which
	Foreign bool   `json:"foreign,omitempty"` // neither proxyc's nor kube-proxy's, as package review/rules finds
	Leads   bool   `json:"-"`                 // it leads the packet on or lets it pass, and decides nothing
	NoRule  bool   `json:"-"`                 // an element of a set, a server, an address of a device, or a route: Chain names it
	Element string `json:"-"`                 // of a set or map with a name, in which the rule found the packet; "": none
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

// Same reports whether two are the same rule, wherever in its chain.
func (m *Met) Same(o *Met) bool {
	return m.Table == o.Table && m.Chain == o.Chain && m.Text == o.Text
}
