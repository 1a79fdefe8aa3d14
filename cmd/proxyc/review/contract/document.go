package contract

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/proxyc/proxyc/cmd/proxyc/review"
	"github.com/proxyc/proxyc/compiler/diag"
	"github.com/proxyc/proxyc/ir"
)

// Kind is the kind of a Document.
const Kind = "Contracts"

// Document is a file of contracts.
type Document struct {
	APIVersion string     `yaml:"apiVersion"`
	Kind       string     `yaml:"kind"`
	Contracts  []Contract `yaml:"contracts"`
}

// Contract states what must hold for all packets of some clients to some destinations.
type Contract struct {
	Name         string       `yaml:"name"`
	Clients      Clients      `yaml:"clients"`
	Destinations Destinations `yaml:"destinations,omitempty"`
	Require      string       `yaml:"require"`
	// Optional accepts destinations and clients that the input does not have.
	Optional bool `yaml:"optional,omitempty"`

	place string // FILE:LINE:COLUMN
}

// Values of Contract.Require.
const (
	never    = "never"              // no packet is served
	always   = "always"             // every packet is served
	onlyFrom = "onlyFrom"           // no packet of other clients is served
	keeps    = "keepsClientAddress" // every served packet reaches the backend with its source address
)

// Clients is the union of its parts.
type Clients struct {
	Anyone   bool     `yaml:"anyone,omitempty"`
	External []string `yaml:"external,omitempty"` // CIDRs, without the addresses of pods and nodes in them
	Pods     *Pods    `yaml:"pods,omitempty"`
	Nodes    Nodes    `yaml:"nodes,omitempty"`

	external []netip.Prefix
}

// Pods selects pods by all given conditions. Without any, it selects every pod.
type Pods struct {
	Namespace string            `yaml:"namespace,omitempty"`
	Labels    map[string]string `yaml:"labels,omitempty"`
}

// Nodes are all nodes, or those of some names.
type Nodes struct {
	All   bool
	Names []string
}

// UnmarshalYAML decodes true or a list of names.
func (n *Nodes) UnmarshalYAML(v *yaml.Node) error {
	if v.Kind == yaml.SequenceNode {
		return v.Decode(&n.Names)
	}
	if err := v.Decode(&n.All); err != nil {
		return &yaml.TypeError{Errors: []string{fmt.Sprintf("line %d: nodes: must be true or a list of names, got %q", v.Line, v.Value)}}
	}
	return nil
}

// MarshalYAML is the inverse of UnmarshalYAML.
func (n Nodes) MarshalYAML() (any, error) {
	if n.All {
		return true, nil
	}
	return n.Names, nil
}

// IsZero reports whether there is no node.
func (n Nodes) IsZero() bool { return !n.All && len(n.Names) == 0 }

func (n *Nodes) has(name string) bool { return n.All || slices.Contains(n.Names, name) }

// Destinations are the frontends for which all given conditions hold.
type Destinations struct {
	Services  Services `yaml:"services,omitempty"`
	Frontends []string `yaml:"frontends,omitempty"` // kinds
	Ports     []string `yaml:"ports,omitempty"`     // of Services or nodes: 443, https, 53/UDP

	kinds [ir.NodePort + 1]bool
	ports []portChoice
}

// Services are the Services for which all given conditions hold.
type Services struct {
	Namespaces []string          `yaml:"namespaces,omitempty"`
	Names      []string          `yaml:"names,omitempty"`
	Labels     map[string]string `yaml:"labels,omitempty"`
}

// portChoice is an entry of Destinations.Ports.
type portChoice struct {
	name     string
	number   uint16      // 0 for a name
	protocol ir.Protocol // 0 for any
}

