package nftables

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"log/slog"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/proxyc/proxyc/apply"
	"github.com/proxyc/proxyc/apply/daemon/reconcile"
	"github.com/proxyc/proxyc/ir"
	rules "github.com/proxyc/proxyc/render/nftables"
	"github.com/proxyc/proxyc/render/nftables/nftest"
)

var (
	scaleServices = flag.Int("scale.services", 1000, "Services of TestDaemonDuringForeignTransactions; 10000 is a large cluster")
	scaleTime     = flag.Duration("scale.time", 3*time.Second, "how long others go on")
)

// source is an Input with one Service that changes.
type source struct {
	tokens chan struct{}
	mu     sync.Mutex
	all    *ir.Program
	empty  *ir.Program
	last   ir.Service // that the loop took
	asked  time.Time
}

func (s *source) Changed() <-chan struct{} { return s.tokens }

// port moves a backend of the last Service.
func (s *source) port(n uint16) {
	s.mu.Lock()
	defer s.mu.Unlock()
	services := slices.Clone(s.all.Services)
	svc := &services[len(services)-1]
	svc.Pools = slices.Clone(svc.Pools)
	svc.Pools[0].Backends = slices.Clone(svc.Pools[0].Backends)
	b := &svc.Pools[0].Backends[0].AddrPort
	*b = nftest.AddrPort(ir.IPv4, fmt.Sprintf("%s:%d", b.Addr(), n))
	s.all = &ir.Program{Family: ir.IPv4, Node: s.all.Node, Services: services}
	s.asked = time.Now()
	select {
	case s.tokens <- struct{}{}:
	default:
	}
}

func (s *source) Take(reconcile.Kind) reconcile.Work {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.all.Services[len(s.all.Services)-1]
	w := reconcile.Work{Programs: ir.NewPrograms(s.all, s.empty)}
	if now.Pools[0].Backends[0].AddrPort != s.last.Pools[0].Backends[0].AddrPort {
		w.Changes.IPv4 = []ir.Change{{Name: now.Name, Old: &s.last, New: &now}}
	}
	s.last = now
	return w
}

// keeper is a daemon's reconciler on a node.
type keeper struct {
	*source
	syncs chan reconcile.Sync
	stop  func()
}

