package peer

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/proxyc/proxyc/e2e/kube"
	"github.com/proxyc/proxyc/e2e/measure/sample"
)

// A result is the result of one program in one mode. Times are in seconds, sizes in bytes.
type result struct {
	Program  string               `json:"program"`
	Mode     string               `json:"mode"`
	Values   map[string]float64   `json:"values"`
	Runs     []map[string]float64 `json:"runs"` // Values are their medians
	Samples  map[string][]float64 `json:"samples"`
	Requests []request            `json:"requests"` // to the API server
	Errors   []string             `json:"errors,omitempty"`
}

// A subject is a program under measurement.
type subject struct {
	setup
	options
	*lab
	api kubernetes.Interface
	log io.Writer

	proxy *kube.Proxy
	meter *sample.Group
	found *result
	// started is the end of the first start.
	started time.Time
}

// part is a part of the measurement, with its timeout.
type part struct {
	name  string
	limit time.Duration
	run   func(context.Context) error
}

// measure starts a program, and then runs all parts. If a part fails the others still run, except
// after a failed start.
func (s *subject) measure(ctx context.Context) {
	began := time.Now()
	defer s.end()
	for _, p := range s.parts() {
		fmt.Fprintf(s.log, "%s %s: %s\n", s.found.Mode, s.name, p.name)
		limited, cancel := context.WithTimeout(ctx, p.limit)
		err := p.run(limited)
		cancel()
		if err != nil {
			fmt.Fprintf(s.log, "%s %s: %s: %v\n", s.found.Mode, s.name, p.name, err)
			s.found.Errors = append(s.found.Errors, fmt.Sprintf("%s: %v", p.name, err))
		}
		if s.proxy == nil || err != nil && p.name == "start" {
			break
		}
	}
	fmt.Fprintf(s.log, "%s %s: took %s\n", s.found.Mode, s.name, time.Since(began).Round(time.Second))
}

func (s *subject) parts() []part {
	return []part{
		{"start", s.startLimit, s.start},
		{"rest", s.limit, s.rest},
		{"endpoint", s.limit, s.endpoint},
		{"add and remove", s.limit, s.addAndRemove},
		{"burst", s.limit, s.burst},
		{"connect", s.limit, s.connect},
		{"churn", s.limit, s.churn},
		{"restart", s.startLimit, s.restart},
	}
}

// end ends the program and records what it has used.
func (s *subject) end() {
	if s.meter != nil {
		s.notePeak()
	}
	if s.proxy != nil {
		s.proxy.Kill()
	}
	if s.meter != nil {
		if err := s.meter.Close(); err != nil {
			s.found.Errors = append(s.found.Errors, err.Error())
		}
	}
}

func (s *subject) notePeak() {
	p := s.meter.Peak()
	for key, bytes := range map[string]int64{"all": p.All, "daemon": p.Daemon, "child": p.Child} {
		s.found.Values["memory."+key] = max(s.found.Values["memory."+key], float64(bytes))
	}
}

// launch starts the program, and its meter.
func (s *subject) launch() (began time.Time, err error) {
	began = time.Now()
	if s.proxy, err = s.setup.start(s.lab); err == nil {
		s.meter, err = sample.NewGroup(s.proxy.Pid())
	}
	return began, err
}

// spread is the number of Services that are watched at the start, including the last one.
const spread = 64

// start measures the time until all Services are in the kernel. It probes some of them
// repeatedly, and then each. Those that do not answer immediately count until they do.
func (s *subject) start(ctx context.Context) error {
	all := append(serviceAddrs(s.cluster), canaryAddr(canary))
	watched := []netip.AddrPort{}
	for i := range min(spread, len(all)) {
		watched = append(watched, all[len(all)-1-i*len(all)/spread%len(all)])
	}
	began, err := s.launch()
	if err != nil {
		return err
	}
	at, err := s.until(ctx, atHome, watched...)
	if err != nil {
		return fmt.Errorf("%w\n%s", err, s.proxy.Tail())
	}
	missing, err := s.unanswered(all)
	if err == nil && len(missing) > 0 {
		at, err = s.until(ctx, atHome, missing...)
	}
	if err != nil {
		return err
	}
	s.set("start", at.Sub(began))
	used, err := s.meter.Quiet(ctx)
	s.set("start.cpu", used)
	s.started = time.Now()
	s.found.Values["api.start"] = float64(s.gate.FromServer.Load())
	s.found.Values["api.connections"] = float64(s.gate.Connections.Load())
	return err
}

