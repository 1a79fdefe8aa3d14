package peer

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"golang.org/x/sys/unix"

	"github.com/proxyc/proxyc/apply/applytest/cluster"
	"github.com/proxyc/proxyc/e2e/kube"
	"github.com/proxyc/proxyc/e2e/measure/sample"
	"github.com/proxyc/proxyc/e2e/measure/scenario"
)

// bare is the one NAT rule to which the programs are compared. Every new connection to a Service
// is translated, but nothing is looked up.
const bare = `table ip bare {
	chain before { type nat hook prerouting priority dstnat; 
		ip daddr 10.96.0.0/13 tcp dport 80 dnat to 10.189.0.1:8080
		ip daddr 10.111.0.0/16 tcp dport 80 dnat to 10.190.0.1:8080 # where the time of connections is measured
	}
	chain after { type nat hook postrouting priority srcnat; }
}
`

const (
	bareName = "one NAT rule"
	// silent is an address of no Service and no endpoint: packets to it are forwarded, and
	// nothing answers.
	silent = "10.189.0.1"
	// answering has home and abroad. Nothing answers at other endpoints, so that a first packet is
	// measured alone.
	answering = "10.190.0.0/30"
	// refusedNumber is the number of the canary without endpoints.
	refusedNumber = burst
	// measuredServices is the number of Services that first packets go to in turn, at even
	// distances in the cluster. It is also the largest number of endpoints in a mixed cluster.
	measuredServices = 10
	inTurn           = 16 // packets between two readings of the clock
)

// Kinds of packets. Each row of the report is one.
const (
	firstUniform  = "first packet, 5 endpoints each"
	firstMixed    = "first packet, 1 to 10 endpoints"
	noService     = "first packet to no Service"
	laterPacket   = "later packet of a connection"
	refusedPacket = "refused packet"
	connection    = "processor time of a connection"
)

// laterSource has the connection of later packets.
var laterSource = netip.AddrPortFrom(client.Addr(), 1024)

var kindsOfPackets = []string{firstUniform, firstMixed, noService, laterPacket, refusedPacket, connection}

// packetOptions are what RunPackets measures.
type packetOptions struct {
	services, rounds int
	modes            []string
	flood            time.Duration
}

// PacketReport is the result of RunPackets: nanoseconds of processor and waiting time for each
// packet, from send until the packet has left the node, or was refused.
type PacketReport struct {
	Versions map[string]string  `json:"versions"`
	Services int                `json:"services"`
	Rounds   int                `json:"rounds"`
	Nanos    map[string]float64 `json:"nanoseconds"` // "program mode: kind", 10th percentile
	Flood    map[string]float64 `json:"flood"`       // by program and mode: connections with refused ones beside them / without
}

// RunPackets is the scenario: it measures what the rules of both programs cost packets. The
// programs write the rules themselves, into nodes that exist at the same time, and end. The nodes
// then get packets in turn from this process, so that any other load affects all alike.
func RunPackets(ctx context.Context, to *scenario.Run, args []string) error {
	to.Measures()
	var o packetOptions
	var names string
	to.Flags.IntVar(&o.services, "services", 1000, "`number` of Services")
	to.Flags.IntVar(&o.rounds, "rounds", 3000, "`number` of turns of each kind of packet, at most 4000")
	to.Flags.StringVar(&names, "modes", "nftables,iptables-nft,iptables-legacy", "modes, separated by commas")
	to.Flags.DurationVar(&o.flood, "flood", 3*time.Second, "how long to connect beside refused connections")
	if err := to.Flags.Parse(args); err != nil {
		return err
	}
	o.modes = strings.Split(names, ",")
	for _, m := range o.modes {
		if _, ok := modes[m]; !ok {
			return fmt.Errorf("-modes: %q is unknown", m)
		}
	}
	// Source ports are not repeated, since a second packet would be a later one.
	if o.services < measuredServices || o.rounds < 10 || o.rounds > 4000 {
		return fmt.Errorf("-services must be at least %d, and -rounds from 10 to 4000", measuredServices)
	}
	r, err := measurePackets(ctx, to, o)
	if err != nil {
		return err
	}
	return errors.Join(to.Save(r), r.show(to.Out, o.modes))
}

// A path is a lab whose node has the rules of a program in a mode.
type path struct {
	name string // program and mode
	*lab
}

