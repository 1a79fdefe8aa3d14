//go:build !linux

package iptables

import "github.com/proxyc/proxyc/ir"

func (d *Dataplane) removeNatives(ir.Family) (bool, error) { return false, nil }