// Read reads the contracts of files. The error states all that is wrong with them.
func Read(from review.Files, names []string) (all []*Contract, err error) {
	var errs []error
	for _, name := range names {
		text, err := from.ReadFile(name)
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", name, err))
			continue
		}
		found, wrong := parse(name, text)
		all, errs = append(all, found...), append(errs, wrong...)
	}
	known := map[string]string{}
	for _, c := range all {
		if at := known[c.Name]; at != "" && c.Name != "" {
			errs = append(errs, fmt.Errorf("%s: name: %q is a duplicate of that at %s", c.place, c.Name, at))
		}
		known[c.Name] = c.place
	}
	if len(errs) == 0 && len(all) == 0 {
		errs = append(errs, fmt.Errorf("%s: contains no contract: must have a document with apiVersion: %s, kind: %s and a list of contracts", strings.Join(names, ", "), ir.APIVersion, Kind))
	}
	return all, errors.Join(errs...)
}

// parse decodes the documents of a file.
func parse(file string, text []byte) (all []*Contract, errs []error) {
	positions, typed := yaml.NewDecoder(bytes.NewReader(text)), yaml.NewDecoder(bytes.NewReader(text))
	typed.KnownFields(true)
	if line, column := diag.TemplateOf(text); column > 0 {
		return nil, []error{fmt.Errorf("%s:%d:%d: %s", file, line, column, diag.Template)}
	}
	for {
		var node yaml.Node
		var doc Document
		if err := positions.Decode(&node); err == io.EOF {
			return all, errs
		} else if err != nil {
			return all, append(errs, fmt.Errorf("%s: %w", file, err))
		}
		var head struct {
			APIVersion string `yaml:"apiVersion"`
			Kind       string `yaml:"kind"`
		}
		_ = node.Decode(&head) // another form is an error of the Document
		if msg := diag.WrongFile("-f of proxyc assert", head.APIVersion, head.Kind); msg != "" {
			return all, append(errs, fmt.Errorf("%s:%d:%d: %s", file, node.Content[0].Line, node.Content[0].Column, msg))
		}
		err := typed.Decode(&doc)
		if node.Content[0].ShortTag() == "!!null" {
			continue // an empty document
		}
		if err != nil {
			errs = append(errs, decodeErrors(file, err)...)
		}
		c := checker{file: file, at: map[string]*yaml.Node{}}
		c.index("", node.Content[0])
		c.document(&doc)
		errs = append(errs, c.errs...)
		for i := range doc.Contracts {
			all = append(all, &doc.Contracts[i])
		}
	}
}

var (
	wrongLine  = regexp.MustCompile(`^(?:yaml: )?line (\d+): `)
	wrongField = regexp.MustCompile(`field (\S+) not found in type \S+`)
	wrongType  = regexp.MustCompile("cannot unmarshal !!\\w+(?: `(.*)`)? into (\\S+)")
)

// fieldsIn are the fields of a Document, with the field that contains them.
var fieldsIn = map[string]string{"apiVersion": "the document", "kind": "the document", "contracts": "the document",
	"name": "contracts", "clients": "contracts", "destinations": "contracts", "require": "contracts", "optional": "contracts",
	"anyone": "clients", "external": "clients", "pods": "clients", "nodes": "clients", "namespace": "pods", "labels": "pods or services",
	"services": "destinations", "frontends": "destinations", "ports": "destinations", "namespaces": "services", "names": "services"}

// decodeErrors returns the errors of the YAML decoder, each with its line.
func decodeErrors(file string, err error) (out []error) {
	texts := []string{err.Error()}
	if types := (*yaml.TypeError)(nil); errors.As(err, &types) {
		texts = types.Errors
	}
	for _, text := range texts {
		where := file
		if m := wrongLine.FindStringSubmatch(text); m != nil {
			where, text = file+":"+m[1], text[len(m[0]):]
		}
		if m := wrongField.FindStringSubmatch(text); m != nil {
			hint := diag.Meant(m[1], slices.Sorted(maps.Keys(fieldsIn)))
			if in := fieldsIn[m[1]]; in != "" {
				hint = ", which belongs to " + in
			}
			text = fmt.Sprintf("unknown field %q%s", m[1], hint)
		}
		if m := wrongType.FindStringSubmatch(text); m != nil {
			want := "an object"
			switch {
			case m[2] == "bool":
				want = "true or false"
			case m[2] == "string":
				want = "text"
			case strings.HasPrefix(m[2], "[]"):
				want = "a list"
			}
			text = strings.TrimSuffix(fmt.Sprintf("must be %s, got %s", want, m[1]), ", got ")
		}
		out = append(out, fmt.Errorf("%s: %s", where, text))
	}
	return out
}