func measurePackets(ctx context.Context, to *scenario.Run, o packetOptions) (r *PacketReport, err error) {
	peer, own, err := programs(ctx, to)
	if err != nil {
		return nil, err
	}
	r = &PacketReport{Versions: versions(ctx, peer, own), Services: o.services, Rounds: o.rounds,
		Nanos: map[string]float64{}, Flood: map[string]float64{}}
	for _, mixed := range []bool{false, true} {
		if err := r.measureCluster(ctx, to, o, []program{peer, own}, mixed); err != nil {
			return nil, err
		}
	}
	return r, nil
}

// measureCluster measures both programs with one cluster.
func (r *PacketReport) measureCluster(ctx context.Context, to *scenario.Run, o packetOptions, compared []program, mixed bool) (err error) {
	dir := filepath.Join(to.Dir, strconv.FormatBool(mixed))
	if err := os.Mkdir(dir, 0o755); err != nil {
		return err
	}
	c, err := kube.Start(ctx, dir)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.Close()) }()
	generated := cluster.Cluster{Services: o.services, Endpoints: 5, Plain: true}
	if mixed {
		generated.Endpoints, generated.Mixed = measuredServices, true
	}
	if err := prepare(ctx, c, options{cluster: generated}, &report{}, to.Log); err != nil {
		return err
	}
	if _, err := c.Client().CoreV1().Services(canaries).Create(ctx, canaryService(refusedNumber), metav1.CreateOptions{}); err != nil {
		return err
	}
	var paths []path
	defer func() {
		for _, p := range paths {
			err = errors.Join(err, p.Close())
		}
	}()
	add := func(name string) (*lab, error) {
		l, err := newLab(c, answering)
		if err != nil {
			return nil, err
		}
		paths = append(paths, path{name, l})
		// Entries of connections that nobody answers must not fill the table of connections.
		return l, l.node.Sysctl("netfilter/nf_conntrack_tcp_timeout_syn_sent=5")
	}
	l, err := add(bareName)
	if err != nil {
		return err
	}
	load := l.node.Command(ctx, "nft", "-f", "-")
	load.Stdin = strings.NewReader(bare)
	if _, err := l.node.Run(load); err != nil {
		return err
	}
	for _, name := range o.modes {
		for _, p := range compared {
			fmt.Fprintf(to.Log, "%s: %s writes its rules\n", name, p.name)
			l, err := add(p.name + " " + name)
			if err == nil {
				err = setup{p, modes[name], dir, 1}.leaveRules(ctx, l)
			}
			if err != nil {
				return fmt.Errorf("%s %s: %w", p.name, name, err)
			}
		}
	}
	if err := r.timePackets(paths, generated, o.rounds); err != nil || mixed {
		return err
	}
	if err := r.timeConnections(paths, o.rounds); err != nil {
		return err
	}
	return r.floodEach(ctx, paths, o.flood)
}

// leaveRules runs the program until its rules are in the kernel, and kills it.
func (s setup) leaveRules(ctx context.Context, l *lab) error {
	ctx, cancel := context.WithTimeout(ctx, 15*time.Minute)
	defer cancel()
	p, err := s.start(l)
	if err != nil {
		return err
	}
	// Both write all Services at once.
	if _, err = l.until(ctx, atHome, canaryAddr(canary)); err != nil {
		err = fmt.Errorf("%w\n%s", err, p.Tail())
	}
	return errors.Join(err, p.Kill())
}

// A sender sends one kind of packet over a path.
type sender struct {
	key     string // of the report
	fd      int
	to      []netip.AddrPort
	later   bool // whether all packets are of one connection
	count   uint16
	took    []float64 // nanoseconds a packet, by round
	packets [inTurn][]byte
}

