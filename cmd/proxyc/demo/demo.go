// Package demo has the cluster of the demo, and plays a smaller one in network namespaces of its own.
package demo

import (
	"embed"
	"errors"
)

// Files are a configuration and a cluster of ten Services, each of which
// shows one feature, and the smaller cluster that is played live.
//
//go:embed config.yaml cluster.yaml live.yaml
var Files embed.FS

// ErrDiffers is the error of a node on which not all connections went as trace says.
var ErrDiffers = errors.New("not all connections went as trace says")
