package userspace

import (
	"net"
	"net/netip"

	"github.com/proxyc/proxyc/apply"
	"github.com/proxyc/proxyc/ir"
	rules "github.com/proxyc/proxyc/render/userspace"
)

// Operation describes the opening or an update of a listener.
func Operation(verb apply.Verb, l *rules.Listener) apply.Operation {
	op := apply.Operation{Verb: verb, Object: l.Object(), Service: l.Port.Service, Origin: l.Origin}
	for _, b := range l.Backends {
		op.Want = append(op.Want, "backend "+b.String())
	}
	op.Want = apply.Lines(op.Want)
	return op
}

// RemoveOperation describes the closing of a listener.
func RemoveOperation(k Key, at netip.AddrPort) apply.Operation {
	return apply.Operation{Verb: apply.Remove, Object: "listener " + at.String() + "/" + k.Port.Protocol.String(), Service: k.Port.Service}
}

// InUse reports whether another process listens at the address of a listener.
func InUse(f ir.Family, l *rules.Listener) bool {
	k := KeyOf(f, l)
	var c interface{ Close() error }
	var err error
	if k.Port.Protocol == ir.UDP {
		c, err = net.ListenUDP(network(k), net.UDPAddrFromAddrPort(l.Listen))
	} else {
		c, err = net.ListenTCP(network(k), net.TCPAddrFromAddrPort(l.Listen))
	}
	if err == nil {
		c.Close()
		return false
	}
	return isPortTaken(err)
}
