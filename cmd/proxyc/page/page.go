// Package page writes a report about a cluster's Services as one self-contained HTML page with its
// style, program and data.
//
// All data from the cluster is in the page in compressed form, and the program shows it as text.
// Names thus cannot become part of the page's markup.
package page

import (
	"bytes"
	"compress/flate"
	"crypto/sha256"
	_ "embed"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"html/template"
	"io"
	"net/netip"

	"github.com/proxyc/proxyc/ir"
	"github.com/proxyc/proxyc/ir/flow"
	"github.com/proxyc/proxyc/ir/sim"
)

// Page is the content of a page.
type Page struct {
	Version string   `json:"version"` // of the program
	Cluster string   `json:"cluster,omitempty"`
	Inputs  []string `json:"inputs"`           // input files, and the API server
	Before  []string `json:"before,omitempty"` // input files, and the API server of the previous side
	// Date is SOURCE_DATE_EPOCH, or when the newest of the files was written, in RFC 3339 format; "" if
	// unknown. It does not depend on the time of the report: equal files give equal pages.
	Date     string   `json:"date,omitempty"`
	Overview Overview `json:"overview"`
	// Findings and New are documents of lint -o json: all findings, and those that the previous side
	// lacks. New is nil without a comparison.
	Findings json.RawMessage `json:"findings"`
	New      json.RawMessage `json:"new,omitempty"`
	// Diff is a document of diff -o json; nil without a comparison.
	Diff json.RawMessage `json:"diff,omitempty"`
	// Without are the Services without rules, with the reason.
	Without []Without `json:"without,omitempty"`
	// StandIns maps addresses and node ports that the page does not show to the text in their place.
	StandIns map[string]string `json:"standIns,omitempty"`
	Nodes    []Node            `json:"-"`
}

// Without is a Service without rules.
type Without struct {
	Name string `json:"name"`
	Why  string `json:"why"`
}

// Node is the data of one node, compressed.
type Node struct {
	Name string
	Data template.HTML
}

// NodeData is the data of a node.
type NodeData struct {
	Name     string        `json:"name"`
	Carries  bool          `json:"carries"` // the node has the addresses of Services
	Programs []*ir.Program `json:"programs"`
	Reach    []Reach       `json:"reach"`
	// Here and Pods are the pod ranges of the node and the cluster, to recognise clients.
	Here []netip.Prefix `json:"here"`
	Pods []netip.Prefix `json:"pods"`
}

// NewNode compresses the data of a node.
func NewNode(d NodeData) (Node, error) {
	data, err := compress(d)
	return Node{d.Name, data}, err
}

// Reach is a row of the reachability matrix.
type Reach struct {
	Service  string          `json:"service"`
	To       string          `json:"to"`
	Addrs    [][2]netip.Addr `json:"addrs"` // ranges
	Port     uint16          `json:"port"`
	Protocol ir.Protocol     `json:"protocol"`
	From     []client        `json:"from"`
}

// client is the result for some clients.
type client struct {
	Kind string `json:"kind"`
	Who  string `json:"who"` // the kind, if it means all such clients
	// Prefixes or But, as in flow.Clients, whichever is shorter; none for all clients of the kind.
	Prefixes  []netip.Prefix `json:"prefixes,omitempty"`
	But       []netip.Prefix `json:"but,omitempty"`
	Interface string         `json:"interface,omitempty"`
	NotBy     []string       `json:"notBy,omitempty"`
	Fate      string         `json:"fate"`
	Addr      string         `json:"addr,omitempty"` // source address as seen by backends
	Backends  int            `json:"backends,omitempty"`
}

// ReachOf returns the rows for flows. It omits backends that connect to themselves: they are
// handled like their neighbors, and masqueraded.
func ReachOf(services []flow.Service) []Reach {
	rows := []Reach{}
	for i := range services {
		s := &services[i]
		at := map[string]int{}
		for j := range s.Flows {
			f := &s.Flows[j]
			for k := range f.To {
				one := newReach(s.Name, f.Family, &f.To[k])
				row, known := at[one.To]
				if !known {
					row = len(rows)
					at[one.To] = row
					rows = append(rows, one)
				}
				for c := range f.From {
					if who := &f.From[c]; !who.Itself {
						rows[row].From = append(rows[row].From, clientOf(who, &f.Change))
					}
				}
			}
		}
	}
	return rows
}

func newReach(name ir.Name, family ir.Family, to *flow.Destination) Reach {
	m := to.Match
	row := Reach{Service: name.String(), To: to.String(), Port: m.Port, Protocol: m.Protocol, From: []client{}}
	if !m.IsNodePort() {
		row.Addrs = [][2]netip.Addr{{m.Addr, m.Addr}}
	} else if family == ir.IPv6 { // the same port has a row for IPv4
		row.To += " (IPv6)"
	}
	for _, r := range to.Addrs {
		row.Addrs = append(row.Addrs, [2]netip.Addr{r.First, r.Last})
	}
	return row
}

func clientOf(who *flow.Clients, c *flow.Change) client {
	out := client{Kind: who.Kind.String(), Who: who.String(), Interface: who.Interface, NotBy: who.NotBy, Fate: c.After.String()}
	if len(who.But) < len(who.Prefixes) {
		out.But = who.But
	} else {
		out.Prefixes = who.Prefixes
	}
	if c.After == sim.Accepted {
		out.Addr, out.Backends = c.Kept[1], len(c.Added)
	}
	return out
}

//go:embed page.html
var pageHTML string

//go:embed page.css
var pageCSS string

//go:embed page.js
var pageJS string

var shell = template.Must(template.New("page").Parse(pageHTML))

// Write writes the page.
func (p *Page) Write(w io.Writer) error {
	data, err := compress(p)
	if err != nil {
		return err
	}
	fill := struct {
		Title  string
		Policy string
		Style  template.CSS
		Script template.JS
		Page   template.HTML
		Nodes  []Node
	}{Title: "proxyc report", Style: template.CSS(pageCSS), Script: template.JS(pageJS), Page: data, Nodes: p.Nodes}
	fill.Policy = fmt.Sprintf("default-src 'none'; script-src '%s'; style-src '%s'; base-uri 'none'; form-action 'none'; require-trusted-types-for 'script'; trusted-types 'none'",
		hash(pageJS), hash(pageCSS))
	return shell.Execute(w, fill)
}

// hash returns the hash of a source for a Content-Security-Policy.
func hash(source string) string {
	sum := sha256.Sum256([]byte(source))
	return "sha256-" + base64.StdEncoding.EncodeToString(sum[:])
}

// compress returns deflated JSON as base64, which cannot end its HTML element.
func compress(v any) (template.HTML, error) {
	var out bytes.Buffer
	encoder := base64.NewEncoder(base64.StdEncoding, &out)
	deflate, err := flate.NewWriter(encoder, flate.DefaultCompression)
	if err != nil {
		return "", err
	}
	if err := json.NewEncoder(deflate).Encode(v); err != nil {
		return "", err
	}
	if err := errors.Join(deflate.Close(), encoder.Close()); err != nil {
		return "", err
	}
	return template.HTML(out.String()), nil
}
