// Package page writes a cluster's Services, and what there is to say about them, as one page
// of HTML that needs nothing else: its style, its program and its data are in it.
//
// All that comes from the cluster is in the page as compressed data, which the program shows as
// text. So no name can become a part of the page.
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

// Page is what a page shows.
type Page struct {
	Version string   `json:"version"` // of the program
	Cluster string   `json:"cluster,omitempty"`
	Inputs  []string `json:"inputs"`           // files
	Before  []string `json:"before,omitempty"` // files of the side before
	// Date is when the newest of the files was written, as RFC 3339 has it; "" if that is not known. It does not
	// depend on when the page is made: the same files give the same page.
	Date     string   `json:"date,omitempty"`
	Overview Overview `json:"overview"`
	// Findings and New are documents of lint -o json: all findings, and those that the side
	// before the change has not; New is nil where nothing is compared.
	Findings json.RawMessage `json:"findings"`
	New      json.RawMessage `json:"new,omitempty"`
	// Diff is a document of diff -o json; nil where nothing is compared.
	Diff json.RawMessage `json:"diff,omitempty"`
	// Without are the Services that have no rules, with the reason.
	Without []Without `json:"without,omitempty"`
	// Addresses are those of Nodes, by address.
	Addresses map[string]string `json:"addresses,omitempty"`
	Nodes     []Node            `json:"-"`
}

// Without is a Service without rules.
type Without struct {
	Name string `json:"name"`
	Why  string `json:"why"`
}

// Node is what a page shows of one node, compressed.
type Node struct {
	Name string
	data string
}

// NodeData is what is known of a node.
type NodeData struct {
	Name     string
	Programs ir.Programs
	// Reach is who is led where, of both families.
	Reach []flow.Service
	// Here and Pods are where pods are, for examples of packets.
	Here, Pods []netip.Prefix
	// Interface is the one by which pods of the node come in.
	Interface string
}

// NewNode compresses what is known of a node.
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

// reach is a row of the matrix of who may reach what.
type reach struct {
	Service string   `json:"service"`
	To      string   `json:"to"`
	From    []client `json:"from"`
}

// client is what becomes of some clients.
type client struct {
	Kind     string `json:"kind"`
	Who      string `json:"who"` // the kind, where all of it is meant
	Fate     string `json:"fate"`
	Addr     string `json:"addr,omitempty"` // what backends see of the client
	Backends int    `json:"backends,omitempty"`
}

// reachOf makes rows of flows. What backends meet that connect to themselves is left out:
// they are served as their neighbours are, and masqueraded.
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

// hash is that of a source in a Content-Security-Policy.
func hash(source string) string {
	sum := sha256.Sum256([]byte(source))
	return "sha256-" + base64.StdEncoding.EncodeToString(sum[:])
}

// compress returns JSON, deflated, as base64, in which nothing can end the element that it stands in.
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
