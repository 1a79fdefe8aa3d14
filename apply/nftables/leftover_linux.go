package nftables

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/google/nftables"
	"golang.org/x/sys/unix"

	"github.com/proxyc/proxyc/apply"
	"github.com/proxyc/proxyc/ir"
	rules "github.com/proxyc/proxyc/render/nftables"
)

// Leftovers lists the tables of proxyc and of kube-proxy that are there,
// without proxyc's own where those are in use. A kernel without nf_tables has
// none.
func Leftovers(ctx context.Context, inUse bool) ([]apply.Leftover, error) {
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
	somebodyElses := sync.OnceValue(func() bool { return foreign(ctx) })
	var left []apply.Leftover
	for _, t := range tables {
		family, known := map[nftables.TableFamily]ir.Family{nftables.TableFamilyIPv4: ir.IPv4, nftables.TableFamilyIPv6: ir.IPv6}[t.Family]
		names := []string{rules.Table, kubeProxyTable}
		if inUse {
			names = names[1:]
		}
		if !known || !slices.Contains(names, t.Name) {
			continue
		}
		if t.Name == rules.Table && somebodyElses() {
			continue
		}
		left = append(left, apply.Leftover{
			Object:    fmt.Sprintf("table %s %s", family.NFT(), t.Name),
			KubeProxy: t.Name == kubeProxyTable,
			Remove:    func(context.Context) error { return removeTable(t) },
		})
	}
	return left, nil
}

// foreign reports whether somebody else has tables of our name.
func foreign(ctx context.Context) bool {
	d, err := Open(ctx, apply.Options{ReadOnly: true})
	if err != nil {
		return false
	}
	defer d.Close()
	err = d.Read(ctx)
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
		return fmt.Errorf("%w: %s", err, whyOwned)
	}
	return err
}