// checker checks the values of a Document.
type checker struct {
	file string
	at   map[string]*yaml.Node // by path
	errs []error
}

// index records the positions of keys and items.
func (c *checker) index(path string, n *yaml.Node) {
	c.at[path] = cmp.Or(c.at[path], n)
	for i, inner := range n.Content {
		switch {
		case n.Kind == yaml.SequenceNode:
			c.index(fmt.Sprintf("%s[%d]", path, i), inner)
		case n.Kind == yaml.MappingNode && i%2 == 1:
			key := strings.TrimPrefix(path+"."+n.Content[i-1].Value, ".")
			c.at[key] = n.Content[i-1]
			c.index(key, inner)
		}
	}
}

// place returns the position of a path, or of what contains it.
func (c *checker) place(path string) string {
	for c.at[path] == nil {
		path = path[:max(strings.LastIndexAny(path, ".["), 0)]
	}
	return fmt.Sprintf("%s:%d:%d", c.file, c.at[path].Line, c.at[path].Column)
}

func (c *checker) wrong(path, format string, args ...any) {
	c.errs = append(c.errs, fmt.Errorf("%s: %s: %s", c.place(path), path, fmt.Sprintf(format, args...)))
}

// oneOf checks a value.
func (c *checker) oneOf(path, got string, allowed ...string) bool {
	if slices.Contains(allowed, got) {
		return true
	}
	c.wrong(path, "must be %s, got %q%s", strings.Join(allowed, ", "), got, diag.Meant(got, allowed))
	return false
}

func (c *checker) document(d *Document) {
	c.oneOf("apiVersion", d.APIVersion, ir.APIVersion)
	c.oneOf("kind", d.Kind, Kind)
	for i := range d.Contracts {
		one, path := &d.Contracts[i], fmt.Sprintf("contracts[%d]", i)
		one.place = c.place(path)
		if one.Name == "" {
			c.wrong(path+".name", "must be set")
		}
		c.oneOf(path+".require", one.Require, never, always, onlyFrom, keeps)
		c.clients(path+".clients", &one.Clients)
		c.destinations(path+".destinations", &one.Destinations)
	}
}

func (c *checker) clients(path string, to *Clients) {
	if !to.Anyone && len(to.External) == 0 && to.Pods == nil && to.Nodes.IsZero() {
		c.wrong(path, "must have anyone, external, pods or nodes")
	}
	for i, text := range to.External {
		p, err := netip.ParsePrefix(text)
		if a, alone := netip.ParseAddr(text); alone == nil {
			p, err = netip.PrefixFrom(a, a.BitLen()), nil
		}
		if err != nil || p.Addr().Is4In6() {
			c.wrong(fmt.Sprintf("%s.external[%d]", path, i), "must be a CIDR such as 198.51.100.0/24, got %q", text)
			continue
		}
		to.external = append(to.external, p.Masked())
	}
}

func (c *checker) destinations(path string, to *Destinations) {
	kinds := make([]string, 0, len(to.kinds))
	for k := range to.kinds {
		to.kinds[k] = len(to.Frontends) == 0
		kinds = append(kinds, ir.Kind(k).String())
	}
	for i, text := range to.Frontends {
		if c.oneOf(fmt.Sprintf("%s.frontends[%d]", path, i), text, kinds...) {
			to.kinds[slices.Index(kinds, text)] = true
		}
	}
	for i, text := range to.Ports {
		port, protocol, given := strings.Cut(text, "/")
		choice, ok := portChoice{name: port}, true
		if given {
			choice.protocol, ok = ir.ParseProtocol(protocol)
		}
		if strings.Trim(port, "0123456789") == "" {
			n, err := strconv.ParseUint(port, 10, 16)
			choice.number, ok = uint16(n), ok && err == nil && n > 0
		}
		if !ok {
			c.wrong(fmt.Sprintf("%s.ports[%d]", path, i), "must be a number or name, optionally with /TCP, /UDP or /SCTP, got %q", text)
		}
		to.ports = append(to.ports, choice)
	}
}
