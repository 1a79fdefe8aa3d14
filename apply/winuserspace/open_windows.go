package winuserspace

import "github.com/proxyc/proxyc/apply"

// Open opens the Dataplane of this machine. file lists the added addresses.
func Open(file string, o apply.Options) *Dataplane {
	return New(Local(), Options{AddressFile: file, ReadOnly: o.ReadOnly, Suffixes: suffixes(), Log: o.Log})
}
