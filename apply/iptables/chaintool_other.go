//go:build !unix

package iptables

import (
	"errors"

	"github.com/proxyc/proxyc/ir"
)

func (t *tools) chainTool(ir.Family) (chainTool, error) {
	return nil, errors.New("iptables: not on this system")
}
