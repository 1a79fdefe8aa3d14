package flow

import (
	"fmt"
	"slices"
	"strings"

	"github.com/proxyc/proxyc/ir"
)

// Merger merges the changes of several nodes and both families.
type Merger struct {
	services map[ir.Name]*merged
}

type merged struct {
	Service
	flows, notes map[string]int // by everything except the nodes
}

// Add adds the changes of one node in one family.
func (m *Merger) Add(node string, services []Service) {
	for _, s := range services {
		to := m.services[s.Name]
		if to == nil {
			to = &merged{Service: Service{Name: s.Name, Action: s.Action}, flows: map[string]int{}, notes: map[string]int{}}
			ir.SetIn(&m.services, s.Name, to)
		}
		if s.Action != to.Action { // unchanged on some nodes, or in one family
			to.Action = Changed
		}
		for _, f := range s.Flows {
			key := f.key()
			for i := range f.To {
				key += f.To[i].String()
			}
			i, known := to.flows[key]
			if !known {
				i = len(to.Flows)
				to.flows[key] = i
				to.Flows = append(to.Flows, f)
			}
			to.Flows[i].Nodes = append(to.Flows[i].Nodes, node)
		}
		for _, n := range s.Notes {
			key := fmt.Sprint(n.Family, n.What, "|", n.Before, "|", n.After)
			i, known := to.notes[key]
			if !known {
				i = len(to.Notes)
				to.notes[key] = i
				to.Notes = append(to.Notes, n)
			}
			to.Notes[i].Nodes = append(to.Notes[i].Nodes, node)
		}
	}
}

// Services returns all changes, sorted by name.
func (m *Merger) Services() []Service {
	out := make([]Service, 0, len(m.services))
	for _, s := range m.services {
		out = append(out, s.Service)
	}
	slices.SortFunc(out, func(a, b Service) int { return a.Name.Compare(b.Name) })
	return out
}

// Entry is the report about one Service, or about several with the same changes,
// for which the first one is shown.
type Entry struct {
	Service
	Names []ir.Name
}

// maxSeparate is the maximum number of Services with the same changes that are
// reported separately.
const maxSeparate = 2

// Entries groups equal changes of many Services: the same kinds of clients and
// nodes, the same fates, and the same number of backends. Other changes of these
// Services remain separate. So do external IPs that a Service takes over, because
// their owners differ.
func Entries(services []Service) (entries []Entry) {
	in := map[string][]int{} // the Services with a change with a similarity key
	for i := range services {
		for _, key := range services[i].similarityKeys() {
			if list := in[key]; len(list) == 0 || list[len(list)-1] != i {
				in[key] = append(list, i)
			}
		}
	}
	together := map[string]string{} // by similarity key; equal for keys of the same Services
	for key, list := range in {
		if len(list) > maxSeparate {
			together[key] = fmt.Sprint(list)
		}
	}
	known := map[string]bool{}
	for i := range services {
		s := &services[i]
		own := Entry{Service{Name: s.Name, Action: s.Action, Effect: s.Effect}, []ir.Name{s.Name}}
		shared := map[string]*Entry{}
		var order []string
		of := func(key string) *Service {
			set := together[key]
			switch {
			case set == "":
				return &own.Service
			case known[set]:
				return nil // reported with the first of these Services
			case shared[set] == nil:
				e := &Entry{Service: Service{Name: s.Name, Action: s.Action, Effect: s.Effect}}
				for _, j := range in[key] {
					e.Names = append(e.Names, services[j].Name)
				}
				shared[set] = e
				order = append(order, set)
			}
			return &shared[set].Service
		}
		keys := s.similarityKeys()
		for j := range s.Flows {
			if to := of(keys[j]); to != nil {
				to.Flows = append(to.Flows, s.Flows[j])
			}
		}
		for j := range s.Notes {
			if to := of(keys[len(s.Flows)+j]); to != nil {
				to.Notes = append(to.Notes, s.Notes[j])
			}
		}
		for _, set := range order {
			known[set] = true
			entries = append(entries, *shared[set])
		}
		if len(own.Flows)+len(own.Notes) > 0 {
			entries = append(entries, own)
		}
	}
	return entries
}

