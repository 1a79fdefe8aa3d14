package apply

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"slices"

	"github.com/proxyc/proxyc/ir"
)

// Count contains the numbers of operations of a Service.
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

// Sum adds the operations of another count.
func (c *Count) Sum(o Count) {
	c.Added += o.Added
	c.Changed += o.Changed
	c.Removed += o.Removed
}

// Summary counts a Plan's operations by Service, ordered by name, with the fixed part first. total
// counts all.
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

// All is more operations than any Plan has.
const All = math.MaxInt

// Print writes a Plan as text: counts by Service, and the first operations with their origins and
// their differences.
func Print(w io.Writer, p Plan, operations int) error {
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
	shown := 0
	for op := range p.Differences {
		if shown++; shown > operations {
			break
		}
		op.print(b)
	}
	if more := total.Total() - operations; operations > 0 && more > 0 {
		fmt.Fprintf(b, "and %d more\n", more)
	}
	return b.Flush()
}

func (o *Operation) print(w io.Writer) {
	fmt.Fprintf(w, "%s %s", o.Verb, o.Object)
	if o.Origin != (ir.Origin{}) {
		fmt.Fprintf(w, " # %s", o.Origin)
	}
	io.WriteString(w, "\n")
	for _, l := range o.Have {
		fmt.Fprintf(w, "  have: %s\n", l)
	}
	for _, l := range o.Want {
		fmt.Fprintf(w, "  want: %s\n", l)
	}
}

// Total returns the number of operations.
func (c Count) Total() int { return c.Added + c.Changed + c.Removed }

// String returns "3 added, 1 changed, 0 removed".
func (c Count) String() string {
	return fmt.Sprintf("%d added, %d changed, %d removed", c.Added, c.Changed, c.Removed)
}

// PrintJSON writes a Plan as one JSON document.
func PrintJSON(w io.Writer, p Plan) error {
	byService, total := Summary(p)
	operations := slices.AppendSeq([]Operation{}, p.Differences)
	enc := json.NewEncoder(w)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	return enc.Encode(struct {
		Total      Count       `json:"total"`
		Services   []Count     `json:"services"`
		Operations []Operation `json:"operations"`
	}{total, slices.Concat([]Count{}, byService), operations})
}
