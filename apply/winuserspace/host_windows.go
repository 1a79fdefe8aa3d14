package winuserspace

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"
	"unsafe"

	"golang.org/x/sys/windows"
	"golang.org/x/sys/windows/registry"
)

// local accesses this machine's addresses through the IP Helper API.
type local struct {
	service string // name of the service interface
}

// Local returns this machine. The environment names its service interface.
func Local() Host { return local{cmp.Or(os.Getenv(InterfaceVariable), DefaultInterface)} }

// IP Helper functions that golang.org/x/sys lacks.
var (
	iphlpapi      = windows.NewLazySystemDLL("iphlpapi.dll")
	createAddress = iphlpapi.NewProc("CreateUnicastIpAddressEntry")
	deleteAddress = iphlpapi.NewProc("DeleteUnicastIpAddressEntry")
)

// adapters returns the machine's interfaces.
func adapters() (all []*windows.IpAdapterAddresses, err error) {
	const flags = windows.GAA_FLAG_SKIP_UNICAST | windows.GAA_FLAG_SKIP_ANYCAST | windows.GAA_FLAG_SKIP_MULTICAST | windows.GAA_FLAG_SKIP_DNS_SERVER
	for size := uint32(16 << 10); ; {
		buffer := make([]uint64, (size+7)/8)
		first := (*windows.IpAdapterAddresses)(unsafe.Pointer(&buffer[0]))
		err := windows.GetAdaptersAddresses(windows.AF_UNSPEC, flags, 0, first, &size)
		if errors.Is(err, windows.ERROR_BUFFER_OVERFLOW) {
			continue
		}
		if errors.Is(err, windows.ERROR_NO_DATA) {
			return nil, nil
		}
		if err != nil {
			return nil, fmt.Errorf("interfaces: %w", err)
		}
		for a := first; a != nil; a = a.Next {
			all = append(all, a)
		}
		return all, nil
	}
}

func nameOf(a *windows.IpAdapterAddresses) string { return windows.UTF16PtrToString(a.FriendlyName) }

// luid returns the LUID of the service interface.
func (h local) luid() (uint64, error) {
	all, err := adapters()
	if err != nil {
		return 0, err
	}
	missing := &NoInterface{Name: h.service}
	for _, a := range all {
		if strings.EqualFold(nameOf(a), h.service) {
			return a.Luid, nil
		}
		missing.Have = append(missing.Have, nameOf(a))
	}
	return 0, missing
}

func (h local) Addresses() ([]Address, error) {
	service, err := h.luid()
	if missing := (*NoInterface)(nil); err != nil && !errors.As(err, &missing) {
		return nil, err
	}
	var table *windows.MibUnicastIpAddressTable
	if err := windows.GetUnicastIpAddressTable(windows.AF_UNSPEC, &table); err != nil {
		return nil, fmt.Errorf("addresses: %w", err)
	}
	defer windows.FreeMibTable(unsafe.Pointer(table))
	var all []Address
	for _, row := range unsafe.Slice(&table.Table[0], table.NumEntries) {
		a := addrOf(&row.Address)
		if !a.IsValid() {
			continue
		}
		all = append(all, Address{Addr: a, Service: err == nil && row.InterfaceLuid == service,
			FullPrefix: int(row.OnLinkPrefixLength) == a.BitLen(), State: stateOf(row.DadState)})
	}
	return all, nil
}

func stateOf(dad uint32) State {
	switch dad {
	case windows.IpDadStatePreferred, windows.IpDadStateDeprecated:
		return Ready
	case windows.IpDadStateDuplicate:
		return Duplicate
	}
	return Tentative
}

func addrOf(s *windows.RawSockaddrInet6) (a netip.Addr) {
	switch s.Family {
	case windows.AF_INET:
		return netip.AddrFrom4((*windows.RawSockaddrInet4)(unsafe.Pointer(s)).Addr)
	case windows.AF_INET6:
		return netip.AddrFrom16(s.Addr)
	}
	return a
}

// row returns an address table entry, like InitializeUnicastIpAddressEntry: an address on the
// service interface that is never selected as a source.
func (h local) row(a netip.Addr) (*windows.MibUnicastIpAddressRow, error) {
	service, err := h.luid()
	if err != nil {
		return nil, err
	}
	const forever = 0xffffffff
	row := &windows.MibUnicastIpAddressRow{InterfaceLuid: service,
		PrefixOrigin: windows.IpPrefixOriginUnchanged, SuffixOrigin: windows.IpSuffixOriginUnchanged,
		ValidLifetime: forever, PreferredLifetime: forever, OnLinkPrefixLength: uint8(a.BitLen()), SkipAsSource: 1}
	if a.Is4() {
		four := (*windows.RawSockaddrInet4)(unsafe.Pointer(&row.Address))
		four.Family, four.Addr = windows.AF_INET, a.As4()
	} else {
		row.Address.Family, row.Address.Addr = windows.AF_INET6, a.As16()
	}
	return row, nil
}

// call calls an IP Helper function. The error well counts as success.
func call(f *windows.LazyProc, row *windows.MibUnicastIpAddressRow, well windows.Errno) error {
	if err := f.Find(); err != nil {
		return err
	}
	code, _, _ := f.Call(uintptr(unsafe.Pointer(row)))
	if err := windows.Errno(code); err != 0 && err != well {
		return fmt.Errorf("%s: %w", f.Name, err)
	}
	return nil
}

func (h local) Add(a netip.Addr) error {
	row, err := h.row(a)
	if err != nil {
		return err
	}
	return call(createAddress, row, windows.ERROR_OBJECT_ALREADY_EXISTS)
}

func (h local) Remove(a netip.Addr) error {
	row, err := h.row(a)
	if isMissingInterface(err) {
		return nil // removed with the interface
	}
	if err != nil {
		return err
	}
	return call(deleteAddress, row, windows.ERROR_NOT_FOUND)
}

// tcpip is the registry key of the DNS suffixes.
const tcpip = `SYSTEM\CurrentControlSet\Services\Tcpip\Parameters`

// suffixes returns the machine's DNS suffixes in the order of its resolver: its search list, or
// else its domain and those of its interfaces.
func suffixes() (all []string) {
	value := func(name string) string { return "" }
	if k, err := registry.OpenKey(registry.LOCAL_MACHINE, tcpip, registry.QUERY_VALUE); err == nil {
		defer k.Close()
		value = func(name string) string {
			s, _, _ := k.GetStringValue(name)
			return s
		}
	}
	list := strings.FieldsFunc(value("SearchList"), func(r rune) bool { return r == ',' || r == ' ' })
	if len(list) == 0 {
		list = append(list, value("Domain"))
		interfaces, _ := adapters() // on errors use only the domain
		for _, a := range interfaces {
			list = append(list, windows.UTF16PtrToString(a.DnsSuffix))
		}
	}
	for _, s := range list {
		if s = strings.Trim(s, ". "); s != "" && !slices.Contains(all, s) {
			all = append(all, s)
		}
	}
	return all
}
