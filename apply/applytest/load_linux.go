package applytest

import (
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"time"
)

// A Probe is a target that one host of the topology keeps asking, each time over a new connection.
type Probe struct {
	From  string // "pod1a", "node1", "ext.201"
	Proto string // "tcp", "udp", "sctp"
	To    netip.AddrPort
}

func (p Probe) String() string { return fmt.Sprintf("%s -> %s/%s", p.From, p.To, p.Proto) }

// A Load asks its probes at a steady rate until it is stopped.
type Load struct {
	topo    *Topology
	start   time.Time
	stop    chan struct{}
	probes  sync.WaitGroup
	tries   sync.WaitGroup
	timeout time.Duration

	mu     sync.Mutex
	report LoadReport
}

// A LoadReport is what came of a Load.
type LoadReport struct {
	Start    time.Time
	Tries    map[Probe]int
	Answers  map[Probe]map[string]int // endpoint → how often it answered
	Failures []LoadFailure            // in the order of their beginnings
}

// A LoadFailure is one try that got no answer.
type LoadFailure struct {
	Probe Probe
	At    time.Time // when the try began
	Why   string    // as from [Failure]
}

func (f LoadFailure) String() string {
	return fmt.Sprintf("%s %s: %s", f.At.Format("15:04:05.000"), f.Probe, f.Why)
}

// StartLoad begins to ask each probe rate times a second. A try that gets no answer within 0.9 s has
// failed: a lost SYN is sent again after a second, and no gap may hide behind that. On a slow machine a try
// has longer, and only what is refused, or lost over UDP, cannot hide.
func (t *Topology) StartLoad(rate int, probes ...Probe) *Load {
	l := &Load{
		topo:    t,
		start:   time.Now(),
		stop:    make(chan struct{}),
		timeout: Patience(900 * time.Millisecond),
		report:  LoadReport{Tries: map[Probe]int{}, Answers: map[Probe]map[string]int{}},
	}
	l.report.Start = l.start
	for _, p := range probes {
		l.report.Answers[p] = map[string]int{}
		l.probes.Go(func() { l.keepAsking(p, time.Second/time.Duration(rate)) })
	}
	return l
}

// Stop ends the load once the tries under way are decided, and reports.
func (l *Load) Stop() LoadReport {
	close(l.stop)
	l.probes.Wait()
	l.tries.Wait()
	slices.SortStableFunc(l.report.Failures, func(a, b LoadFailure) int { return a.At.Compare(b.At) })
	return l.report
}

func (l *Load) keepAsking(p Probe, every time.Duration) {
	ticks := time.NewTicker(every)
	defer ticks.Stop()
	for {
		l.tries.Go(func() { l.ask(p) })
		select {
		case <-l.stop:
			return
		case <-ticks.C:
		}
	}
}

func (l *Load) ask(p Probe) {
	at := time.Now()
	a, err := l.topo.Try(p.From, p.Proto, 0, p.To, l.timeout)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.report.Tries[p]++
	if err != nil {
		l.report.Failures = append(l.report.Failures, LoadFailure{Probe: p, At: at, Why: Failure(err)})
		return
	}
	l.report.Answers[p][l.topo.Name(a.Server.Addr())]++
}
