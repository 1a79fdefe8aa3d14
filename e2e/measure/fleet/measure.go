package fleet

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/proxyc/proxyc/apply/applytest"
	"github.com/proxyc/proxyc/e2e/kube"
	"github.com/proxyc/proxyc/e2e/measure/sample"
)

// report is the result of a run. Times are in seconds, sizes in bytes.
type report struct {
	Nodes, Services, Endpoints int
	Machine                    sample.Machine
	MinSyncPeriod              float64
	Start                      phase // from the first request until the last node has all Services in force
	Rest                       phase // while nothing changes
	Changes                    phase
	Made                       int     // changes
	Rate                       float64 // changes per second, as achieved
	// EachNode is the time from a change's request until it is in force on a node, LastNode until
	// it is on all.
	EachNode, LastNode quantiles
	Real               objective
	MemoryAtMost       int64 // of this process, with all simulated nodes
	Load               string
}

// phase is a part of a run.
type phase struct {
	Seconds                float64
	BytesFromServer        int64 // through TLS, by all simulated nodes
	BytesToServer          int64
	Connections            int64   // that were made
	ServerCPU, SimulateCPU float64 // seconds of the processor
}

type quantiles struct{ P50, P90, P99, Most float64 }

// objective is the histogram of the real daemon.
type objective struct {
	Changes   int
	P50, P99  float64 // interpolated, as Prometheus does
	Within2   float64 // the share within 2.048 s
	NotSynced string  `json:",omitempty"` // why it was not ready at the end
}

// meter measures what was used since its previous call.
type meter struct {
	cluster *kube.Cluster
	gate    *kube.Gate
	at      time.Time
	last    phase
}

func (m *meter) used() (p phase, err error) {
	server, err := sample.CPU(m.cluster.APIPid())
	own, err2 := sample.CPU(os.Getpid())
	now := phase{BytesFromServer: m.gate.FromServer.Load(), BytesToServer: m.gate.ToServer.Load(),
		Connections: m.gate.Connections.Load(), ServerCPU: server.Seconds(), SimulateCPU: own.Seconds()}
	last := m.last
	p = phase{time.Since(m.at).Seconds(), now.BytesFromServer - last.BytesFromServer, now.BytesToServer - last.BytesToServer,
		now.Connections - last.Connections, now.ServerCPU - last.ServerCPU, now.SimulateCPU - last.SimulateCPU}
	m.at, m.last = time.Now(), now
	return p, errors.Join(err, err2)
}

