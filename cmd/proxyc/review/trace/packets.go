package trace

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/proxyc/proxyc/apply/files"
	"github.com/proxyc/proxyc/cmd/proxyc/review"
	"github.com/proxyc/proxyc/compiler"
	"github.com/proxyc/proxyc/compiler/assume"
	"github.com/proxyc/proxyc/compiler/diag"
	"github.com/proxyc/proxyc/ir"
	"github.com/proxyc/proxyc/ir/sim"
)

// Expectation is a packet with its expected fate.
type Expectation struct {
	From   string  `json:"from"`
	To     string  `json:"to"`
	Expect *string `json:"expect,omitempty"` // a fate or backends; nil accepts any
	Where  string  `json:"-"`                // "packets.jsonl:3: "; "" for the command line
}

// Result is an Expectation with the actual fate of the packet.
type Result struct {
	Trace
	Expectation
}

// ReadPackets reads lines of JSON. It skips empty lines and lines that begin with #. With an error,
// it also returns the valid packets.
func ReadPackets(from review.Files, name string, limit int64) (all []Expectation, err error) {
	left := cmp.Or(limit, files.Unlimited)
	text, err := from.Read(name, &left)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	var errs []error
	for i, l := range bytes.Split(text, []byte("\n")) {
		l = bytes.TrimSpace(l)
		if len(l) == 0 || l[0] == '#' {
			continue
		}
		x := Expectation{Where: fmt.Sprintf("%s:%d: ", name, i+1)}
		switch err := x.read(l); {
		case errors.Is(err, errNotPacket) && i == 0:
			return nil, err // it is another file
		case err != nil:
			errs = append(errs, err)
		default:
			all = append(all, x)
		}
	}
	if err = errors.Join(errs...); err == nil && len(all) == 0 {
		err = fmt.Errorf("%s: contains no packet", name)
	}
	return all, err
}

var errNotPacket = errors.New(`must be JSON such as {"from": "node", "to": "10.96.0.10:80", "expect": "served"}`)

// read decodes a line of a file of packets.
func (x *Expectation) read(line []byte) error {
	dec := json.NewDecoder(bytes.NewReader(line))
	dec.DisallowUnknownFields()
	switch err := dec.Decode(x); {
	case err != nil:
		if _, is := errors.AsType[*json.SyntaxError](err); is || errors.Is(err, io.ErrUnexpectedEOF) {
			err = errors.New("is not JSON")
		}
		return fmt.Errorf("%s%w: %w", x.Where, errNotPacket, err)
	case dec.More():
		return fmt.Errorf("%smust have one packet per line", x.Where)
	case x.From == "" || x.To == "":
		return fmt.Errorf("%smust have from and to", x.Where)
	}
	return x.Check()
}

// fates are the fates that a packet can expect besides backends.
var fates = []string{sim.Accepted.String(), sim.Rejected.String(), sim.Dropped.String(), sim.NotOurs.String()}

// Check returns an error for an expectation that no packet can meet.
func (x Expectation) Check() error {
	if x.Expect == nil || slices.Contains(fates, *x.Expect) {
		return nil
	}
	words := strings.Fields(assume.WithoutNames(*x.Expect))
	if len(words) == 0 || slices.ContainsFunc(words, func(word string) bool { return !isBackendWord(word) }) {
		return fmt.Errorf("%s--expect: must be %s, or backends such as 10.244.1.10:8080+snat, got %q%s", x.Where, strings.Join(fates, ", "), *x.Expect, diag.Meant(*x.Expect, fates))
	}
	return nil
}

// isBackendWord reports whether a word is a backend as printed, or describes how clients choose
// among backends.
func isBackendWord(word string) bool {
	if word == "(affinity)" || strings.HasPrefix(word, "(maglev:") {
		return true
	}
	addr, _, _ := strings.Cut(word, "+")
	_, not4 := sim.ParsePacket("0.0.0.0", addr)
	_, not6 := sim.ParsePacket("::", addr)
	return not4 == nil || not6 == nil
}

// Met reports whether the fate of the packet is as expected.
func (r *Result) Met() bool {
	if r.Expect == nil || *r.Expect == r.fate() && len(r.Outcome.Fallback) == 0 {
		return true
	}
	words := strings.Fields(*r.Expect)
	slices.SortFunc(words, strings.Compare)
	have := strings.Fields(r.result())
	slices.SortFunc(have, strings.Compare)
	return !r.unknown && r.Outcome.Fate == sim.Accepted && slices.Equal(words, have)
}

// TraceAll traces packets. It returns the results of those that it could trace, and an error for
// the others.
func (s *Tracer) TraceAll(wanted []Expectation) ([]Result, error) {
	results := make([]Result, 0, len(wanted))
	var errs []error
	for _, x := range wanted {
		t, err := s.Trace(x.From, x.To)
		if err != nil {
			errs = append(errs, fmt.Errorf("%s%w", x.Where, err))
			continue
		}
		if x.Expect != nil {
			text := s.standIns.Addresses(ir.FamilyOf(t.Packet.Dst), *x.Expect)
			x.Expect = &text
		}
		results = append(results, Result{t, x})
	}
	return results, errors.Join(errs...)
}

// EachNode traces packets on every Node of the snapshot, and returns the text. Nodes with equal
// results share one.
func EachNode(j *review.Input, wanted []Expectation) (string, error) {
	var texts []string
	nodes := map[string][]string{} // by text
	for _, n := range j.Snapshot.Nodes() {
		programs, _ := compiler.Compile(j.Config, j.Snapshot, j.Others(n.Name))
		tracer := NewTracer(j, programs)
		tracer.Node = n.Name
		results, err := tracer.TraceAll(wanted)
		var text strings.Builder
		if err = errors.Join(err, Write(&text, results, false)); err != nil {
			return "", err
		}
		if nodes[text.String()] == nil {
			texts = append(texts, text.String())
		}
		nodes[text.String()] = append(nodes[text.String()], n.Name)
	}
	var all strings.Builder
	for _, text := range texts {
		fmt.Fprintf(&all, "on %s:\n%s", strings.Join(nodes[text], ", "), text)
	}
	return all.String(), nil
}

// Write writes the trace of each packet, or only one line if its fate is as expected.
func Write(w io.Writer, all []Result, many bool) (err error) {
	printf := func(format string, args ...any) {
		_, writing := fmt.Fprintf(w, format, args...)
		err = errors.Join(err, writing)
	}
	failed := 0
	for i := range all {
		r := &all[i]
		if many && r.Expect != nil && r.Met() {
			printf("ok: %s -> %s => %s\n", SenderOf(r.Packet), DestinationOf(r.Packet), r.result())
			continue
		}
		printf("%s", r.Text())
		if !r.Met() {
			failed++
			printf("  %sexpected: %s\n", r.Where, *r.Expect)
		}
	}
	if many {
		printf("%d packets, %d not as expected\n", len(all), failed)
	}
	return err
}

// WriteJSON writes each result as a separate document. If many is set, each is one line.
func WriteJSON(w io.Writer, all []Result, many bool) error {
	indent := "  "
	if many {
		indent = ""
	}
	for i := range all {
		out := all[i].json()
		if all[i].Expect != nil {
			met := all[i].Met()
			out.Expect, out.Met = *all[i].Expect, &met
		}
		if err := review.WriteDocument(w, "Trace", indent, out); err != nil {
			return err
		}
	}
	return nil
}
