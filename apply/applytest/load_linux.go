package applytest

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"time"
)

// A Probe is a target that one host of the topology queries repeatedly, each time over a new
// connection.
type Probe struct {
	From  string // "pod1a", "node1", "ext.201"
	Proto string // "tcp", "udp", "sctp"
	To    netip.AddrPort
}

func (p Probe) String() string { return fmt.Sprintf("%s -> %s/%s", p.From, p.To, p.Proto) }

// A Load queries its probes at a steady rate until it is stopped.
type Load struct {
	topo    *Topology
	start   time.Time
	stop    chan struct{}
	probes  sync.WaitGroup
	timeout time.Duration

	mu     sync.Mutex
	tried  *sync.Cond // at the start of each try
	report LoadReport
}

// A LoadReport is the result of a Load.
type LoadReport struct {
	Start    time.Time
	Tries    map[Probe]int
	Answers  map[Probe]map[string]int // number of replies by endpoint
	Failures []LoadFailure            // ordered by start
	// Late contains tries with a late reply: after a retransmission by the client, over TCP, or
	// after its minimum timeout.
	Late []LoadFailure
}

// A LoadFailure is a try without a reply, or with a late one.
type LoadFailure struct {
	Probe   Probe
	At, End time.Time // start, and time of the reply or of giving up
	Why     string    // from [Failure], or resentWhy, or slowWhy
}

// Reasons of late tries.
const (
	resentWhy = "sent again"
	slowWhy   = "slow"
)

// resendAfter is the kernel's minimum retransmission timeout.
const resendAfter = 200 * time.Millisecond

func (f LoadFailure) String() string {
	return fmt.Sprintf("%s %s: %s after %s", f.At.Format("15:04:05.000"), f.Probe, f.Why, f.End.Sub(f.At).Round(time.Millisecond))
}

// StartLoad starts to query each probe, one try at a time, at most rate times a second. After a try
// it pauses ten times its duration, since a load that uses the whole machine would only measure
// itself. A gap is visible in failures, and over TCP in retransmissions.
func (t *Topology) StartLoad(rate int, probes ...Probe) *Load {
	l := &Load{
		topo:    t,
		start:   time.Now(),
		stop:    make(chan struct{}),
		timeout: ScaledTimeout(4 * time.Second),
		report:  LoadReport{Tries: map[Probe]int{}, Answers: map[Probe]map[string]int{}},
	}
	l.report.Start, l.tried = l.start, sync.NewCond(&l.mu)
	for _, p := range probes {
		l.report.Answers[p] = map[string]int{}
	}
	for _, p := range probes {
		l.probes.Go(func() { l.repeat(p, time.Second/time.Duration(rate)) })
	}
	return l
}

// Stop ends the load after the pending tries, and returns the report.
func (l *Load) Stop() LoadReport {
	close(l.stop)
	l.probes.Wait()
	for _, of := range [][]LoadFailure{l.report.Failures, l.report.Late} {
		slices.SortStableFunc(of, func(a, b LoadFailure) int { return a.At.Compare(b.At) })
	}
	return l.report
}

// WaitTries waits until each probe has completed n further tries that started after the call, and
// has started another one.
func (l *Load) WaitTries(n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	before := maps.Clone(l.report.Tries)
	for p := range l.report.Answers {
		for l.report.Tries[p] < before[p]+n+1 { // one may have been in progress
			l.tried.Wait()
		}
	}
}

func (l *Load) repeat(p Probe, every time.Duration) {
	for {
		at := time.Now()
		l.try(p)
		select {
		case <-l.stop:
			return
		case <-time.After(max(every, 10*min(time.Since(at), resendAfter))):
		}
	}
}

func (l *Load) try(p Probe) {
	f := LoadFailure{Probe: p, At: time.Now()}
	l.mu.Lock()
	l.report.Tries[p]++
	l.tried.Broadcast()
	l.mu.Unlock()
	a, err := l.topo.Try(p.From, p.Proto, 0, p.To, l.timeout)
	f.End = time.Now()
	l.mu.Lock()
	defer l.mu.Unlock()
	if err != nil {
		f.Why = Failure(err)
		l.report.Failures = append(l.report.Failures, f)
		return
	}
	switch {
	case a.Resent > 0:
		f.Why = resentWhy
		l.report.Late = append(l.report.Late, f)
	case f.End.Sub(f.At) > resendAfter:
		f.Why = slowWhy
		l.report.Late = append(l.report.Late, f)
	}
	l.report.Answers[p][l.topo.Name(a.Server.Addr())]++
}

// Gaps separates the failures of a load that the rules caused from those that the machine may have
// caused. The latter are losses at the same time as a loss of the controls, which pass no rules. A
// rejection is always caused by rules, however slow the machine is.
func (r *LoadReport) Gaps(controls []Probe) (gaps, slow []LoadFailure) {
	var both []LoadFailure
	both = append(append(both, r.Failures...), r.Late...)
	slices.SortStableFunc(both, func(a, b LoadFailure) int { return a.At.Compare(b.At) })
	excused := func(f LoadFailure) bool {
		return slices.ContainsFunc(both, func(c LoadFailure) bool {
			return slices.Contains(controls, c.Probe) && !c.End.Before(f.At) && !f.End.Before(c.At)
		})
	}
	for _, f := range both {
		switch {
		case f.Why == slowWhy, slices.Contains(controls, f.Probe):
		case (f.Why == TimedOut || f.Why == resentWhy) && excused(f):
			slow = append(slow, f)
		default:
			gaps = append(gaps, f)
		}
	}
	return gaps, slow
}
