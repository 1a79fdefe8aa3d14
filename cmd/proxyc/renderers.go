package main

import (
	"github.com/proxyc/proxyc/ir"
	"github.com/proxyc/proxyc/render"
	"github.com/proxyc/proxyc/render/hns"
	"github.com/proxyc/proxyc/render/iptables"
	"github.com/proxyc/proxyc/render/ipvs"
	"github.com/proxyc/proxyc/render/nftables"
	"github.com/proxyc/proxyc/render/userspace"
)

// renderers are all back ends, by mode: the one list of them.
var renderers = map[ir.Mode]render.Renderer{
	ir.ModeIPTables:    iptables.Renderer,
	ir.ModeIPVS:        ipvs.Renderer,
	ir.ModeNFTables:    nftables.Renderer,
	ir.ModeKernelspace: hns.Renderer,
	ir.ModeUserspace:   userspace.Renderer,
}