// similarityKeys returns for each flow and note a key that is equal for similar
// changes.
func (s *Service) similarityKeys() (keys []string) {
	for i := range s.Flows {
		f := &s.Flows[i]
		c := &f.Change
		var b strings.Builder
		if f.hijacks() {
			fmt.Fprint(&b, s.Name)
		}
		fmt.Fprint(&b, s.Effect, s.Action, s.Name == ir.Name{}, f.Nodes, clientsKind(f.From), c.Before, c.After, len(c.Added), len(c.Removed), percent(c.Moved), c.Exact, f.Design)
		fmt.Fprint(&b, c.Targets, c.Waits)
		if c.Affinity[0] != c.Affinity[1] {
			fmt.Fprint(&b, c.Affinity)
		}
		if c.ChangesAddr() {
			for _, what := range c.Kept {
				if strings.HasPrefix(what, maskedBut) { // to backends of the Service
					what = maskedBut
				}
				b.WriteString(what)
			}
		}
		for j := range f.To {
			to := &f.To[j]
			if len(to.Ports) > 0 {
				fmt.Fprint(&b, "/", to.Kind)
			} else if to.Match.IsNodePort() && !to.Every {
				fmt.Fprint(&b, "/", to.addrWords())
			}
		}
		keys = append(keys, b.String())
	}
	for _, n := range s.Notes {
		keys = append(keys, fmt.Sprint("#", s.Effect, s.Action, n.Nodes, n.What, n.Before == "", n.After == ""))
	}
	return keys
}

// hijacks reports whether a flow is to an external IP that its Service takes over,
// other than by a difference of the modes.
func (f *Flow) hijacks() bool {
	return f.Design == 0 && slices.ContainsFunc(f.To, func(to Destination) bool { return to.Hijacked })
}

// HijackedText describes the external IPs that a Service takes over, with their
// ports; "" if none.
func (s *Service) HijackedText() string {
	var all []Destination
	shown := map[string]bool{}
	for i := range s.Flows {
		if !s.Flows[i].hijacks() {
			continue
		}
		for _, to := range s.Flows[i].To {
			if text := to.String(); to.Hijacked && !shown[text] {
				shown[text] = true
				all = append(all, to)
			}
		}
	}
	return DestinationsText(all)
}

// clientsKind is ClientsText without the addresses of a Service.
func clientsKind(all []Clients) string {
	if allOf(all, func(c Clients) bool { return c.Itself }) {
		return "backends"
	}
	return ClientsText(all)
}

// Counts are the numbers of changes.
type Counts struct {
	Added   int            `json:"added"` // Services
	Changed int            `json:"changed"`
	Removed int            `json:"removed"`
	Effects map[Effect]int `json:"effects"` // flows and notes, by effect
}

// Count counts changes. The changes of a Service may be separate by effect.
func Count(services []Service) Counts {
	n := Counts{Effects: map[Effect]int{}}
	for _, e := range Effects() {
		n.Effects[e] = 0
	}
	known := map[ir.Name]bool{{}: true}
	for i := range services {
		s := &services[i]
		for j := range s.Flows {
			n.Effects[s.Flows[j].Change.Effect]++
		}
		for j := range s.Notes {
			n.Effects[s.Notes[j].Effect]++
		}
		if known[s.Name] {
			continue
		}
		known[s.Name] = true
		*[...]*int{Changed: &n.Changed, Added: &n.Added, Removed: &n.Removed}[s.Action]++
	}
	return n
}

// DestinationsText describes destinations: "ClusterIP 10.96.0.10:80/tcp",
// "NodePort 30080/tcp", "other ports of ClusterIP 10.96.0.10: 1-79,81-65535/tcp,
// 1-65535/udp".
func DestinationsText(all []Destination) string {
	var words []string
	for i := range all {
		d := &all[i]
		if o := i - 1; i > 0 && len(d.Ports) > 0 && len(all[o].Ports) > 0 && d.addrs() == all[o].addrs() {
			words = append(words, d.ports())
			continue
		}
		words = append(words, d.String())
	}
	return strings.Join(words, ", ")
}

// String describes the destination.
func (d *Destination) String() string {
	text := ""
	switch {
	case len(d.Ports) > 0:
		return d.addrs() + ": " + d.ports()
	case !d.Match.IsNodePort():
		text = d.Kind + " " + d.Match.String()
	default:
		text = fmt.Sprintf("%s %d/%s", d.Kind, d.Match.Port, d.Match.Protocol)
		if !d.Every {
			text += " at " + d.addrWords()
		}
	}
	if d.Open {
		text += " (open to anyone)"
	}
	return text
}

// addrs describes the addresses of a destination without a frontend.
func (d *Destination) addrs() string {
	if d.Kind == "" {
		return d.addrWords()
	}
	return d.Kind + " " + d.addrWords()
}

func (d *Destination) addrWords() string {
	if d.Rest.IsValid() {
		return "other addresses of " + d.Rest.String()
	}
	return some(newRanges(d.Addrs).prefixes(), len(d.Addrs)+1)
}

func (d *Destination) ports() string {
	const shown = 8
	var ports []string
	for i, p := range d.Ports {
		switch {
		case i == shown:
			return strings.Join(ports, ",") + ",…/" + d.Match.Protocol.String()
		case p.First == p.Last:
			ports = append(ports, fmt.Sprint(p.First))
		default:
			ports = append(ports, fmt.Sprintf("%d-%d", p.First, p.Last))
		}
	}
	return strings.Join(ports, ",") + "/" + d.Match.Protocol.String()
}
