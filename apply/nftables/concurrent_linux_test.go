package nftables

import (
	"context"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/proxyc/proxyc/apply"
	"github.com/proxyc/proxyc/apply/nftables/codec"
	"github.com/proxyc/proxyc/apply/nftables/conn"
	"github.com/proxyc/proxyc/ir"
	rules "github.com/proxyc/proxyc/render/nftables"
	"github.com/proxyc/proxyc/render/nftables/nftest"
)

// other is another program that changes nf_tables.
type other struct {
	t testing.TB
	*Dataplane
}

func (n node) other(t testing.TB) other {
	t.Helper()
	target, err := OpenIn(n.Fd(), apply.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { target.Close() })
	return other{t, target}
}

// commit sends messages about one table.
func (o other) commit(ctx context.Context, messages ...conn.Message) error {
	refused, err := o.writer.conn.Send(ctx, messages)
	if len(refused) > 0 {
		return refused[0]
	}
	return err
}

// aboutTable returns a message about an object of a table, in family ip.
func aboutTable(typ uint16, table string, more ...func(*codec.Builder)) conn.Message {
	b := codec.Builder{unix.AF_INET, 0, 0, 0}
	b.Text(unix.NFTA_TABLE_NAME, table) // which is the first attribute of all kinds
	for _, f := range more {
		f(&b)
	}
	return conn.Message{Type: typ, Raw: (&batch{}).alloc(b)}
}

func named(t uint16, name string) func(*codec.Builder) {
	return func(b *codec.Builder) { b.Text(t, name) }
}

// again calls f repeatedly until stop is called, or the test ends.
func again(t *testing.T, f func() error) (stop func() (times int)) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	times := 0
	var all sync.WaitGroup
	all.Go(func() {
		for ctx.Err() == nil {
			if err := f(); err != nil && ctx.Err() == nil {
				t.Error(err)
				return
			}
			times++
		}
	})
	stop = sync.OnceValue(func() int {
		cancel()
		all.Wait()
		return times
	})
	t.Cleanup(func() { stop() })
	return stop
}

func manyServices() rules.Tables {
	return rules.NewTables(rules.Lower(nftest.Large(3000)), rules.Lower(&ir.Program{Family: ir.IPv6, Node: nftest.Node(ir.IPv6)}))
}

// Changes of foreign tables, however frequent, do not prevent a reading. All of our objects are
// read, even if foreign chains that are listed before ours change.
func TestReadDuringForeignChanges(t *testing.T) {
	n := newNode(t)
	o := n.other(t)
	if err := o.commit(t.Context(), aboutTable(unix.NFT_MSG_NEWTABLE, "other")); err != nil {
		t.Fatal(err)
	}
	want := manyServices()
	if _, err := once(t, n, want); err != nil {
		t.Fatal(err)
	}
	a, b := named(unix.NFTA_CHAIN_NAME, "a"), named(unix.NFTA_CHAIN_NAME, "b")
	changes := 0
	ctx := whileRead{t.Context(), func() {
		for _, message := range []uint16{unix.NFT_MSG_NEWCHAIN, unix.NFT_MSG_DELCHAIN} {
			if err := o.commit(t.Context(), aboutTable(message, "other", a), aboutTable(message, "other", b)); err != nil {
				t.Error(err)
			}
			changes++
		}
	}}
	const readings = 5
	for range readings {
		have, err := n.reader.read(ctx, nil)
		if err != nil {
			t.Fatal(err)
		}
		for op := range newPlan(have, want).Operations {
			t.Errorf("read wrongly: %s %s", op.Verb, op.Object)
		}
	}
	if changes < readings {
		t.Errorf("%d changes by others during %d readings show nothing", changes, readings)
	}
}

// whileRead is a context that calls a function before each request, which asks for its deadline.
type whileRead struct {
	context.Context
	happens func()
}

func (c whileRead) Deadline() (time.Time, bool) {
	c.happens()
	return c.Context.Deadline()
}

// A reading is repeated if another program changes our table meanwhile. The number of attempts is
// limited.
func TestReadDuringChangesOfOurTable(t *testing.T) {
	n := newNode(t)
	want := manyServices()
	if _, err := once(t, n, want); err != nil {
		t.Fatal(err)
	}
	o := n.other(t)
	change, changes := uint16(unix.NFT_MSG_NEWCHAIN), 0
	ctx := whileRead{t.Context(), func() {
		if err := o.commit(t.Context(), aboutTable(change, rules.Table, named(unix.NFTA_CHAIN_NAME, "mine"))); err != nil {
			t.Error(err)
		}
		change = unix.NFT_MSG_NEWCHAIN + unix.NFT_MSG_DELCHAIN - change
		changes++
	}}
	if _, err := n.reader.read(ctx, nil); err != nil {
		t.Fatal(err)
	}
	if once := changes / maxReads; changes%maxReads != 0 || once == 0 {
		t.Errorf("%d requests, want those of %d readings", changes, maxReads)
	}
	have, err := n.reader.read(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	for op := range newPlan(have, want).Operations {
		if !strings.HasSuffix(op.Object, " chain mine") {
			t.Errorf("still to do: %s %s", op.Verb, op.Object)
		}
	}
}

// A scrape of the counters asks for one chain.
func TestCounters(t *testing.T) {
	n := newNode(t)
	if _, err := once(t, n, both(func(f ir.Family) *ir.Program {
		p := nftest.Program(f)
		p.Node.NodePorts.Rejected = true
		return p
	})); err != nil {
		t.Fatal(err)
	}
	requests := 0
	n.reader.conn.Request = func(_ []conn.Message, do func() error) error { requests++; return do() }
	got, err := n.Counters().LocalhostRejected(t.Context())
	if err != nil || len(got) == 0 || requests != 2 {
		t.Errorf("%v, %v after %d requests, want the counters after 2", got, err, requests)
	}
}
