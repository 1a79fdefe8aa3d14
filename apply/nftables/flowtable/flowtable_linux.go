package flowtable

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	mdlayher "github.com/mdlayher/netlink"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/proxyc/proxyc/apply"
	"github.com/proxyc/proxyc/apply/socket"
	"github.com/proxyc/proxyc/apply/sysctl"
	rules "github.com/proxyc/proxyc/render/nftables"
)

// A Keeper maintains the flowtable (KEP-4963) of a network namespace, in a table of its own.
// Nothing else of ours refers to it, and packets are handled in the same way without it. A packet
// of a connection in the flowtable goes from the ingress hook of its interface directly to the
// outgoing interface.
//
// If the table differs from the wanted one, it is replaced in one transaction. Connections then use
// the slow path until the kernel has removed the old table. New interfaces are added to the
// flowtable, and the kernel removes deleted ones.
type Keeper struct {
	apply.Fastpath
	netns netns.NsHandle // netns.None() for the process's
	log   *slog.Logger
	renew chan struct{}
	stop  context.CancelFunc
	done  chan struct{} // closed when the goroutine of Start has ended

	devices  map[int]netlink.Link // in the flowtable, by index
	failed   string               // why the table cannot be created, as logged; or empty
	reported bool                 // that the table exists was logged

	root   sysctl.Root    // root of the kernel's files
	bridge map[int]string // logged settings of bridges, by index
}

// Object is how errors and leftovers name the table.
const Object = "table inet " + Table

const (
	// Table is the name of the table, which serves both families.
	Table = rules.Table + "-fastpath"
	name  = "fastpath"
	// priority comes after other filters: a dropped packet must not add its connection.
	priority = 300
	// maxDevices is the maximum number of interfaces per message.
	maxDevices = 256
	// retryDelay is the delay before listening to interfaces again after an error.
	retryDelay = 10 * time.Second
)

// New returns a Keeper for the network namespace of a file descriptor, or for the process's if ns
// is 0. log is optional.
func New(ns int, o apply.Fastpath, log *slog.Logger) *Keeper {
	f := &Keeper{Fastpath: o, netns: netns.None(), log: cmp.Or(log, slog.New(slog.DiscardHandler)), renew: make(chan struct{}, 1),
		root: "/", bridge: map[int]string{}}
	if ns != 0 {
		f.netns = netns.NsHandle(ns)
	}
	return f
}

// Start maintains the flowtable until ctx ends or Close is called.
func (f *Keeper) Start(ctx context.Context) {
	ctx, f.stop = context.WithCancel(ctx)
	f.done = make(chan struct{})
	go func() {
		defer close(f.done)
		for {
			err := f.follow(ctx)
			if ctx.Err() != nil {
				return
			}
			f.log.Warn("listening to interfaces, for the fast path: will be tried again", "err", err)
			select {
			case <-ctx.Done():
				return
			case <-time.After(retryDelay):
			}
		}
	}()
}

// Close ends the maintenance, and keeps the table. A nil Keeper does nothing.
func (f *Keeper) Close() {
	if f != nil && f.stop != nil {
		f.stop()
		<-f.done
	}
}

// Renew requests a comparison of the table, which replaces it if another program has changed it. A
// nil Keeper does nothing.
func (f *Keeper) Renew() {
	if f == nil {
		return
	}
	apply.Wake(f.renew)
}

// follow creates and maintains the table, until notifications about interfaces fail.
func (f *Keeper) follow(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var reason error
	links := make(chan netlink.LinkUpdate)
	err := netlink.LinkSubscribeWithOptions(links, ctx.Done(), netlink.LinkSubscribeOptions{
		Namespace: &f.netns, ErrorCallback: func(err error) { reason = err }})
	if err != nil {
		return err
	}
	defer func() { // the subscription ends only after all its notifications are received
		cancel()
		for range links {
		}
	}()
	f.ensure()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-f.renew:
			f.ensure()
		case l, ok := <-links:
			if !ok {
				return reason
			}
			f.handleLink(l)
		}
	}
}

