package main

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/proxyc/proxyc/apply/daemon/host"
	"github.com/proxyc/proxyc/cmd/proxyc/review"
	"github.com/proxyc/proxyc/cmd/proxyc/review/diff"
	"github.com/proxyc/proxyc/compiler/diag"
	"github.com/proxyc/proxyc/compiler/snapshot"
	"github.com/proxyc/proxyc/ir"
)

// oneNode selects the node of a command.
type oneNode struct {
	Node string `once:"" placeholder:"NAME" help:"Node whose rules are used. By default it is that of --hostname-override or of the configuration."`
}

// nodeChoice selects the nodes of a command.
type nodeChoice struct {
	Node     []string `xor:"nodes" placeholder:"NAME" sep:"none" help:"Node whose rules are used. May be repeated. By default it is that of --hostname-override or of the configuration."`
	AllNodes bool     `xor:"nodes" help:"Use the rules of all Nodes of the snapshots."`
}

// one returns the only selected node; "" if none is, or several are.
func (c *nodeChoice) one() string {
	if c.AllNodes || len(c.Node) != 1 {
		return ""
	}
	return c.Node[0]
}

// chosen reports whether nodes are selected.
func (c *nodeChoice) chosen() bool { return c.AllNodes || len(c.Node) > 0 }

// nodes returns the selection.
func (c *nodeChoice) nodes() diff.Nodes { return diff.Nodes{Names: c.Node, All: c.AllNodes} }

// namespaceFlag is kubectl's -n for commands that accept names.
type namespaceFlag struct {
	Namespace string `short:"n" once:"" placeholder:"NAME" help:"Default namespace of Services and pods, and of objects without one."`
}

// pod adds the namespace to a pod as the source of a packet: pod:NAME.
func (f namespaceFlag) pod(from string) string {
	name, ok := strings.CutPrefix(from, "pod:")
	if f.Namespace == "" || !ok || strings.Contains(name, "/") {
		return from
	}
	return "pod:" + f.Namespace + "/" + name
}

// service adds the namespace to a Service name.
func (f namespaceFlag) service(text string) string { return review.InNamespace(f.Namespace, text) }

// namespaceChoice is kubectl's -n and -A for commands that print several Services.
type namespaceChoice struct {
	Namespace     string `short:"n" once:"" placeholder:"NAME" help:"Show only the objects of this namespace. Objects without one belong to it."`
	AllNamespaces bool   `short:"A" help:"Show the objects of all namespaces (default)."`
}

var errNamespaceTwice = errors.New("--namespace, --all-namespaces: cannot be combined")

// check rejects a namespace that neither the snapshots nor their findings contain. An empty output
// would otherwise look like success.
func (c namespaceChoice) check(found diag.List, snaps ...*snapshot.Snapshot) error {
	switch {
	case c.Namespace == "":
		return nil
	case c.AllNamespaces:
		return errNamespaceTwice
	}
	return review.CheckNamespace(c.Namespace, found, snaps)
}

// has reports whether a Service is selected.
func (c namespaceChoice) has(name ir.Name) bool {
	return c.Namespace == "" || name.Namespace == c.Namespace
}

// of returns the findings to print. It includes those about files that could not be read, whose
// namespaces are unknown. It also includes errors without a namespace, such as those of the
// configuration and of Nodes, which concern every namespace.
func (c namespaceChoice) of(list diag.List) diag.List {
	return slices.DeleteFunc(slices.Clone(list), func(d diag.Diagnostic) bool { return !c.includes(d) })
}

func (c namespaceChoice) includes(d diag.Diagnostic) bool {
	_, of := snapshot.ParseObject(d.Object)
	return c.Namespace == "" || of.Namespace == c.Namespace || of.Namespace == "" && (d.Severity == diag.Error || d.Code == diag.FileRendered || d.Code == diag.FileSkipped) || d.Code.Unreadable()
}

// readAddresses reads the node's addresses besides those of its Node object.
func (in *input) readAddresses(e *env, j *review.Input) (err error) {
	if j.Facts.HNSEndpoints, err = review.ParseHNSEndpoints(in.HNSEndpoint); err != nil {
		return err
	}
	if j.Facts.Named, err = review.ParseNodeAddresses(in.NodeAddress); err != nil || !in.Live {
		return err
	}
	if j.Facts.Interfaces, err = e.interfaces(); err != nil {
		return fmt.Errorf("--live: %w", err)
	}
	j.Facts.Interfaces = append(j.Facts.Interfaces, j.Facts.Named...)
	j.Facts.TCPBeLiberal = host.Liberal()
	return nil
}