// unanswered probes each Service once, and returns those without an answer.
func (s *subject) unanswered(all []netip.AddrPort) (out []netip.AddrPort, err error) {
	return out, s.client.Do(func() error {
		for _, a := range all {
			got, err := connect(a, longWait)
			if err != nil {
				return err
			}
			if got == noReply {
				out = append(out, a)
			}
		}
		return nil
	})
}

// rest measures the costs while nothing changes.
func (s *subject) rest(ctx context.Context) error {
	const minute = 60
	bytes := s.gate.FromServer.Load()
	used, err := s.meter.CPU()
	if err != nil {
		return err
	}
	began := time.Now()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(s.still):
	}
	now, err := s.meter.CPU()
	per := minute / time.Since(began).Seconds()
	s.found.Values["rest.cpu"] = (now - used).Seconds() * per
	s.found.Values["api.idle"] = float64(s.gate.FromServer.Load()-bytes) * per
	return err
}

// A change is the duration and the cost of a change.
type change struct {
	answered time.Duration // from the API server's response to the kernel; negative if the kernel was first
	whole    time.Duration // from the request to the kernel
	cpu      time.Duration // until the program rests
}

// change makes one change, and waits until the kernel has it and the program is at rest.
func (s *subject) change(ctx context.Context, send func() error, want answer, addrs ...netip.AddrPort) (c change, err error) {
	before, err := s.meter.CPU()
	if err != nil {
		return c, err
	}
	watching, cancel := context.WithCancel(ctx)
	defer cancel()
	var at time.Time
	kernel := make(chan error, 1)
	go func() {
		var err error
		at, err = s.until(watching, want, addrs...)
		kernel <- err
	}()
	sent := time.Now()
	err = send()
	answered := time.Now()
	if err != nil {
		cancel()
	}
	if err = errors.Join(err, <-kernel); err != nil {
		return c, err
	}
	after, err := s.meter.Quiet(ctx)
	if s.options.minSync >= time.Millisecond { // so that each is the first after a pause
		time.Sleep(s.options.minSync)
	}
	return change{at.Sub(answered), at.Sub(sent), after - before}, err
}

// endpoint moves the canary's endpoint back and forth.
func (s *subject) endpoint(ctx context.Context) error {
	bytes := s.gate.FromServer.Load()
	err := s.repeat(s.rounds, "endpoint", "endpoint", func(i int) (change, error) {
		to, want := s.place(i)
		return s.change(ctx, func() error { return move(ctx, s.api, canary, to) }, want, canaryAddr(canary))
	})
	if n := len(s.found.Samples["endpoint"]); n > 0 {
		s.found.Values["api.endpoint"] = float64(s.gate.FromServer.Load()-bytes) / float64(n)
	}
	return err
}

// place returns the endpoint of a canary in a round, and the answer of a probe then.
func (s *subject) place(round int) (netip.Addr, answer) {
	if round%2 == 0 {
		return abroad, moved
	}
	return home, atHome
}

