package nftables

import (
	"github.com/proxyc/proxyc/ir"
	"github.com/proxyc/proxyc/render/nftables/nftest"
)

var (
	families = []ir.Family{ir.IPv4, ir.IPv6}
	addr     = nftest.Addr
	addrPort = nftest.AddrPort

	testNode    = nftest.Node
	richProgram = nftest.Program
	richService = nftest.Service
	variants    = nftest.Variants
	bigProgram  = nftest.Large
)
