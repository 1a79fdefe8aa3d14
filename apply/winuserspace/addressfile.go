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

// addressFile is the path of the file that lists addresses that were added, or are about to be.
type addressFile string

// addressList is the content of the file.
type addressList struct {
	Addresses []netip.Addr `json:"addresses"` // sorted
}

// ReadAddresses returns the addresses of Services that a file lists. The node has them, but they
// are not its own.
func ReadAddresses(file string) (map[netip.Addr]bool, error) { return addressFile(file).read() }

// read returns the addresses, or none if the file does not exist.
func (n addressFile) read() (map[netip.Addr]bool, error) {
	data, err := os.ReadFile(string(n))
	if errors.Is(err, fs.ErrNotExist) {
		return map[netip.Addr]bool{}, nil
	}
	if err != nil {
		return nil, err
	}
	var list addressList
	if err := json.Unmarshal(data, &list); err != nil {
		return nil, fmt.Errorf("%s: must list the addresses that proxyc added: %w: remove the file, and remove obsolete addresses of Services manually", string(n), err)
	}
	all := make(map[netip.Addr]bool, len(list.Addresses))
	for _, a := range list.Addresses {
		all[a] = true
	}
	return all, nil
}

// write replaces the file atomically. Without addresses it removes the file.
func (n addressFile) write(all map[netip.Addr]bool) error {
	if len(all) == 0 {
		if err := os.Remove(string(n)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		return nil
	}
	list := addressList{Addresses: make([]netip.Addr, 0, len(all))}
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
	// Sync before the rename. After a power failure the file could otherwise be empty, and the daemon
	// would not start.
	if err := errors.Join(err, f.Sync(), f.Close()); err != nil {
		return err
	}
	return os.Rename(next, string(n))
}