// addAndRemove adds a Service whose EndpointSlice exists, and removes it.
func (s *subject) addAndRemove(ctx context.Context) error {
	services := s.api.CoreV1().Services(canaries)
	for range s.rounds {
		err := s.repeat(1, "added", "addremove", func(int) (change, error) {
			return s.change(ctx, func() error {
				_, err := services.Create(ctx, canaryService(comeAndGo), metav1.CreateOptions{})
				return err
			}, atHome, canaryAddr(comeAndGo))
		})
		if err != nil {
			return err
		}
		err = s.repeat(1, "removed", "addremove", func(int) (change, error) {
			return s.change(ctx, func() error {
				return services.Delete(ctx, canaryName(comeAndGo), metav1.DeleteOptions{})
			}, noReply, canaryAddr(comeAndGo))
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// burst moves the endpoints of many canaries at once. The time begins with the response to the
// last request.
func (s *subject) burst(ctx context.Context) error {
	return s.repeat(max(2, s.rounds/4), "burst", "burst", func(i int) (change, error) {
		to, want := s.place(i)
		return s.change(ctx, func() error {
			return kube.Parallel(workers, s.atOnce, func(i int) error { return move(ctx, s.api, burst+i, to) })
		}, want, canaryAddrs(burst, s.atOnce)...)
	})
}

// repeat makes changes, and updates their summary after each.
func (s *subject) repeat(n int, times, costs string, once func(i int) (change, error)) error {
	for i := range n {
		c, err := once(i)
		if err != nil {
			return err
		}
		for key, d := range map[string]time.Duration{times: c.answered, times + ".whole": c.whole, costs + ".cpu": c.cpu} {
			s.found.Samples[key] = append(s.found.Samples[key], d.Seconds())
		}
		all := slices.Sorted(slices.Values(s.found.Samples[times]))
		s.found.Values[times+".p50"], s.found.Values[times+".p90"] = sample.Quantile(all, 0.5), sample.Quantile(all, 0.9)
		s.found.Values[times+".whole"] = sample.Quantile(slices.Sorted(slices.Values(s.found.Samples[times+".whole"])), 0.5)
		s.found.Values[costs+".cpu"] = mean(s.found.Samples[costs+".cpu"])
	}
	return nil
}

func mean(values []float64) (sum float64) {
	for _, v := range values {
		sum += v / float64(len(values))
	}
	return sum
}

// clients is the number of clients that connect at once.
const clients = 2

// connect makes as many new connections to the last Service as possible.
func (s *subject) connect(ctx context.Context) error {
	last, err := s.last(ctx, s.lab)
	if err != nil {
		return err
	}
	return s.connections("connect", last)
}

// churn does the same while endpoints change, at the same rate for each program. Since the order
// of rules then changes, it queries many Services.
func (s *subject) churn(ctx context.Context) error {
	all := serviceAddrs(s.cluster)
	var some []netip.AddrPort
	for i := range min(spread, len(all)) {
		some = append(some, all[i*len(all)/min(spread, len(all))])
	}
	ctx, cancel := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() { ended <- s.keepMoving(ctx) }()
	err := s.connections("churn", some...)
	cancel()
	if moving := <-ended; err == nil {
		err = moving
	}
	return err
}

// movesPerSecond is the number of endpoints that change per second while connections are made.
const movesPerSecond = 20

func (s *subject) keepMoving(ctx context.Context) error {
	tick := time.NewTicker(time.Second / movesPerSecond)
	defer tick.Stop()
	for i := 0; ; i++ {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		to, _ := s.place(i / s.atOnce)
		if err := move(context.WithoutCancel(ctx), s.api, burst+i%s.atOnce, to); err != nil {
			return err
		}
	}
}

// connections measures how many are possible, and how long a single one takes.
func (s *subject) connections(key string, addrs ...netip.AddrPort) error {
	many, err := s.loadFor(s.seconds, clients, addrs...)
	if err != nil {
		return err
	}
	single, err := s.loadFor(s.seconds, 1, addrs...)
	if err != nil {
		return err
	}
	s.found.Values[key+".rate"] = many.PerSecond
	s.found.Values[key+".failed"] = float64(many.Failed + single.Failed)
	s.set(key+".p50", single.P50)
	s.set(key+".p99", single.P99)
	return nil
}

// restart ends the program, moves an endpoint, and starts it again. Meanwhile it queries another
// Service all the time.
func (s *subject) restart(ctx context.Context) error {
	if _, err := s.meter.Quiet(ctx); err != nil {
		return err
	}
	s.notePeak()
	type gap struct {
		longest time.Duration
		err     error
	}
	asking, stop := context.WithCancel(ctx)
	defer stop()
	gaps := make(chan gap, 1)
	go func() {
		longest, err := s.gaps(asking, serviceAddrs(s.cluster)[0])
		gaps <- gap{longest, err}
	}()
	err := s.startAgain(ctx)
	stop()
	g := <-gaps
	s.set("restart.gap", g.longest)
	if err == nil {
		err = g.err
	}
	return err
}

func (s *subject) startAgain(ctx context.Context) error {
	s.proxy.Stop() // how it ends is irrelevant: the signal kills kube-proxy
	if err := s.meter.Close(); err != nil {
		return err
	}
	s.meter = nil
	to, want, err := s.otherEndpoint()
	if err != nil {
		return err
	}
	if err := move(ctx, s.api, canary, to); err != nil {
		return err
	}
	began, err := s.launch()
	if err != nil {
		return err
	}
	at, err := s.until(ctx, want, canaryAddr(canary))
	if err != nil {
		return err
	}
	s.set("restart.kernel", at.Sub(began))
	_, err = s.meter.Quiet(ctx)
	return err
}

// otherEndpoint returns an endpoint other than the one that the kernel has for the canary.
func (s *subject) otherEndpoint() (to netip.Addr, want answer, err error) {
	err = s.client.Do(func() error {
		now, err := connect(canaryAddr(canary), longWait)
		to, want = abroad, moved
		if now == moved {
			to, want = home, atHome
		}
		return err
	})
	return to, want, err
}

func (s *subject) set(key string, d time.Duration) { s.found.Values[key] = d.Seconds() }
