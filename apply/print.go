package apply

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"slices"

	"github.com/proxyc/proxyc/ir"
)

// Count is how many operations of each kind a Service needs.
type Count struct {
	Service ir.Name `json:"service,omitzero"` // zero: the fixed part
	Added   int     `json:"added"`
	Changed int     `json:"changed"`
	Removed int     `json:"removed"`
}

// Add counts one more operation.
func (c *Count) Add(v Verb) {
	switch v {
	case Add:
		c.Added++
	case Change:
		c.Changed++
	case Remove:
		c.Removed++
	}
}

// Summary counts a Plan's operations by Service, in order of name, the fixed
// part first; total has them all.
func Summary(p Plan) (byService []Count, total Count) {
	index := make(map[ir.Name]int)
	for op := range p.Operations {
		i, ok := index[op.Service]
		if !ok {
			i = len(byService)
			index[op.Service] = i
			byService = append(byService, Count{Service: op.Service})
		}
		byService[i].Add(op.Verb)
		total.Add(op.Verb)
	}
	slices.SortFunc(byService, func(a, b Count) int { return a.Service.Compare(b.Service) })
	return byService, total
}

// Print writes a Plan for people: counts by Service and, if wide, each
// operation with its origin.
func Print(w io.Writer, p Plan, wide bool) error {
	b := bufio.NewWriter(w)
	if p.Empty() {
		fmt.Fprintln(b, "nothing to change")
		return b.Flush()
	}
	byService, total := Summary(p)
	for _, c := range byService {
		name := "Service " + c.Service.String()
		if c.Service == (ir.Name{}) {
			name = "shared rules"
		}
		fmt.Fprintf(b, "%s: %s\n", name, c)
	}
	fmt.Fprintf(b, "total: %s\n", total)
	if wide {
		for op := range p.Operations {
			fmt.Fprintf(b, "%s %s", op.Verb, op.Object)
			if op.Origin != (ir.Origin{}) {
				fmt.Fprintf(b, " # %s", op.Origin)
			}
			b.WriteByte('\n')
		}
	}
	return b.Flush()
}

// String gives "3 added, 1 changed, 0 removed".
func (c Count) String() string {
	return fmt.Sprintf("%d added, %d changed, %d removed", c.Added, c.Changed, c.Removed)
}

// PrintJSON writes a Plan as one JSON document.
func PrintJSON(w io.Writer, p Plan) error {
	byService, total := Summary(p)
	operations := slices.AppendSeq([]Operation{}, p.Operations)
	enc := json.NewEncoder(w)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	return enc.Encode(struct {
		Total      Count       `json:"total"`
		Services   []Count     `json:"services"`
		Operations []Operation `json:"operations"`
	}{total, slices.Concat([]Count{}, byService), operations})
}
