package nftables

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/google/nftables"
	"golang.org/x/sys/unix"

	"github.com/proxyc/proxyc/apply"
	"github.com/proxyc/proxyc/apply/nftables/flowtable"
	"github.com/proxyc/proxyc/ir"
	rules "github.com/proxyc/proxyc/render/nftables"
)

// Leftovers lists the tables of proxyc and of kube-proxy that are there,
// without proxyc's own where those are in use, but for the fast path's. A kernel
// without nf_tables has none.
func Leftovers(ctx context.Context, inUse bool) ([]apply.Leftover, error) {
	tables, err := listTables()
	if err != nil {
		return nil, err
	}
	somebodyElses := sync.OnceValue(func() bool { return hasForeignTables(ctx) })
	var left []apply.Leftover
	for _, t := range tables {
		if "table inet "+t.Name == flowtable.Object && t.Family == nftables.TableFamilyINet {
			left = append(left, apply.Leftover{Object: flowtable.Object, Remove: func(context.Context) error { return removeTable(t) }})
			continue
		}
		if !isProxyTable(t) || t.Name == rules.Table && (inUse || somebodyElses()) {
			continue
		}
		left = append(left, apply.Leftover{
			Object:    tableObject(t),
			KubeProxy: t.Name == kubeProxyTable,
			Remove:    func(context.Context) error { return removeTable(t) },
		})
	}
	return left, nil
}

// Present returns the tables of proxyc and of kube-proxy that are there: "table ip proxyc".
func Present() (objects []string, err error) {
	tables, err := listTables()
	for _, t := range tables {
		if isProxyTable(t) {
			objects = append(objects, tableObject(t))
		}
	}
	return objects, err
}

// isProxyTable reports whether a table has the name of proxyc's or of kube-proxy's.
func isProxyTable(t *nftables.Table) bool {
	return familyWords[t.Family] != "" && (t.Name == rules.Table || t.Name == kubeProxyTable)
}

// listTables lists all tables. A kernel without nf_tables has none.
func listTables() ([]*nftables.Table, error) {
	c, err := nftables.New()
	if err != nil {
		return nil, fmt.Errorf("nftables: %w", err)
	}
	tables, err := c.ListTables()
	if errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.EPROTONOSUPPORT) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("nftables: listing tables: %w", err)
	}
	return tables, nil
}

var familyWords = map[nftables.TableFamily]string{nftables.TableFamilyIPv4: ir.IPv4.NFT(), nftables.TableFamilyIPv6: ir.IPv6.NFT()}

func tableObject(t *nftables.Table) string { return "table " + familyWords[t.Family] + " " + t.Name }

// hasForeignTables reports whether somebody else has tables of our name.
func hasForeignTables(ctx context.Context) bool {
	d, err := Open(ctx, apply.Options{ReadOnly: true})
	if err != nil {
		return false
	}
	defer d.Close()
	err = d.Read(ctx, ir.Programs{})
	_, is := errors.AsType[*apply.Foreign](err)
	return is
}

// removeTable deletes a table, which may be gone already.
func removeTable(t *nftables.Table) error {
	c, err := nftables.New()
	if err != nil {
		return err
	}
	c.DelTable(t)
	switch err = c.Flush(); {
	case errors.Is(err, unix.ENOENT):
		return nil
	case errors.Is(err, unix.EPERM): // the listing was allowed: it has an owner
		return fmt.Errorf("%w: %s", err, ownedByProcess)
	}
	return err
}
