package nftables

import (
	"bytes"
	"context"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/mdlayher/netlink"
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

// Changes of foreign tables, however frequent, do not repeat a reading. All of our objects are
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
	var log bytes.Buffer
	n.reader.log = slog.New(slog.NewTextHandler(&log, nil))
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
	if log.Len() > 0 {
		t.Error(&log)
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
// limited, and then logged.
func TestReadDuringChangesOfOurTable(t *testing.T) {
	n := newNode(t)
	want := manyServices()
	if _, err := once(t, n, want); err != nil {
		t.Fatal(err)
	}
	o := n.other(t)
	var log bytes.Buffer
	n.reader.log = slog.New(slog.NewTextHandler(&log, nil))
	change := uint16(unix.NFT_MSG_NEWCHAIN)
	ctx := whileRead{t.Context(), func() {
		if err := o.commit(t.Context(), aboutTable(change, rules.Table, named(unix.NFTA_CHAIN_NAME, "mine"))); err != nil {
			t.Error(err)
		}
		change = unix.NFT_MSG_NEWCHAIN + unix.NFT_MSG_DELCHAIN - change
	}}
	if _, err := n.reader.read(ctx, nil); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(log.String(), "tries=5") || !strings.Contains(log.String(), "table=proxyc") {
		t.Errorf("the tries are not reported: %s", &log)
	}
	log.Reset()
	have, err := n.reader.read(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	for op := range newPlan(have, want).Operations {
		if !strings.HasSuffix(op.Object, " chain mine") {
			t.Errorf("still to do: %s %s", op.Verb, op.Object)
		}
	}
	if log.Len() > 0 {
		t.Error(&log)
	}
}

// Changes with lost notifications count as changes of our tables.
func TestReadWithLostMessages(t *testing.T) {
	n := newNode(t)
	want := both(nftest.Program)
	if _, err := once(t, n, want); err != nil {
		t.Fatal(err)
	}
	o := n.other(t)
	if err := n.reader.listener.Set(func(nl *netlink.Conn) error { return nl.SetReadBuffer(1) }); err != nil { // the kernel makes it as small as it can be
		t.Fatal(err)
	}
	before, err := n.reader.conn.Generation(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := n.reader.listener.Join(); err != nil {
		t.Fatal(err)
	}
	for range 100 {
		if err := o.commit(t.Context(), aboutTable(unix.NFT_MSG_NEWTABLE, "other"), aboutTable(unix.NFT_MSG_DELTABLE, "other")); err != nil {
			t.Fatal(err)
		}
	}
	n.reader.listener.Leave()
	after, err := n.reader.conn.Generation(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if !n.reader.listener.Changed(before, after) {
		t.Error("messages were lost, and nothing of ours is said to have changed")
	}
	holds(t, "after that", n, want)
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
