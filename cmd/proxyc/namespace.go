package main

import (
	"errors"
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"strings"

	"github.com/proxyc/proxyc/compiler/diag"
	"github.com/proxyc/proxyc/compiler/snapshot"
	"github.com/proxyc/proxyc/ir"
)

// namespaceFlag is kubectl's -n for verbs that are given the name of something.
type namespaceFlag struct {
	Namespace string `short:"n" once:"" placeholder:"NAME" help:"The namespace of Services and pods that are named without one."`
}

// pod completes the source of a packet: pod:NAME.
func (f namespaceFlag) pod(from string) string {
	name, ok := strings.CutPrefix(from, "pod:")
	if f.Namespace == "" || !ok || strings.Contains(name, "/") {
		return from
	}
	return "pod:" + f.Namespace + "/" + name
}

// bareName is a Service's own name, and its port.
var bareName = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]*[a-z0-9])?(:[-a-zA-Z0-9]+)?(/[a-zA-Z]+)?$`)

// service completes what is a Service's own name: NAME, NAME:PORT or NAME:PORT/PROTO. An
// address, a port and all else stay what they are.
func (f namespaceFlag) service(text string) string {
	name, _, _ := strings.Cut(text, ":")
	_, notAddr := netip.ParseAddr(name)
	if f.Namespace == "" || !bareName.MatchString(text) || notAddr == nil || strings.Trim(name, "0123456789") == "" {
		return text
	}
	if host, protocol, ok := strings.Cut(text, "/"); ok && !strings.Contains(host, ":") && !isProtocol(protocol) {
		return text // NAMESPACE/NAME
	}
	return f.Namespace + "/" + text
}

// namespaceChoice is kubectl's -n and -A for verbs that tell of many Services.
type namespaceChoice struct {
	Namespace     string `short:"n" once:"" placeholder:"NAME" help:"Tell of the objects of this namespace alone."`
	AllNamespaces bool   `short:"A" help:"Tell of all namespaces, which is the default."`
}

var errNamespaceTwice = errors.New("--namespace, --all-namespaces: one of them, not both")

// check refuses a namespace of which neither the snapshots nor the findings about them have
// anything: nothing to tell of would look as if all were well.
func (c namespaceChoice) check(found diag.List, snaps ...*snapshot.Snapshot) error {
	switch {
	case c.Namespace == "":
		return nil
	case c.AllNamespaces:
		return errNamespaceTwice
	}
	var names []string
	for _, s := range snaps {
		for _, svc := range s.Services() {
			names = append(names, svc.Name.Namespace)
		}
	}
	for _, d := range found {
		names = append(names, namespaceOf(d))
	}
	names = compacted(names)
	if slices.Contains(names, c.Namespace) {
		return nil
	}
	hint := ""
	if near := diag.Nearest(c.Namespace, names); near != "" {
		hint = fmt.Sprintf(" (did you mean %s?)", near)
	}
	return fmt.Errorf("--namespace: no Service of the snapshot is in namespace %q%s", c.Namespace, hint)
}

// has reports whether a Service is one that is told of.
func (c namespaceChoice) has(name ir.Name) bool {
	return c.Namespace == "" || name.Namespace == c.Namespace
}

// of returns the findings that are told: also those that keep something from being read,
// of which nobody knows in which namespace it is, and errors that are of no namespace, as of the
// configuration and of Nodes, which are every namespace's.
func (c namespaceChoice) of(list diag.List) diag.List {
	return slices.DeleteFunc(slices.Clone(list), func(d diag.Diagnostic) bool { return !c.tells(d) })
}

func (c namespaceChoice) tells(d diag.Diagnostic) bool {
	of := namespaceOf(d)
	return c.Namespace == "" || of == c.Namespace || of == "" && d.Severity == diag.Error || d.Code.Unread() || d.Code == diag.FileCutOff
}

// namespaceOf returns that of the object that a finding is about; "" where it has none.
func namespaceOf(d diag.Diagnostic) string {
	_, name, _ := strings.Cut(d.Object, " ")
	namespace, _, ok := strings.Cut(name, "/")
	if !ok {
		return ""
	}
	return namespace
}