// handleLink handles a notification about an interface.
func (f *Keeper) handleLink(l netlink.LinkUpdate) {
	at := l.Attrs()
	if l.Header.Type == unix.RTM_DELLINK && l.IfInfomsg.Family == unix.AF_UNSPEC { // not only removed from its bridge
		delete(f.devices, at.Index)
		delete(f.bridge, at.Index)
		return
	}
	if _, in := f.devices[at.Index]; in || f.failed != "" || !f.Match(at.Name) {
		return
	}
	err := f.commit(func(c *nftables.Conn) { f.add(c, at.Name) })
	switch {
	case err == nil:
		f.devices[at.Index] = l.Link
		f.log.Debug("an interface takes the fast path", "interface", at.Name)
		f.checkBridges()
	case errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENODEV): // the interface or the table no longer exists
		f.ensure()
	default:
		f.log.Warn("an interface does not take the fast path", "interface", at.Name, "err", err)
	}
}

// ensure creates the table with the existing interfaces, unless it exists.
func (f *Keeper) ensure() {
	devices, err := f.interfaces()
	if err == nil {
		names := make([]string, 0, len(devices))
		for _, l := range devices {
			names = append(names, l.Attrs().Name)
		}
		slices.Sort(names)
		if !f.matches(names) {
			err = f.commit(func(c *nftables.Conn) { f.replace(c, names) })
		}
		if errors.Is(err, unix.ENODEV) || errors.Is(err, unix.ENOENT) && len(names) > 0 { // one was deleted meanwhile: add them one by one
			err = f.commit(func(c *nftables.Conn) { f.replace(c, nil) })
			for index, l := range devices {
				if err == nil && f.commit(func(c *nftables.Conn) { f.add(c, l.Attrs().Name) }) != nil {
					delete(devices, index)
				}
			}
		}
	}
	if f.devices = devices; err != nil {
		if f.failed != err.Error() {
			f.log.Warn("the kernel makes no flowtable (it needs nf_flow_table, nf_flow_table_inet and nft_flow_offload): connections go without the fast path", "err", err)
		}
		f.failed, f.reported = err.Error(), false
		return
	}
	if !f.reported {
		f.log.Info("established connections to Services take the fast path", "interfaces", len(devices), "after packets", f.Packets)
	}
	f.failed, f.reported = "", true
	f.checkBridges()
}

// checkBridges logs each bridge whose packets are translated before they reach the flowtable, once
// until that changes. The kernel sends no notification about the setting, so it is checked with the
// table, and for new interfaces.
func (f *Keeper) checkBridges() {
	for index, l := range f.devices {
		if l.Type() != bridgeType {
			continue
		}
		bridge := l.Attrs().Name
		on := sysctl.CallsIPTables(f.root, bridge)
		if on == f.bridge[index] {
			continue
		}
		if f.bridge[index] = on; on == "" {
			f.log.Info("what pods send by the bridge takes the fast path", "interface", bridge)
			continue
		}
		f.log.Warn("what pods send by the bridge is translated before the fast path sees it, and half of each connection gains nothing (0 is right where pods of this node reach each other by its routes, not over the bridge)",
			"interface", bridge, "settings", on)
	}
}

// Bridges returns the bridges in the flowtable of the process's network namespace, whichever
// process created it.
func Bridges() (bridges []string, err error) {
	c, err := nftables.New(limited)
	if err != nil {
		return nil, err
	}
	flowtables, err := c.ListFlowtables(ourTable())
	if errors.Is(err, unix.ENOENT) {
		return nil, nil
	}
	for _, t := range flowtables {
		for _, name := range t.Devices {
			if l, err := netlink.LinkByName(name); err == nil && l.Type() == bridgeType {
				bridges = append(bridges, name)
			}
		}
	}
	return bridges, err
}

