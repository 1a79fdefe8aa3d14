//go:build !linux && !windows

package daemon

import (
	"context"
	"errors"

	"github.com/proxyc/proxyc/apply"
	"github.com/proxyc/proxyc/apply/node"
	"github.com/proxyc/proxyc/compiler"
	"github.com/proxyc/proxyc/compiler/config"
)

var errNotLinux = errors.New("needs Linux or Windows: elsewhere proxyc compiles, traces and explains only")

var dataplanes []dataplane

// lockDir is nowhere: there is nothing to lock.
const lockDir = ""

// Interference returns an error: elsewhere than on Linux nothing is known.
func Interference(context.Context, uint32) (apply.Interference, error) {
	return apply.Interference{}, errNotLinux
}

// beside returns an error: nothing is left elsewhere than on Linux.
func beside(context.Context, bool) ([]apply.Leftover, error) { return nil, errNotLinux }

// Interfaces returns the network interfaces by name.
func Interfaces() ([]compiler.Interface, error) { return node.Interfaces() }

// HostFacts adds nothing: only Windows knows more of a node than its interfaces.
func HostFacts(*config.Config, *compiler.Facts) error { return nil }

// Held returns nothing: iptables is Linux's.
func Held(context.Context) (map[string]int, error) { return nil, errNotLinux }

// FastpathBridges returns nothing: the fast path is Linux's.
func FastpathBridges() ([]string, error) { return nil, errNotLinux }
