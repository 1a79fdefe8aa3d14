package nftables

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/proxyc/proxyc/apply"
	"github.com/proxyc/proxyc/apply/applytest"
	"github.com/proxyc/proxyc/apply/nftables/conn"
	"github.com/proxyc/proxyc/ir"
	"github.com/proxyc/proxyc/render/nftables/nftest"
)

// another opens another Dataplane of the node.
func (n node) another(t *testing.T, o apply.Options) node {
	t.Helper()
	d, err := OpenIn(n.Fd(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { d.Close() })
	return node{n.Namespace, d}
}

// ours returns our tables in a listing, which are the last ones.
func ours(lines []string) string {
	text := strings.Join(lines, "\n")
	return text[max(0, strings.Index(text, "table ip proxyc")):]
}

func (n node) refuses(t *testing.T, script string) {
	t.Helper()
	cmd := n.Command(t.Context(), "nft", "-f", "/dev/stdin")
	cmd.Stdin = strings.NewReader(script)
	if out, err := n.Run(cmd); err == nil {
		t.Errorf("%s: the kernel did it: %s", script, out)
	}
}

// sync applies Programs to the node, and returns the operations.
func (n node) sync(t *testing.T, programs ir.Programs) (ops []string) {
	t.Helper()
	plan, result, err := apply.Once(t.Context(), n.Dataplane, programs, func(apply.Plan) bool { return true })
	if err := errors.Join(err, result.Error()); err != nil {
		t.Fatal(err)
	}
	for op := range plan.Operations {
		ops = append(ops, op.Verb.String()+" "+op.Object)
	}
	return ops
}

// Only its owner can change an owned table. The table remains without an owner when the owner ends,
// and the next owner adopts it. A writer without ownership recreates it.
func TestOwnedTables(t *testing.T) {
	first := newNode(t).another(t, apply.Options{OwnTables: true})
	if first.writer.declaration.flags == "" {
		t.Skip("the kernel does not support persistent tables with an owner")
	}
	programs := ir.NewPrograms(nftest.Program(ir.IPv4), nftest.Program(ir.IPv6))
	first.nft(t, "table ip kube-proxy { chain services { }; }\ntable ip other { chain c { accept; }; }\n", "-f", "/dev/stdin")
	first.sync(t, programs)
	owned := func() string { return ours(first.list(t)) }
	before := owned()
	if rules := strings.Join(first.list(t), "\n"); strings.Contains(rules, "table ip kube-proxy") || strings.Count(before, "\tflags owner") != 2 {
		t.Fatalf("the tables are not owned alone:\n%s", rules)
	}
	for _, script := range []string{
		"flush table ip proxyc", "delete table ip6 proxyc", "flush chain ip proxyc services", "add rule ip proxyc services drop",
		"delete element ip proxyc cluster-ips { 10.96.0.10 }", "add chain ip proxyc mine", "add table ip proxyc { flags dormant; }",
	} {
		first.refuses(t, script)
	}
	first.nft(t, "", "flush", "ruleset") // what is not its own
	if diff := cmp.Diff(before, owned()); diff != "" {
		t.Errorf("flush ruleset took (-want +got):\n%s", diff)
	}
	if ops := first.sync(t, programs); len(ops) > 0 {
		t.Errorf("nobody changed anything, and a sync does %v", ops)
	}

	// A change of the owner's is taken, and others see it.
	less := ir.NewPrograms(nftest.Program(ir.IPv4), nftest.Program(ir.IPv6))
	less.IPv4.Services = less.IPv4.Services[1:]
	if ops := first.sync(t, less); len(ops) == 0 {
		t.Error("a Service that goes takes nothing")
	}
	reader := first.another(t, apply.Options{ReadOnly: true})
	if err := reader.Read(t.Context(), ir.Programs{}); err != nil {
		t.Errorf("who only looks cannot: %v", err)
	} else if p := reader.Plan(less); !p.Empty() {
		t.Errorf("who only looks sees differences: %v", slices.Collect(p.Operations))
	}
	second := first.another(t, apply.Options{OwnTables: true})
	var foreign *apply.Foreign
	if err := second.Read(t.Context(), ir.Programs{}); !errors.As(err, &foreign) || !strings.Contains(err.Error(), "has to end first") {
		t.Errorf("a second owner: %v", err)
	}
	_ = first.Do(func() error {
		left, err := Leftovers(t.Context(), false)
		if err != nil || len(left) != 2 {
			t.Errorf("%d leftovers, %v; want both tables", len(left), err)
		}
		for _, l := range left {
			if err := l.Remove(t.Context()); !errors.Is(err, unix.EPERM) || !strings.Contains(err.Error(), "has to end first") {
				t.Errorf("%s: removed beside its owner: %v", l.Object, err)
			}
		}
		return nil
	})

	first.Dataplane.Close()
	if rules := owned(); strings.Count(rules, "table ip") != 2 || strings.Contains(rules, "\tflags owner") {
		t.Fatalf("after the owner's end there is\n%s", rules)
	}
	if ops := second.sync(t, less); !slices.Equal(ops, []string{"change table ip proxyc", "change table ip6 proxyc"}) {
		t.Errorf("the next owner does %v", ops)
	}
	second.refuses(t, "flush table ip proxyc")
	second.Dataplane.Close()

	third := first.another(t, apply.Options{})
	third.sync(t, less)
	if tables, err := third.Tables(t.Context()); err != nil || tables.IPv4.Flags+tables.IPv6.Flags != "" {
		t.Errorf("who wants no owner leaves flags %q and %q, %v", tables.IPv4.Flags, tables.IPv6.Flags, err)
	}
	third.nft(t, "add rule ip proxyc services drop", "-f", "/dev/stdin")

	// From tables without an owner to such with one, and what is left of these can be removed.
	fourth := first.another(t, apply.Options{OwnTables: true})
	fourth.sync(t, less)
	fourth.refuses(t, "flush table ip proxyc")
	fourth.Dataplane.Close()
	_ = first.Do(func() error {
		left, err := Leftovers(t.Context(), false)
		for _, l := range left {
			err = errors.Join(err, l.Remove(t.Context()))
		}
		if err != nil || strings.Contains(strings.Join(first.list(t), "\n"), "proxyc") {
			t.Errorf("removing what an owner left: %v", err)
		}
		return nil
	})
}

// A kernel that rejects owned tables is logged once. Everything else works.
func TestNoOwnedTables(t *testing.T) {
	n := newNode(t)
	n.writer.conn.Request = func(b []conn.Message, do func() error) error {
		if b != nil && nameIn(t, &b[0], unix.NFTA_TABLE_NAME) == probeTable {
			return unix.EOPNOTSUPP
		}
		return do()
	}
	var reported bytes.Buffer
	n.writer.log = slog.New(slog.NewTextHandler(&reported, nil))
	n.writer.claimOwnership()
	if n.writer.declaration.flags != "" || strings.Count(reported.String(), "\n") != 1 || !strings.Contains(reported.String(), "repaired, not prevented") {
		t.Errorf("flags %q, and says %s", n.writer.declaration.flags, reported.String())
	}
	n.sync(t, ir.NewPrograms(nftest.Program(ir.IPv4), nftest.Program(ir.IPv6)))
	n.nft(t, "add rule ip proxyc services drop", "-f", "/dev/stdin")
	if p, err := applytest.Compare(context.WithoutCancel(t.Context()), n.Dataplane); err != nil || p.Empty() {
		t.Errorf("a change of others is not seen: %v", err)
	}
}