// measure runs nodes against a cluster.
func measure(ctx context.Context, o options, cluster *kube.Cluster, dir, binary string) (*report, error) {
	r := &report{Nodes: o.nodes, Services: o.services, Endpoints: o.endpoints, Machine: sample.ThisMachine(), MinSyncPeriod: o.min.Seconds()}
	if err := populate(ctx, cluster, o); err != nil {
		return nil, err
	}
	gate, err := cluster.GateAt(nil, "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	defer gate.Close()
	daemon, end, err := startDaemon(ctx, o, cluster, dir, binary)
	if err != nil {
		return nil, err
	}
	defer end()
	m := &meter{cluster: cluster, gate: gate}
	if _, err := m.used(); err != nil {
		return nil, err
	}
	simulated, stop := context.WithCancel(ctx)
	t := newTracker(o.nodes)
	var all sync.WaitGroup
	defer all.Wait()
	defer stop()
	for i := range o.nodes {
		n, err := newNode(i, o, dir, gate, t)
		if err != nil {
			return nil, err
		}
		all.Go(func() { n.run(simulated) })
	}
	if err := t.begun(ctx); err != nil {
		return nil, err
	}
	if r.Start, err = m.used(); err != nil {
		return nil, err
	}
	if err := daemon.Ready(ctx); err != nil {
		return nil, err
	}
	if _, err := m.used(); err != nil {
		return nil, err
	}
	time.Sleep(o.rest) // this is what is measured
	if r.Rest, err = m.used(); err != nil {
		return nil, err
	}
	began := time.Now()
	if r.Made, err = change(ctx, cluster, o, t); err != nil {
		return nil, err
	}
	r.Rate = float64(r.Made) / time.Since(began).Seconds()
	if err := t.done(ctx); err != nil {
		return nil, err
	}
	if r.Changes, err = m.used(); err != nil {
		return nil, err
	}
	r.EachNode, r.LastNode = t.quantiles()
	if err := daemon.Ready(ctx); err != nil {
		r.Real.NotSynced = err.Error()
	}
	if err := r.Real.read(ctx, daemon); err != nil {
		return nil, err
	}
	if r.MemoryAtMost, err = sample.Memory(os.Getpid(), sample.Peak); err != nil {
		return nil, err
	}
	load, err := os.ReadFile("/proc/loadavg")
	r.Load = strings.TrimSpace(string(load))
	return r, err
}

// startDaemon starts the real daemon, in a network namespace of its own.
func startDaemon(ctx context.Context, o options, cluster *kube.Cluster, dir, binary string) (p *kube.Proxy, end func(), err error) {
	ns, err := applytest.NewNamespace("node")
	if err != nil {
		return nil, nil, err
	}
	gate, err := cluster.Gate(ns)
	if err != nil {
		return nil, nil, errors.Join(err, ns.Close())
	}
	closeAll := func() { gate.Close(); ns.Close() }
	file, err := gate.Kubeconfig(dir, kube.Admin)
	if err == nil {
		p, err = kube.StartProxy(ns, dir, "proxyc", binary, "watch", "--kubeconfig", file, "--hostname-override", nodeName(0), "--proxy-mode", "nftables",
			"--cluster-cidr", "10.128.0.0/9", "--iptables-min-sync-period", o.min.String(), "--conntrack-max-per-core", "0", "--conntrack-min", "0")
	}
	if err != nil {
		closeAll()
		return nil, nil, err
	}
	return p, func() { p.Stop(); closeAll() }, nil
}

// read reads the objective's histogram.
func (o *objective) read(ctx context.Context, daemon *kube.Proxy) error {
	_, page, err := daemon.Get(ctx, "http://127.0.0.1:10249/metrics")
	if err != nil {
		return err
	}
	const name = "proxyc_change_to_packet_seconds"
	var buckets []bucket
	for _, m := range regexp.MustCompile(`(?m)^`+name+`_bucket\{since="arrival",le="(.*)"\} (\d+)$`).FindAllStringSubmatch(page, -1) {
		var b bucket
		var err1, err2 error
		b.most, err1 = strconv.ParseFloat(m[1], 64)
		b.count, err2 = strconv.ParseFloat(m[2], 64)
		if err := errors.Join(err1, err2); err != nil {
			return fmt.Errorf("%s: %w", m[0], err)
		}
		buckets = append(buckets, b)
	}
	if len(buckets) == 0 {
		return fmt.Errorf("the daemon's metrics lack %s", name)
	}
	all := buckets[len(buckets)-1].count
	at := func(q float64) float64 {
		var below bucket
		for _, b := range buckets {
			if b.count >= q*all {
				return below.most + (b.most-below.most)*(q*all-below.count)/(b.count-below.count)
			}
			below = b
		}
		return math.MaxFloat64
	}
	o.Changes, o.P50, o.P99 = int(all), at(0.5), min(at(0.99), math.MaxFloat64)
	for _, b := range buckets {
		if b.most == 2.048 {
			o.Within2 = b.count / all
		}
	}
	return nil
}

// bucket is the number of changes that took at most a time.
type bucket struct{ most, count float64 }

func quantilesOf(all []time.Duration) quantiles {
	slices.Sort(all)
	at := func(q float64) float64 { return sample.Quantile(all, q).Seconds() }
	return quantiles{at(0.5), at(0.9), at(0.99), at(1)}
}

// writeKubeconfig writes a kubeconfig that differs from those of other nodes: client-go shares
// connections between equal ones.
func writeKubeconfig(dir, node string, gate *kube.Gate) (string, error) {
	file := filepath.Join(dir, "kubeconfig-"+node)
	text := fmt.Sprintf(`{apiVersion: v1, kind: Config, current-context: c, contexts: [{name: c, context: {cluster: c, user: u}}], users: [{name: u, user: {token: %s}}],
clusters: [{name: c, cluster: {server: "https://%s", insecure-skip-tls-verify: true, tls-server-name: %s}}]}
`, kube.Admin, gate.Addr(), node)
	return file, os.WriteFile(file, []byte(text), 0o600)
}
