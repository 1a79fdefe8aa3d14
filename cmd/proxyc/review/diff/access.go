package diff

import (
	"fmt"
	"io"
	"strings"

	"github.com/proxyc/proxyc/ir/flow"
)

// WriteAccess writes a line for each set of clients that can reach something new.
func (d *Diff) WriteAccess(w io.Writer) error {
	var lines []string
	nodes := map[string][]string{}
	add := func(line string, on []string) {
		if nodes[line] == nil { // other nodes may have other backends
			lines = append(lines, line)
		}
		nodes[line] = append(nodes[line], on...)
	}
	for _, s := range d.Services {
		for _, n := range s.Notes {
			if n.Effect == flow.Opens {
				add(fmt.Sprintf("%s: %s: %s", s.Name, n.What, arrow(n.Before, n.After)), n.Nodes)
			}
		}
		for i := range s.Flows {
			f := &s.Flows[i]
			if f.Change.Effect != flow.Opens {
				continue
			}
			what := flow.DestinationsText(f.To)
			if len(f.Change.Targets) > 0 {
				what = strings.Join(f.Change.Targets, ", ") + " through " + what
			}
			line := fmt.Sprintf("%s can now reach %s of %s", flow.ClientsText(f.From), what, serviceName(s.Name))
			if f.Change.Waits != "" {
				line += ": " + f.Change.Waits
			}
			add(line, f.Nodes)
		}
	}
	for _, line := range lines {
		fmt.Fprintf(w, "%s%s\n", line, d.onNodes(nodes[line]))
	}
	d.writeNotCompared(w, false)
	text := "New access"
	if len(d.NotCompared) > 0 {
		text += " to Services"
	}
	text += fmt.Sprintf(": %d.", len(lines))
	if len(d.Unknown)+len(d.NotRead)+d.Wrong > 0 {
		text += " The comparison is incomplete."
	}
	_, err := fmt.Fprintln(w, text)
	return err
}
