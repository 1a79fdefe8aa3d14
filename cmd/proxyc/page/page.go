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
	"strings"

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
	// Addresses are the names of Nodes, by address.
	Addresses map[string]string `json:"addresses,omitempty"`
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
	data string
}

// NodeData is the data of a node.
type NodeData struct {
	Name     string
	Programs ir.Programs
	// Reach contains the flows of both families.
	Reach []flow.Service
	// Here and Pods are the pod ranges of the node and the cluster, for example packets.
	Here, Pods []netip.Prefix
	// Interface is the incoming interface of the node's pods.
	Interface string
}

// NewNode compresses the data of a node.
func NewNode(d NodeData) (Node, error) {
	mode := d.Programs.IPv4.Node.Mode
	var programs []*ir.Program
	for _, p := range ir.Present(d.Programs) {
		programs = append(programs, p)
	}
	out := struct {
		Name      string         `json:"name"`
		Caps      []string       `json:"caps"`
		Programs  []*ir.Program  `json:"programs"`
		Reach     []reach        `json:"reach"`
		Here      []netip.Prefix `json:"here"`
		Pods      []netip.Prefix `json:"pods"`
		Interface string         `json:"interface"`
	}{d.Name, strings.Split(mode.Capabilities().String(), "|"), programs, reachOf(d.Reach), d.Here, d.Pods, d.Interface}
	data, err := compress(out)
	return Node{d.Name, data}, err
}

// reach is a row of the reachability matrix.
type reach struct {
	Service string   `json:"service"`
	To      string   `json:"to"`
	From    []client `json:"from"`
}

// client is the result for some clients.
type client struct {
	Kind     string `json:"kind"`
	Who      string `json:"who"` // the kind, if it means all such clients
	Fate     string `json:"fate"`
	Addr     string `json:"addr,omitempty"` // source address as seen by backends
	Backends int    `json:"backends,omitempty"`
}

// reachOf returns the rows for flows. It omits backends that connect to themselves: they are
// handled like their neighbors, and masqueraded.
func reachOf(services []flow.Service) []reach {
	rows := []reach{}
	for i := range services {
		s := &services[i]
		at := map[string]int{}
		for j := range s.Flows {
			f := &s.Flows[j]
			for k := range f.To {
				to := f.To[k].String()
				row, known := at[to]
				if !known {
					row = len(rows)
					at[to] = row
					rows = append(rows, reach{Service: s.Name.String(), To: to, From: []client{}})
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

func clientOf(who *flow.Clients, c *flow.Change) client {
	out := client{Kind: who.Kind.String(), Who: who.String(), Fate: c.After.String()}
	if c.After == sim.Accepted {
		out.Addr, out.Backends = c.Kept[1], len(c.Added)
	}
	return out
}

//go:embed page.html
var pageHTML string

//go:embed page.css
var pageCSS string

//go:embed sim.js
var simJS string

//go:embed page.js
var pageJS string

var shell = template.Must(template.New("page").Parse(pageHTML))

// Write writes the page.
func (p *Page) Write(w io.Writer) error {
	data, err := compress(p)
	if err != nil {
		return err
	}
	type block struct {
		Name string
		Data template.HTML
	}
	fill := struct {
		Title  string
		Policy string
		Style  template.CSS
		Script template.JS
		Page   template.HTML
		Nodes  []block
	}{Title: "proxyc report", Style: template.CSS(pageCSS), Script: template.JS(script()), Page: template.HTML(data)}
	fill.Policy = fmt.Sprintf("default-src 'none'; script-src '%s'; style-src '%s'; base-uri 'none'; form-action 'none'; require-trusted-types-for 'script'; trusted-types 'none'",
		hash(script()), hash(pageCSS))
	for _, n := range p.Nodes {
		fill.Nodes = append(fill.Nodes, block{n.Name, template.HTML(n.data)})
	}
	return shell.Execute(w, fill)
}

func script() string { return simJS + pageJS }

// hash returns the hash of a source for a Content-Security-Policy.
func hash(source string) string {
	sum := sha256.Sum256([]byte(source))
	return "sha256-" + base64.StdEncoding.EncodeToString(sum[:])
}

// compress returns deflated JSON as base64, which cannot end its HTML element.
func compress(v any) (string, error) {
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
	return out.String(), nil
}
