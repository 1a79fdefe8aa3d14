package contract

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/proxyc/proxyc/cmd/proxyc/review"
	"github.com/proxyc/proxyc/ir/sim"
)

// Holds reports whether all contracts hold.
func (r *Result) Holds() bool {
	return !slices.ContainsFunc(r.Contracts, func(c *Checked) bool { return !c.Holds() })
}

// status returns the result of a contract as a word.
func (c *Checked) status() string {
	switch {
	case len(c.Violations) > 0:
		return "violated"
	case len(c.Unchecked) > 0:
		return "not checked"
	}
	return "holds"
}

// WriteText writes each contract with its violations, and the number of contracts.
func (r *Result) WriteText(w io.Writer) error {
	counts := map[string]int{}
	for _, c := range r.Contracts {
		counts[c.status()]++
		fmt.Fprintf(w, "%s: %s: %s, %s (%s)\n", c.status(), c.Name, c.Require, review.Counted(len(c.checked), "frontend"), c.place)
		for _, text := range c.Unchecked {
			fmt.Fprintf(w, "  not checked: %s\n", text)
		}
		for _, v := range c.Violations {
			at := v.At[0]
			if at.Possible && !slices.ContainsFunc(v.At, func(at *At) bool { return !c.certain(at) }) {
				continue // for the same reason as on other nodes
			}
			fmt.Fprintf(w, "  %s on %s\n", review.FirstBy(v.At, 3, func(at *At) string { return at.Kind.String() + " of " + at.Port.String() }), review.FirstOf(at.Nodes, 5))
			fmt.Fprintf(w, "    cause: %s\n", r.cause(at))
			if at.Possible {
				fmt.Fprintf(w, "    only if %s is the address of a selected pod, which the input does not state\n", at.Packet.Src)
			}
			for line := range strings.Lines(v.Trace.Text()) {
				fmt.Fprintf(w, "    %s", line)
			}
		}
	}
	_, err := fmt.Fprintf(w, "Contracts: %d hold, %d violated, %d not checked. Nodes: %d.\n", counts["holds"], counts["violated"], counts["not checked"], len(r.Nodes))
	return err
}

// certain reports whether a possible violation is certain on another node.
func (c *Checked) certain(at *At) bool {
	return slices.ContainsFunc(c.checked[at.frontend], func(o *At) bool { return o.is(false, &at.Cause.Origin) })
}

// cause returns the cause of a violation with its position.
func (r *Result) cause(at *At) string {
	if at.Cause.Origin.Object == "" {
		return at.Cause.Text
	}
	text := at.Cause.Origin.String()
	if position := r.input.Position(at.Cause.Origin.Object, at.Cause.Origin.Field); position != "" {
		text += "  # " + position
	}
	return text
}

// The document of -o json.
type (
	resultJSON struct {
		Nodes     []string       `json:"nodes"`
		Contracts []contractJSON `json:"contracts"`
	}
	contractJSON struct {
		Name       string          `json:"name"`
		Place      string          `json:"place"`
		Require    string          `json:"require"`
		Status     string          `json:"status"` // holds, violated or not checked
		Frontends  int             `json:"frontends"`
		Unchecked  []string        `json:"unchecked,omitempty"`
		Violations []violationJSON `json:"violations,omitempty"`
	}
	violationJSON struct {
		Port     string     `json:"port"`     // of the Service: NAMESPACE/NAME:PORT
		Frontend string     `json:"frontend"` // its kind
		Nodes    []string   `json:"nodes"`
		Cause    string     `json:"cause"`
		Possible bool       `json:"possible,omitempty"` // the client is an address that a selected pod may have
		Packet   string     `json:"packet"`             // flags of proxyc trace, on the first node
		Steps    []sim.Step `json:"steps,omitempty"`    // of the first frontend with this cause
	}
)

// WriteJSON writes a document of kind ContractResults.
func (r *Result) WriteJSON(w io.Writer) error {
	out := resultJSON{Nodes: r.Nodes, Contracts: []contractJSON{}}
	for _, c := range r.Contracts {
		one := contractJSON{Name: c.Name, Place: c.place, Require: c.Require, Status: c.status(), Frontends: len(c.checked), Unchecked: c.Unchecked}
		for _, v := range c.Violations {
			for i, at := range v.At {
				j := violationJSON{at.Port.String(), at.Kind.String(), at.Nodes, r.cause(at), at.Possible, review.PacketFlags(at.Packet), nil}
				if i == 0 {
					j.Steps = v.Trace.Steps
				}
				one.Violations = append(one.Violations, j)
			}
		}
		out.Contracts = append(out.Contracts, one)
	}
	return review.WriteDocument(w, "ContractResults", "  ", out)
}
