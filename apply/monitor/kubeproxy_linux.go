package monitor

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"unsafe"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/proxyc/proxyc/apply/nftables/codec"
	"github.com/proxyc/proxyc/apply/nftables/conn"
	"github.com/proxyc/proxyc/ir"
	rules "github.com/proxyc/proxyc/render/iptables"
)

// Objects that kube-proxy creates and proxyc never does: its table in mode nftables, and in mode
// iptables a canary chain in the tables mangle, nat and filter, which detects flushes.
const (
	kubeProxyTable  = "kube-proxy"
	kubeProxyCanary = "KUBE-PROXY-CANARY"
	canaryTable     = "mangle"
)

// KubeProxy returns the objects in the network namespace of the calling thread that only kube-proxy
// creates: "table ip kube-proxy". It makes a few system calls, however many rules exist. With
// iptables-legacy it reads table mangle, if that exists.
func KubeProxy() (objects []string, err error) {
	c, err := conn.Dial(0)
	if err != nil {
		return nil, fmt.Errorf("looking for kube-proxy's rules: %w", err)
	}
	defer c.Close()
	for i, f := range ir.Families() {
		table, tableErr := exists(c, unix.NFT_MSG_GETTABLE, f, kubeProxyTable, "")
		if table {
			objects = append(objects, "table "+f.NFT()+" "+kubeProxyTable)
		}
		canary, canaryErr := exists(c, unix.NFT_MSG_GETCHAIN, f, canaryTable, kubeProxyCanary)
		if canary {
			objects = append(objects, rules.Tool(f)+"-nft "+canaryTable+" "+kubeProxyCanary)
		}
		if legacyFamilies[i].contains(canaryTable, kubeProxyCanary) {
			objects = append(objects, rules.Tool(f)+"-legacy "+canaryTable+" "+kubeProxyCanary)
		}
		err = errors.Join(err, tableErr, canaryErr)
	}
	return objects, err
}

// KubeProxyDigest returns a number that differs after kube-proxy has changed its rules in
// nf_tables: its own table and, if chains is set, the iptables-nft chains with its prefix. Changes
// that touch no chain, which are few, are not detected. It reads all chains.
func KubeProxyDigest(chains bool) uint64 {
	var hash maphash.Hash
	hash.SetSeed(digestSeed)
	c, err := conn.Dial(0)
	if err != nil {
		return hash.Sum64()
	}
	defer c.Close()
	for _, f := range ir.Families() {
		var found []byte
		_, err := c.Dump(context.Background(), unix.NFT_MSG_GETCHAIN, codec.Family(f), nil, func(b []byte) error {
			a, err := codec.Parse(b)
			if a.Text(unix.NFTA_CHAIN_TABLE) == kubeProxyTable || chains && strings.HasPrefix(a.Text(unix.NFTA_CHAIN_NAME), "KUBE-") {
				found = append(found, b...) // contains the handle and the number of rules
			}
			return err
		})
		if err == nil { // otherwise the chains are being changed, or the kernel lacks nf_tables
			hash.Write(found)
		}
	}
	return hash.Sum64()
}

// KubeProxyProcess returns a kube-proxy that runs in the network namespace of the calling thread:
// "process 4711"; "" if none is visible, as from a container with its own PID namespace. A process
// is kube-proxy by its name, unless its binary is proxyc.
func KubeProxyProcess() string {
	names, err := filepath.Glob("/proc/[0-9]*/comm")
	own, ownErr := os.Readlink("/proc/thread-self/ns/net")
	self, selfErr := os.Stat("/proc/self/exe")
	if errors.Join(err, ownErr, selfErr) != nil {
		return ""
	}
	for _, name := range names {
		if comm, err := os.ReadFile(name); err != nil || !strings.HasPrefix(string(comm), "kube-proxy") {
			continue
		}
		process := filepath.Dir(name)
		exe, err := os.Stat(process + "/exe")
		if err != nil || os.SameFile(exe, self) {
			continue
		}
		if ns, err := os.Readlink(process + "/ns/net"); err == nil && ns == own {
			return "process " + filepath.Base(process)
		}
	}
	return ""
}

// HasDevice reports whether the network namespace of the calling thread has a device.
func HasDevice(name string) bool {
	_, err := netlink.LinkByName(name)
	return err == nil
}

// exists reports whether nf_tables contains a table, or a chain in it.
func exists(c *conn.Conn, typ uint16, f ir.Family, table, chain string) (bool, error) {
	b := codec.Builder(codec.EncodeTable(table)) // the first attribute of all kinds
	if chain != "" {
		b.Text(unix.NFTA_CHAIN_NAME, chain)
	}
	found, err := c.Get(context.Background(), typ, codec.Family(f), b)
	switch {
	case errors.Is(err, unix.EOPNOTSUPP), errors.Is(err, unix.EAFNOSUPPORT), errors.Is(err, unix.EINVAL):
		return false, nil // the kernel lacks nf_tables or the family
	case err != nil:
		return false, fmt.Errorf("looking for kube-proxy's rules: %w", err)
	}
	return found != nil, nil
}

// contains reports whether a table of iptables-legacy contains a name. It does not create a missing
// table.
func (f legacyFamily) contains(table, name string) bool {
	names := "/proc/thread-self/net/ip_tables_names"
	if f.domain == unix.AF_INET6 {
		names = "/proc/thread-self/net/ip6_tables_names"
	}
	tables, err := os.ReadFile(names)
	if err != nil || !slices.Contains(strings.Fields(string(tables)), table) {
		return false
	}
	fd, err := unix.Socket(f.domain, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_RAW)
	if err != nil {
		return false
	}
	defer unix.Close(fd)
	var info tableInfo
	copy(info.name[:], table)
	if getsockopt(fd, f.level, getInfo, unsafe.Pointer(&info), unsafe.Sizeof(info)) != 0 {
		return false
	}
	found := false
	f.entries(fd, &info, func(entries []byte) { found = bytes.Contains(entries, append([]byte(name), 0)) })
	return found
}
