//go:build !linux && !windows

package host

import (
	"context"
	"errors"

	"github.com/proxyc/proxyc/apply"
	"github.com/proxyc/proxyc/apply/node"
	"github.com/proxyc/proxyc/compiler"
	"github.com/proxyc/proxyc/compiler/config"
	"github.com/proxyc/proxyc/ir"
)

var errNotLinux = errors.New("requires Linux or Windows: other systems support only the offline verbs")

var modes []Mode

// lockDir is empty: there is nothing to lock.
const lockDir = ""

// Interference is supported only on Linux and Windows.
func Interference(context.Context, uint32, ir.Programs) (apply.Interference, error) {
	return apply.Interference{}, errNotLinux
}

// Kept returns nothing on this system.
func Kept(context.Context) ([]string, error) { return nil, nil }

// OwnLeftovers is supported only on Linux and Windows.
func OwnLeftovers(context.Context, bool, bool) ([]apply.Leftover, error) { return nil, errNotLinux }

// Interfaces returns the network interfaces, ordered by name.
func Interfaces() ([]compiler.Interface, error) { return node.Interfaces() }

// Facts adds nothing: only Windows has further facts.
func Facts(*config.Config, *compiler.Facts) error { return nil }

// RuleCounts is supported only on Linux.
func RuleCounts(context.Context) (map[string]int, error) { return nil, errNotLinux }

// FastpathBridges is supported only on Linux.
func FastpathBridges() ([]string, error) { return nil, errNotLinux }