// timePackets sends each kind of packet over all paths in turn.
func (r *PacketReport) timePackets(paths []path, c cluster.Cluster, rounds int) error {
	var services []netip.AddrPort
	all := serviceAddrs(c)
	for i := range measuredServices {
		services = append(services, all[i*len(all)/measuredServices+i%(len(all)/measuredServices)])
	}
	to := map[string][]netip.AddrPort{firstMixed: services}
	if !c.Mixed {
		nowhere := []netip.AddrPort{netip.AddrPortFrom(netip.MustParseAddr(silent), targetPort+1)}
		to = map[string][]netip.AddrPort{firstUniform: services, noService: nowhere, laterPacket: nowhere, refusedPacket: canaryAddrs(refusedNumber, 1)}
	}
	for _, kind := range kindsOfPackets {
		if to[kind] == nil {
			continue
		}
		var senders []*sender
		for _, p := range paths {
			if kind == refusedPacket && p.name == bareName {
				continue
			}
			s := &sender{key: p.name + ": " + kind, to: to[kind], later: kind == laterPacket}
			err := p.client.Do(func() (err error) {
				s.fd, err = unix.Socket(unix.AF_INET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_RAW)
				return err
			})
			if err != nil {
				return err
			}
			defer unix.Close(s.fd)
			if s.later {
				if err := p.establish(to[kind][0]); err != nil {
					return err
				}
			}
			senders = append(senders, s)
		}
		for round := range rounds {
			for i := range senders {
				if err := senders[(i+round)%len(senders)].turn(); err != nil {
					return fmt.Errorf("%s: %w", senders[(i+round)%len(senders)].key, err)
				}
			}
		}
		for _, s := range senders {
			r.set(s.key, s.took)
		}
	}
	return nil
}

func (r *PacketReport) set(key string, took []float64) {
	slices.Sort(took)
	r.Nanos[key] = sample.Quantile(took, 0.1)
}

// turn sends inTurn packets. The kernel forwards each within the call that sends it.
func (s *sender) turn() error {
	var dst [inTurn]unix.SockaddrInet4
	for i := range s.packets {
		to := s.to[int(s.count)%len(s.to)]
		dst[i].Addr = to.Addr().As4()
		if s.later {
			s.packets[i] = datagram(laterSource, to)
			continue
		}
		s.packets[i] = syn(client.Addr(), to, 1024+s.count)
		s.count++
	}
	began := time.Now()
	for i := range s.packets {
		if err := unix.Sendto(s.fd, s.packets[i], 0, &dst[i]); err != nil {
			return err
		}
	}
	s.took = append(s.took, float64(time.Since(began).Nanoseconds())/inTurn)
	return nil
}

// establish sends a packet in each direction. Before the second one, connection tracking
// regards each packet as new.
func (p path) establish(to netip.AddrPort) error {
	return errors.Join(p.client.Do(func() error { return sendRaw(datagram(laterSource, to), to.Addr()) }),
		p.backend.Do(func() error { return sendRaw(datagram(to, laterSource), laterSource.Addr()) }))
}

func sendRaw(packet []byte, to netip.Addr) error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_RAW)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	return unix.Sendto(fd, packet, 0, &unix.SockaddrInet4{Addr: to.As4()})
}

// datagram returns an IPv4 packet with an empty UDP datagram (RFC 768) without checksum.
func datagram(from, to netip.AddrPort) []byte {
	p := packet(unix.IPPROTO_UDP, 28, from, to)
	binary.BigEndian.PutUint16(p[24:], 8) // length
	return p
}

// packet returns an IPv4 packet with addresses and ports. The kernel adds the header's checksum.
func packet(protocol byte, size int, from, to netip.AddrPort) []byte {
	p := make([]byte, size)
	p[0], p[8], p[9] = 0x45, 64, protocol
	binary.BigEndian.PutUint16(p[2:], uint16(len(p)))
	src, dst := from.Addr().As4(), to.Addr().As4()
	copy(p[12:], src[:])
	copy(p[16:], dst[:])
	binary.BigEndian.PutUint16(p[20:], from.Port())
	binary.BigEndian.PutUint16(p[22:], to.Port())
	return p
}

