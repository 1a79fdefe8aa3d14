package winuserspace

import (
	"github.com/proxyc/proxyc/apply"
)

// Open opens the Dataplane of this machine. file lists the added addresses.
func Open(file string, o apply.Options) *Dataplane {
	before, _ := o.Previous.(*Dataplane)
	return New(Local(), Options{AddressFile: file, ReadOnly: o.ReadOnly, Suffixes: suffixes(), Previous: before, Log: o.Log})
}