// bridgeType is rtnetlink's type of a bridge.
const bridgeType = "bridge"

// interfaces returns the interfaces of the node that match the configuration, by index.
func (f *Keeper) interfaces() (map[int]netlink.Link, error) {
	h, err := f.handle()
	if err != nil {
		return nil, err
	}
	defer h.Close()
	var links []netlink.Link
	if err := socket.RetryInterrupted(func() (_ bool, err error) { links, err = h.LinkList(); return false, err }); err != nil {
		return nil, fmt.Errorf("network interfaces: %w", err)
	}
	found := map[int]netlink.Link{}
	for _, l := range links {
		if at := l.Attrs(); f.Match(at.Name) {
			found[at.Index] = l
		}
	}
	return found, nil
}

func (f *Keeper) handle() (h *netlink.Handle, err error) {
	if f.netns.IsOpen() {
		h, err = netlink.NewHandleAt(f.netns, unix.NETLINK_ROUTE)
	} else {
		h, err = netlink.NewHandle(unix.NETLINK_ROUTE)
	}
	if err != nil {
		return nil, err
	}
	return h, h.SetSocketTimeout(socket.Timeout)
}

// limited limits the time of a connection, which makes one request. Without a limit, the library can
// wait forever after EINTR.
var limited = nftables.WithSockOptions(func(c *mdlayher.Conn) error { return c.SetDeadline(time.Now().Add(socket.Timeout)) })

// connect returns a connection that uses a new socket for each request.
func (f *Keeper) connect() (*nftables.Conn, error) {
	options := []nftables.ConnOption{limited}
	if f.netns.IsOpen() {
		options = append(options, nftables.WithNetNSFd(int(f.netns)))
	}
	return nftables.New(options...)
}

// commit sends one transaction.
func (f *Keeper) commit(fill func(*nftables.Conn)) error {
	c, err := f.connect()
	if err != nil {
		return err
	}
	fill(c)
	return c.Flush()
}

// matches reports whether the table is the one that replace creates with these interfaces, which
// are sorted.
func (f *Keeper) matches(names []string) bool {
	c, err := f.connect()
	if err != nil {
		return false
	}
	flowtables, err := c.ListFlowtables(ourTable())
	if err != nil || len(flowtables) != 1 || !isFlowtable(flowtables[0], names) {
		return false
	}
	chains, err := c.ListChainsOfTableFamily(nftables.TableFamilyINet)
	chains = slices.DeleteFunc(chains, func(c *nftables.Chain) bool { return c.Table.Name != Table })
	if err != nil || len(chains) != 1 || !isOffloadChain(chains[0]) {
		return false
	}
	exprs := slices.DeleteFunc(f.exprs(), func(e expr.Any) bool { // the library does not decode these
		_, is := e.(*expr.Byteorder)
		return is
	})
	rules, err := c.GetRules(chains[0].Table, chains[0])
	return err == nil && len(rules) == 1 && slices.EqualFunc(rules[0].Exprs, exprs, func(a, b expr.Any) bool {
		is, err := expr.Marshal(byte(nftables.TableFamilyINet), a)
		want, err2 := expr.Marshal(byte(nftables.TableFamilyINet), b)
		return err == nil && err2 == nil && bytes.Equal(is, want)
	})
}

func isFlowtable(t *nftables.Flowtable, names []string) bool {
	slices.Sort(t.Devices)
	return t.Name == name && t.Flags == nftables.FlowtableFlagsCounter && *t.Priority == *nftables.FlowtablePriorityFilter &&
		slices.Equal(t.Devices, names)
}

func isOffloadChain(c *nftables.Chain) bool {
	want := offloadChain()
	return c.Name == want.Name && c.Type == want.Type && c.Hooknum != nil && c.Priority != nil && c.Policy != nil &&
		*c.Hooknum == *want.Hooknum && *c.Priority == *want.Priority && *c.Policy == *want.Policy
}