func (n node) keep(t *testing.T, all *ir.Program) *keeper {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	var plane *Dataplane
	var drift <-chan struct{}
	err := n.Do(func() (err error) {
		if plane, err = Open(ctx, apply.Options{Log: n.log}); err == nil {
			drift, err = plane.Drift(ctx)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	k := &keeper{syncs: make(chan reconcile.Sync, 1000)}
	k.source = &source{tokens: make(chan struct{}, 1), all: all, last: all.Services[len(all.Services)-1],
		empty: &ir.Program{Family: ir.IPv6, Node: nftest.Node(ir.IPv6)}}
	r := &reconcile.Reconciler{
		Writer: reconcile.Writer{Dataplane: plane}, Schedule: reconcile.Schedule{Retry: time.Minute, Full: time.Hour}, Source: k.source, Drift: drift,
		Report: func(reconcile.State) {}, Synced: func(s *reconcile.Sync) { k.syncs <- *s }, Now: time.Now, After: time.After,
	}
	var running sync.WaitGroup
	running.Go(func() { r.Run(ctx) })
	k.stop = sync.OnceFunc(func() {
		cancel()
		running.Wait()
		plane.Close()
	})
	t.Cleanup(k.stop)
	return k
}

// next waits for a sync that matches, and returns those before it.
func (k *keeper) next(t *testing.T, what string, done func(*reconcile.Sync) bool) (before []reconcile.Sync) {
	t.Helper()
	limit := time.After(time.Minute)
	for {
		select {
		case s := <-k.syncs:
			if s.Incomplete { // a Replace follows
				continue
			}
			if s.Err != nil {
				t.Fatalf("%s: %v", s.Kind, s.Err)
			}
			before = append(before, s)
			if done(&s) {
				return before
			}
		case <-limit:
			t.Fatalf("%s: in none of %d syncs", what, len(before))
		}
	}
}

// asOtherProcess calls f in a thread with another name, by which the kernel identifies the author
// of a transaction.
func asOtherProcess(f func() error) (err error) {
	var done sync.WaitGroup
	done.Go(func() {
		// The thread ends with the goroutine, but for the first one, whose name is
		// that of the process.
		runtime.LockOSThread()
		var was [16]byte
		if err = unix.Prctl(unix.PR_GET_NAME, uintptr(unsafe.Pointer(&was[0])), 0, 0, 0); err != nil {
			return
		}
		defer unix.Prctl(unix.PR_SET_NAME, uintptr(unsafe.Pointer(&was[0])), 0, 0, 0)
		if err = unix.Prctl(unix.PR_SET_NAME, uintptr(unsafe.Pointer(&[]byte("somebody\x00")[0])), 0, 0, 0); err == nil {
			err = f()
		}
	})
	done.Wait()
	return err
}

// spread returns the median, the 99th percentile and the maximum of some durations.
func spread(all []time.Duration) string {
	if len(all) == 0 {
		return "none"
	}
	slices.Sort(all)
	at := func(part float64) time.Duration {
		return all[int(part*float64(len(all)-1))].Round(10 * time.Microsecond)
	}
	return fmt.Sprintf("%d, median %s, 99%% %s, slowest %s", len(all), at(0.5), at(0.99), at(1))
}

func drifted(s *reconcile.Sync) bool { return s.Done.Drift != (apply.Count{}) }

// During many foreign transactions a daemon starts, applies changes and repairs its rules as usual.
// Changes of foreign tables cause no readings, and own changes do not wait for a comparison.
func TestDaemonDuringForeignTransactions(t *testing.T) {
	n := newNode(t)
	o := n.other(t)
	var log bytes.Buffer
	n.log = slog.New(slog.NewTextHandler(&log, nil))
	all := nftest.Large(*scaleServices)
	start := func() (*keeper, time.Duration) {
		began := time.Now()
		k := n.keep(t, all)
		k.next(t, "start", func(s *reconcile.Sync) bool { return s.Kind == reconcile.Full })
		return k, time.Since(began)
	}
	k, first := start()
	k.stop()
	k, quiet := start()
	k.stop()

	if err := o.commit(t.Context(), aboutTable(unix.NFT_MSG_NEWTABLE, "other")); err != nil {
		t.Fatal(err)
	}
	tick := time.NewTicker(time.Second / 50)
	defer tick.Stop()
	own := time.NewTicker(time.Second / 20)
	defer own.Stop()
	others := again(t, func() error {
		if err := o.commit(t.Context(), aboutTable(unix.NFT_MSG_NEWCHAIN, "other", named(unix.NFTA_CHAIN_NAME, "a"))); err != nil {
			return err
		}
		<-tick.C
		if err := o.commit(t.Context(), aboutTable(unix.NFT_MSG_DELCHAIN, "other", named(unix.NFTA_CHAIN_NAME, "a"))); err != nil {
			return err
		}
		<-tick.C
		return nil
	})
	k, restart := start()
	t.Logf("%d Services: first start %s, restart %s, beside others %s", *scaleServices, first, quiet, restart)

	attacker := n.other(t)
	vip := all.Services[3].Frontends[0].Match
	var repair time.Duration
	var alone, beside []time.Duration
	repairs, during := 0, 0
	begin := time.Now()
	port := uint16(9000)
	moved := func(s *reconcile.Sync) bool {
		svc := &s.Work.Programs.IPv4.Services[len(s.Work.Programs.IPv4.Services)-1]
		if len(s.Work.Changes.IPv4) > 0 {
			svc = s.Work.Changes.IPv4[0].New
		}
		return svc.Pools[0].Backends[0].AddrPort.Port() == port
	}
	move := func() {
		port++
		k.port(port)
	}
	// On a busy machine, a repair may come before a change beside it: more are tried.
	for past := time.Duration(0); past < *scaleTime || during == 0 && past < 20**scaleTime; past = time.Since(begin) {
		// A change alone.
		move()
		k.next(t, "change", moved)
		alone = append(alone, time.Since(k.asked))
		// Drift, and changes until it is repaired.
		b := &batch{}
		b.elements(&change{family: ir.IPv4}, unix.NFT_MSG_DELSETELEM, rules.ServiceIPs.Set(),
			[]rules.Element{{Key: rules.Key{Addr: vip.Addr, Proto: vip.Protocol, Port: vip.Port}}}, false)
		err := asOtherProcess(func() error { return attacker.commit(t.Context(), b.messages...) })
		if err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		move()
		for repaired := false; !repaired; {
			one := k.next(t, "change", moved)
			took := time.Since(k.asked)
			beside = append(beside, took)
			for _, s := range one {
				repaired = repaired || drifted(&s)
			}
			if !repaired {
				during++
				<-own.C
				move()
			}
		}
		repair = max(repair, time.Since(began))
		repairs++
	}
	k.stop()
	times := others()
	t.Logf("%d transactions of others: %d repairs, slowest %s", 2*times, repairs, repair)
	t.Logf("changes alone: %s; beside a comparison: %s", spread(alone), spread(beside))
	if repairs == 0 || during == 0 {
		t.Errorf("%d repairs, with %d changes beside them: nothing was shown", repairs, during)
	}
	if log.Len() > 0 {
		t.Error(&log)
	}
	k.source.mu.Lock()
	want := rules.LowerAll(ir.NewPrograms(k.source.all, k.empty))
	k.source.mu.Unlock()
	have, err := n.Tables(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for op := range newPlan(have, want).Operations {
		t.Errorf("still to do: %s %s", op.Verb, op.Object)
	}
}
