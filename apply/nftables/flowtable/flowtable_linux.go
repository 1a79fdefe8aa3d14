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
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/proxyc/proxyc/apply"
	"github.com/proxyc/proxyc/apply/socket"
	"github.com/proxyc/proxyc/apply/sysctl"
	rules "github.com/proxyc/proxyc/render/nftables"
)

// A Keeper keeps the flowtable (KEP-4963) of a network namespace, in a table of its
// own, which nothing else of ours refers to: with it and without, packets meet the
// same. A packet of a connection that is in the flowtable goes from the ingress hook of
// the interface where it comes in straight to the one where it leaves.
//
// The table is made anew, in one transaction, where it is not as it should be; that puts
// connections back to the slow path, for as long as the kernel takes to be rid of the old one.
// Interfaces that come are added to it, and the kernel takes out those that go.
type Keeper struct {
	apply.Fastpath
	netns netns.NsHandle // netns.None(): of the process
	log   *slog.Logger
	renew chan struct{}
	stop  context.CancelFunc
	done  chan struct{} // closed when nothing is done any more

	devices  map[int]netlink.Link // in the flowtable, by index
	failed   string               // why the table cannot be made, as was told
	reported bool                 // that it is there

	root   sysctl.Root    // of the kernel's files
	bridge map[int]string // the settings of bridges that were told, by index
}

// Object is how errors and leftovers name the table.
const Object = "table inet " + table

const (
	// table is the name of the table, of both families.
	table = rules.Table + "-fastpath"
	name  = "fastpath"
	// priority comes after what others filter: a packet that is dropped must not
	// get its connection in.
	priority = 300
	// maxDevices are as many as one message may add.
	maxDevices = 256
	// retryDelay is how long after an error the links are listened to again.
	retryDelay = 10 * time.Second
)

// New returns a Keeper for the network namespace of a file descriptor, or, with 0, for that of the
// process. Without a log nothing is logged.
func New(ns int, o apply.Fastpath, log *slog.Logger) *Keeper {
	f := &Keeper{Fastpath: o, netns: netns.None(), log: cmp.Or(log, slog.New(slog.DiscardHandler)), renew: make(chan struct{}, 1),
		root: "/", bridge: map[int]string{}}
	if ns != 0 {
		f.netns = netns.NsHandle(ns)
	}
	return f
}

// Start keeps the flowtable until ctx ends or Close is called.
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

// Close ends what Start began, and leaves the table in the kernel. A nil Keeper does nothing.
func (f *Keeper) Close() {
	if f != nil && f.stop != nil {
		f.stop()
		<-f.done
	}
}

// Renew has the table compared, and replaced if another program has changed it. A nil Keeper does nothing.
func (f *Keeper) Renew() {
	if f == nil {
		return
	}
	select {
	case f.renew <- struct{}{}:
	default:
	}
}

// follow makes the table and keeps it, as long as the kernel tells of all interfaces.
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
	defer func() { // the subscription ends by itself, but not while it has something to tell
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

// handleLink looks at an interface that came, changed or went.
func (f *Keeper) handleLink(l netlink.LinkUpdate) {
	at := l.Attrs()
	if l.Header.Type == unix.RTM_DELLINK && l.IfInfomsg.Family == unix.AF_UNSPEC { // not merely out of its bridge
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
	case errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENODEV): // it is gone, or the table
		f.ensure()
	default:
		f.log.Warn("an interface does not take the fast path", "interface", at.Name, "err", err)
	}
}

// ensure makes the table, with the interfaces that there are, unless it stands.
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
		if errors.Is(err, unix.ENODEV) || errors.Is(err, unix.ENOENT) && len(names) > 0 { // one went meanwhile: all are met one by one
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
	say := f.log.Debug
	if !f.reported {
		say = f.log.Info
	}
	f.failed, f.reported = "", true
	say("established connections to Services take the fast path", "interfaces", len(devices), "after packets", f.Packets)
	f.checkBridges()
}

// checkBridges tells once of each bridge whose packets are translated before the flowtable sees them,
// and once when they are no more. The kernel tells nobody that a setting was changed: it is seen when the table is
// looked at, or an interface comes.
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

// Bridges returns the bridges that are in the flowtable of the process's network namespace,
// whoever made that; none where there is no flowtable.
func Bridges() (bridges []string, err error) {
	c, err := nftables.New()
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

// bridgeType is what rtnetlink calls a bridge.
const bridgeType = "bridge"

// interfaces returns those of the node that are to be in the flowtable.
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

func (f *Keeper) handle() (*netlink.Handle, error) {
	if f.netns.IsOpen() {
		return netlink.NewHandleAt(f.netns, unix.NETLINK_ROUTE)
	}
	return netlink.NewHandle(unix.NETLINK_ROUTE)
}

// connect returns a connection of which each request has a socket of its own.
func (f *Keeper) connect() (*nftables.Conn, error) {
	var options []nftables.ConnOption
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

// matches reports whether the table is as replace makes it with these interfaces, in order.
func (f *Keeper) matches(names []string) bool {
	c, err := f.connect()
	if err != nil {
		return false
	}
	flowtables, err := c.ListFlowtables(ourTable())
	if err != nil || len(flowtables) != 1 {
		return false
	}
	t := flowtables[0]
	slices.Sort(t.Devices)
	if t.Name != name || t.Flags != nftables.FlowtableFlagsCounter || *t.Priority != *nftables.FlowtablePriorityFilter || !slices.Equal(t.Devices, names) {
		return false
	}
	chains, err := c.ListChainsOfTableFamily(nftables.TableFamilyINet)
	chains = slices.DeleteFunc(chains, func(c *nftables.Chain) bool { return c.Table.Name != table })
	if err != nil || len(chains) != 1 {
		return false
	}
	is, want := chains[0], offloadChain()
	if is.Name != want.Name || is.Type != want.Type || is.Hooknum == nil || is.Priority == nil || is.Policy == nil ||
		*is.Hooknum != *want.Hooknum || *is.Priority != *want.Priority || *is.Policy != *want.Policy {
		return false
	}
	exprs := slices.DeleteFunc(f.exprs(), func(e expr.Any) bool { // the library does not read these
		_, is := e.(*expr.Byteorder)
		return is
	})
	rules, err := c.GetRules(is.Table, is)
	return err == nil && len(rules) == 1 && slices.EqualFunc(rules[0].Exprs, exprs, func(a, b expr.Any) bool {
		is, err := expr.Marshal(byte(nftables.TableFamilyINet), a)
		want, err2 := expr.Marshal(byte(nftables.TableFamilyINet), b)
		return err == nil && err2 == nil && bytes.Equal(is, want)
	})
}

// ourTable is where all of it is: one for both families.
func ourTable() *nftables.Table {
	return &nftables.Table{Family: nftables.TableFamilyINet, Name: table}
}

// add puts interfaces into the flowtable; those that are there already stay. The zero
// byte ends a name: newer kernels take one without for the beginning of names.
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

// replace makes the table, in place of one that may be there.
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

// exprs are the rule. Refused by the kernel itself are, beside it, connections that end,
// those that have a helper, and protocols other than TCP and UDP.
//
// The kernel takes the way of the packet that gets its connection in for this direction, and
// looks up the other one's. While no chain translates, for others have taken our tables, it
// translates no packet of connections that it knows: a request then leaves by the way to the
// Service's own address, mostly the default route, on which the flowtable would send, translated
// again, all that comes until the connection is idle. A reply's way is the client's all along, and what
// the kernel looks up is that to the endpoint.
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