// ourTable returns the table, which serves both families.
func ourTable() *nftables.Table {
	return &nftables.Table{Family: nftables.TableFamilyINet, Name: Table}
}

// add adds interfaces to the flowtable. The zero byte ends a name: newer kernels treat a name
// without it as a prefix.
func (f *Keeper) add(c *nftables.Conn, names ...string) {
	t := &nftables.Flowtable{Table: ourTable(), Name: name, Flags: nftables.FlowtableFlagsCounter}
	for chunk := range slices.Chunk(names, maxDevices) {
		t.Devices = t.Devices[:0:0]
		for _, name := range chunk {
			t.Devices = append(t.Devices, name+"\x00")
		}
		c.AddFlowtable(t)
	}
}

// replace creates the table, instead of an existing one.
//
//	table inet proxyc-fastpath {
//		flowtable fastpath { hook ingress priority filter; devices = { eth0, cni0 }; counter; }
//		chain offload {
//			type filter hook forward priority 300; policy accept;
//			ct status dnat ct state established ct direction reply ct packets > 20 flow add @fastpath
//		}
//	}
func (f *Keeper) replace(c *nftables.Conn, names []string) {
	t := c.AddTable(ourTable())
	c.DelTable(t)
	c.AddTable(t)
	c.AddFlowtable(&nftables.Flowtable{Table: t, Name: name, Flags: nftables.FlowtableFlagsCounter})
	f.add(c, names...)
	c.AddRule(&nftables.Rule{Table: t, Chain: c.AddChain(offloadChain()), Exprs: f.exprs()})
}

func offloadChain() *nftables.Chain {
	accept := nftables.ChainPolicyAccept
	return &nftables.Chain{Table: ourTable(), Name: "offload", Type: nftables.ChainTypeFilter, Policy: &accept,
		Hooknum: nftables.ChainHookForward, Priority: nftables.ChainPriorityRef(priority)}
}

// Bits of a connection's status and state (linux/netfilter/nf_conntrack_common.h).
const (
	ctStatusDNAT       = 1 << 5
	ctStateEstablished = 1 << 1
	ctDirectionReply   = 1 // enum ip_conntrack_dir, a byte
)

// exprs returns the expressions of the rule. In addition, the kernel ignores closing connections,
// those with a helper, and protocols other than TCP and UDP.
//
// Only replies add their connection. The kernel uses the route of the packet that adds the
// connection for its direction, and looks up the route of the other one. If another program has
// removed our tables, no chain translates, and the kernel does not translate packets of known
// connections either. A request then has the route to the Service's own address, usually the
// default route. The flowtable would send all requests of the connection there until it is idle. A
// reply always has the route to the client, and the kernel looks up the route to the endpoint.
func (f *Keeper) exprs() []expr.Any {
	hasBit := func(key expr.CtKey, bit uint32) []expr.Any {
		return []expr.Any{
			&expr.Ct{Key: key, Register: 1},
			&expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: 4, Mask: binaryutil.NativeEndian.PutUint32(bit), Xor: make([]byte, 4)},
			&expr.Cmp{Op: expr.CmpOpNeq, Register: 1, Data: make([]byte, 4)},
		}
	}
	out := slices.Concat(hasBit(expr.CtKeySTATUS, ctStatusDNAT), hasBit(expr.CtKeySTATE, ctStateEstablished), []expr.Any{
		&expr.Ct{Key: expr.CtKeyDIRECTION, Register: 1},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{ctDirectionReply}},
	})
	if f.Packets > 0 {
		out = append(out,
			&expr.Ct{Key: expr.CtKeyPKTS, Register: 1},
			&expr.Byteorder{SourceRegister: 1, DestRegister: 1, Op: expr.ByteorderHton, Len: 8, Size: 8},
			&expr.Cmp{Op: expr.CmpOpGt, Register: 1, Data: binaryutil.BigEndian.PutUint64(uint64(f.Packets))})
	}
	return append(out, &expr.FlowOffload{Name: name})
}