// syn returns an IPv4 packet with a TCP SYN (RFC 9293).
func syn(from netip.Addr, to netip.AddrPort, source uint16) []byte {
	p := packet(unix.IPPROTO_TCP, 40, netip.AddrPortFrom(from, source), to)
	p[32], p[33] = 5<<4, 2 // length of the header, and the flag SYN
	binary.BigEndian.PutUint16(p[34:], 0xffff)
	sum := uint32(unix.IPPROTO_TCP + len(p) - 20) // of the pseudo header and the segment
	for i := 12; i < len(p); i += 2 {
		sum += uint32(binary.BigEndian.Uint16(p[i:]))
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	binary.BigEndian.PutUint16(p[36:], ^uint16(sum))
	return p
}

// timeConnections connects over all paths in turn, and measures the processor time of the
// thread, in which the kernel forwards most packets of both directions.
func (r *PacketReport) timeConnections(paths []path, rounds int) error {
	took := map[string][]float64{}
	for round := range rounds {
		for i := range paths {
			p := paths[(i+round)%len(paths)]
			err := p.client.Do(func() error {
				began := threadTime()
				for range inTurn {
					if got, err := connect(canaryAddr(canary), longWait); err != nil || got != atHome {
						return cmp.Or(err, errors.New("no answer"))
					}
				}
				took[p.name] = append(took[p.name], float64((threadTime()-began).Nanoseconds())/inTurn)
				return nil
			})
			if err != nil {
				return fmt.Errorf("%s: %w", p.name, err)
			}
		}
	}
	for name, samples := range took {
		r.set(name+": "+connection, samples)
	}
	return nil
}

func threadTime() time.Duration {
	var used unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &used); err != nil {
		return 0
	}
	return time.Duration(used.Nano())
}

// floodEach compares, over each path, connections beside 10,000 refused ones a second with
// connections beside as many packets that no Service refuses. Otherwise the price of sending
// them would count.
func (r *PacketReport) floodEach(ctx context.Context, paths []path, d time.Duration) error {
	const repetitions = 5
	nowhere := netip.AddrPortFrom(netip.MustParseAddr(silent), targetPort+1)
	ratios := map[string][]float64{}
	for range repetitions {
		for _, p := range paths {
			if p.name == bareName {
				continue
			}
			var rates [2]float64
			for i, to := range []netip.AddrPort{nowhere, canaryAddr(refusedNumber)} {
				flooding, stop := context.WithCancel(ctx)
				done := make(chan error, 1)
				go func() { done <- p.flood(flooding, to) }()
				got, err := p.loadFor(d/(2*repetitions), 1, canaryAddr(canary))
				stop()
				if err := errors.Join(err, <-done); err != nil {
					return fmt.Errorf("%s: %w", p.name, err)
				}
				rates[i] = got.PerSecond
			}
			ratios[p.name] = append(ratios[p.name], rates[1]/rates[0])
		}
	}
	for name, all := range ratios {
		slices.Sort(all)
		r.Flood[name] = sample.Quantile(all, 0.5)
	}
	return nil
}

// flood sends 10,000 packets a second of new connections until ctx ends.
func (p path) flood(ctx context.Context, to netip.AddrPort) error {
	const each, every = 10, time.Millisecond
	return p.client.Do(func() error {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_RAW)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		dst := &unix.SockaddrInet4{Addr: to.Addr().As4()}
		for next, source := time.Now(), uint16(0); ctx.Err() == nil; next = next.Add(every) {
			for range each {
				source++
				if err := unix.Sendto(fd, syn(client.Addr(), to, 1024+source%60000), 0, dst); err != nil {
					return err
				}
			}
			time.Sleep(time.Until(next.Add(every)))
		}
		return nil
	})
}

// show writes a table: nanoseconds above one NAT rule, and the ratios.
func (r *PacketReport) show(out io.Writer, modes []string) error {
	fmt.Fprintf(out, "%d Services; nanoseconds, 10th percentile of %d turns of %d packets\n\n", r.Services, r.Rounds, inTurn)
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprint(w, "\t"+bareName+"\t")
	for _, m := range modes {
		fmt.Fprintf(w, "%s: kube-proxy\tproxyc\t", m)
	}
	fmt.Fprintln(w)
	for _, kind := range kindsOfPackets {
		base, above := r.Nanos[bareName+": "+kind], "%+.0f\t"
		if kind == refusedPacket {
			above = "%.0f\t"
		}
		fmt.Fprintf(w, "%s\t%.0f\t", kind, base)
		for _, m := range modes {
			for _, p := range []string{peerName, proxycName} {
				fmt.Fprintf(w, above, r.Nanos[p+" "+m+": "+kind]-base)
			}
		}
		fmt.Fprintln(w)
	}
	fmt.Fprint(w, "connections beside 10,000 refused a second\t\t")
	for _, m := range modes {
		for _, p := range []string{peerName, proxycName} {
			fmt.Fprintf(w, "%.0f %%\t", 100*r.Flood[p+" "+m])
		}
	}
	fmt.Fprintln(w)
	return w.Flush()
}
