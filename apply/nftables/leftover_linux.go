package nftables

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/proxyc/proxyc/apply"
	"github.com/proxyc/proxyc/apply/nftables/codec"
	"github.com/proxyc/proxyc/apply/nftables/conn"
	"github.com/proxyc/proxyc/apply/nftables/flowtable"
	"github.com/proxyc/proxyc/ir"
	rules "github.com/proxyc/proxyc/render/nftables"
)

// Leftovers returns the existing tables of proxyc and kube-proxy. If inUse is set, it omits
// proxyc's own, except that of the fast path. A kernel without nf_tables has none.
func Leftovers(ctx context.Context, inUse bool) (left []apply.Leftover, err error) {
	tables, err := proxyTables(ctx)
	foreign := sync.OnceValue(func() map[string]bool { return occupiedTables(ctx) })
	for _, t := range tables {
		if t.name != rules.Table || !inUse && !foreign()[t.String()] {
			left = append(left, apply.Leftover{Object: t.String(), KubeProxy: t.name == kubeProxyTable, Remove: t.remove})
		}
	}
	return left, err
}

// Present returns the existing tables of proxyc and kube-proxy: "table ip proxyc".
func Present() (objects []string, err error) {
	tables, err := proxyTables(context.Background())
	for _, t := range tables {
		if t.String() != flowtable.Object {
			objects = append(objects, t.String())
		}
	}
	return objects, err
}

// proxyTable is a table of proxyc or kube-proxy.
type proxyTable struct {
	number       byte // of the family, in the kernel
	family, name string
}

func (t proxyTable) String() string { return "table " + t.family + " " + t.name }

// proxyTables returns the existing tables.
func proxyTables(ctx context.Context) (tables []proxyTable, err error) {
	c, err := conn.Dial(0)
	if errors.Is(err, unix.EPROTONOSUPPORT) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer c.Close()
	for _, t := range [...]proxyTable{
		{codec.Family(ir.IPv4), ir.IPv4.NFT(), rules.Table}, {codec.Family(ir.IPv4), ir.IPv4.NFT(), kubeProxyTable},
		{codec.Family(ir.IPv6), ir.IPv6.NFT(), rules.Table}, {codec.Family(ir.IPv6), ir.IPv6.NFT(), kubeProxyTable},
		{unix.NFPROTO_INET, "inet", flowtable.Table},
	} {
		found, err := c.Get(ctx, unix.NFT_MSG_GETTABLE, t.number, codec.EncodeTable(t.name))
		if errors.Is(err, unix.EOPNOTSUPP) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("nftables: listing tables: %w", err)
		}
		if found != nil {
			tables = append(tables, t)
		}
	}
	return tables, nil
}

// occupiedTables returns the tables of other programs with our name: "table ip proxyc".
func occupiedTables(ctx context.Context) map[string]bool {
	d, err := Open(ctx, apply.Options{ReadOnly: true})
	if err != nil {
		return nil
	}
	defer d.Close()
	all := map[string]bool{}
	for _, f := range ir.Families() {
		_, err := d.reader.readTable(ctx, f, nil)
		if foreign, ok := errors.AsType[*apply.Foreign](err); ok {
			all[foreign.Object] = true
		}
	}
	return all
}

// remove deletes the table if it exists.
func (t proxyTable) remove(ctx context.Context) error {
	c, err := conn.Dial(0)
	if err != nil {
		return err
	}
	defer c.Close()
	switch err = c.Change(ctx, conn.NewMessage(unix.NFT_MSG_DELTABLE, t.number, codec.EncodeTable(t.name))); {
	case errors.Is(err, unix.ENOENT):
		return nil
	case errors.Is(err, unix.EPERM): // the table has an owner, since listing was permitted
		return fmt.Errorf("%w: %s", err, ownedByProcess)
	}
	return err
}
