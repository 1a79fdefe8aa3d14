package winuserspace

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
)

// notes is the file that lists the addresses that were added, or are about to be.
type notes string

// noted is the form of the file.
type noted struct {
	Addresses []netip.Addr `json:"addresses"` // sorted
}

// Added returns the addresses of Services that a file lists: the node has them, and
// they are none of its own.
func Added(file string) (map[netip.Addr]bool, error) { return notes(file).read() }

// read returns the addresses; none where there is no file.
func (n notes) read() (map[netip.Addr]bool, error) {
	data, err := os.ReadFile(string(n))
	if errors.Is(err, fs.ErrNotExist) {
		return map[netip.Addr]bool{}, nil
	}
	if err != nil {
		return nil, err
	}
	var list noted
	if err := json.Unmarshal(data, &list); err != nil {
		return nil, fmt.Errorf("%s: must list the addresses that proxyc added: %w: remove the file, and by hand those addresses of Services that are to go", string(n), err)
	}
	all := make(map[netip.Addr]bool, len(list.Addresses))
	for _, a := range list.Addresses {
		all[a] = true
	}
	return all, nil
}

// write writes the addresses, whole or not at all; without any, the file goes.
func (n notes) write(all map[netip.Addr]bool) error {
	if len(all) == 0 {
		if err := os.Remove(string(n)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		return nil
	}
	list := noted{Addresses: make([]netip.Addr, 0, len(all))}
	for a := range all {
		list.Addresses = append(list.Addresses, a)
	}
	slices.SortFunc(list.Addresses, netip.Addr.Compare)
	data, err := json.Marshal(list)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(string(n)), 0o700); err != nil {
		return err
	}
	next := string(n) + ".new"
	f, err := os.OpenFile(next, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	// It is on the disk before it has its name: a machine that loses power would find it
	// empty, and the daemon not start.
	if err := errors.Join(err, f.Sync(), f.Close()); err != nil {
		return err
	}
	return os.Rename(next, string(n))
}
