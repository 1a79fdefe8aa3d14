package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/proxyc/proxyc/apply/applytest"
)

// config syncs at once (a minSyncPeriod of 0 means 1 s), and leaves the settings of the machine alone.
const config = `apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
mode: nftables
clusterCIDR: 10.128.0.0/9
enableProfiling: true
conntrack: {maxPerCore: 0, min: 0, tcpEstablishedTimeout: 0s, tcpCloseWaitTimeout: 0s}
nftables: {minSyncPeriod: 1ns}
`

// daemon is a running `proxyc watch`.
type daemon struct {
	ns     *applytest.Namespace
	http   *http.Client
	gen    *generation
	before uint32 // the generation at the start
	began  time.Time
	log    *log
	proc   *os.Process
	wait   func() error
}

// log is what the daemon says.
type log struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *log) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *log) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// start starts a daemon in a namespace.
func (r *runner) start(ctx context.Context, ns *applytest.Namespace, source ...string) (*daemon, error) {
	file := filepath.Join(r.dir, "config.yaml")
	if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
		return nil, err
	}
	gen, err := openGeneration(ns)
	if err != nil {
		return nil, err
	}
	d := &daemon{ns: ns, gen: gen, log: &log{}, http: clientIn(ns)}
	if d.before, err = gen.now(); err != nil {
		return nil, err
	}
	cmd := ns.Command(ctx, r.binary, append([]string{"watch", "--config", file, "--hostname-override", "node1"}, source...)...)
	cmd.Stdout, cmd.Stderr = d.log, d.log
	d.began = time.Now()
	if d.wait, err = ns.Start(cmd); err != nil {
		return nil, errors.Join(err, gen.Close())
	}
	d.proc = cmd.Process
	return d, nil
}

func (d *daemon) stop() {
	d.http.CloseIdleConnections()
	d.gen.Close()
	d.proc.Signal(syscall.SIGTERM)
	d.wait()
}

// clientIn talks to servers in a namespace.
func clientIn(ns *applytest.Namespace) *http.Client {
	dial := func(ctx context.Context, network, addr string) (conn net.Conn, err error) {
		err = ns.Do(func() error {
			conn, err = (&net.Dialer{}).DialContext(ctx, network, addr)
			return err
		})
		return conn, err
	}
	return &http.Client{Transport: &http.Transport{DialContext: dial}}
}

// metricsServer is where kube-proxy has it.
const metricsServer = "http://127.0.0.1:10249"

func (d *daemon) get(ctx context.Context, path string) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, metricsServer+path, nil)
	if err != nil {
		return nil, err
	}
	resp, err := d.http.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	var b bytes.Buffer
	if _, err := b.ReadFrom(resp.Body); err != nil {
		return nil, err
	}
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%s: %s", path, resp.Status)
	}
	return b.Bytes(), nil
}

// synced waits until the daemon has nothing to do.
func (d *daemon) synced(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	for {
		var st struct{ Synced bool }
		data, err := d.get(ctx, "/proxyc/status")
		if err == nil && json.Unmarshal(data, &st) == nil && st.Synced {
			return nil
		}
		if ctx.Err() != nil {
			return errors.Join(fmt.Errorf("waiting for the daemon: %w", ctx.Err()), err)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// memory is in bytes: resident once that changes no more, at most, and the Go
// heap after a collection.
type memory struct {
	Resident float64 `json:"resident"`
	Peak     float64 `json:"peak"`
	Live     float64 `json:"live"`
}

// quiet is for how long a daemon's memory must have stayed the same.
const quiet = 3 * time.Second

// settled waits until the daemon has given back what the start took, and gives
// what stays resident.
func (d *daemon) settled() (now float64, err error) {
	for before := -1.0; math.Abs(now-before) > now/100; time.Sleep(quiet) {
		before = now
		if now, err = d.status("VmRSS"); err != nil {
			return 0, err
		}
	}
	return now, nil
}

func (d *daemon) memory(ctx context.Context) (m memory, err error) {
	if m.Resident, err = d.settled(); err != nil {
		return m, err
	}
	if m.Peak, err = d.status("VmHWM"); err != nil {
		return m, err
	}
	if _, err := d.get(ctx, "/debug/pprof/heap?gc=1"); err != nil {
		return m, err
	}
	text, err := d.get(ctx, "/metrics")
	if err != nil {
		return m, err
	}
	for line := range strings.Lines(string(text)) {
		if value, ok := strings.CutPrefix(line, "go_gc_heap_live_bytes "); ok {
			m.Live, err = strconv.ParseFloat(strings.TrimSpace(value), 64)
			return m, err
		}
	}
	return m, errors.New("the metrics have no go_gc_heap_live_bytes")
}

// status gives a field of the process' status in bytes.
func (d *daemon) status(field string) (float64, error) {
	f, err := os.Open(fmt.Sprintf("/proc/%d/status", d.proc.Pid))
	if err != nil {
		return 0, err
	}
	defer f.Close()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		var kb float64
		if rest, ok := strings.CutPrefix(lines.Text(), field+":"); ok {
			_, err := fmt.Sscanf(rest, "%f kB", &kb)
			return kb * 1024, err
		}
	}
	return 0, fmt.Errorf("/proc/%d/status has no %s", d.proc.Pid, field)
}

// cpu is what all threads together were given.
func (d *daemon) cpu() (all time.Duration, err error) {
	files, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/schedstat", d.proc.Pid))
	if err != nil {
		return 0, err
	}
	for _, file := range files {
		data, err := os.ReadFile(file)
		if errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.ESRCH) {
			continue // the thread ended
		}
		var ns int64
		if _, scan := fmt.Sscan(string(data), &ns); err != nil || scan != nil {
			return 0, errors.Join(err, scan)
		}
		all += time.Duration(ns)
	}
	return all, nil
}

// generation asks a namespace's nf_tables how often they changed.
type generation struct{ *netlink.Conn }

func openGeneration(ns *applytest.Namespace) (*generation, error) {
	c, err := netlink.Dial(unix.NETLINK_NETFILTER, &netlink.Config{NetNS: ns.Fd()})
	return &generation{c}, err
}

func (g *generation) now() (uint32, error) {
	msgs, err := g.Execute(netlink.Message{
		Header: netlink.Header{Type: unix.NFNL_SUBSYS_NFTABLES<<8 | unix.NFT_MSG_GETGEN, Flags: netlink.Request},
		Data:   []byte{0, 0, 0, 0},
	})
	if err != nil {
		return 0, err
	}
	const nfgenmsg = 4
	if len(msgs) == 0 || len(msgs[0].Data) < nfgenmsg {
		return 0, errors.New("nf_tables do not tell their generation")
	}
	attrs, err := netlink.NewAttributeDecoder(msgs[0].Data[nfgenmsg:])
	if err != nil {
		return 0, err
	}
	attrs.ByteOrder = binary.BigEndian
	for attrs.Next() {
		if attrs.Type() == unix.NFTA_GEN_ID {
			return attrs.Uint32(), attrs.Err()
		}
	}
	return 0, errors.New("nf_tables do not tell their generation")
}

// after waits for another generation than before.
func (g *generation) after(ctx context.Context, before uint32) error {
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	for ctx.Err() == nil {
		now, err := g.now()
		if err != nil || now != before {
			return err
		}
		time.Sleep(50 * time.Microsecond)
	}
	return fmt.Errorf("waiting for the kernel: %w", ctx.Err())
}
