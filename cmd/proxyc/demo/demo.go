// Package demo contains the demo cluster, and runs a smaller one in network namespaces.
package demo

import (
	"embed"
	"errors"
)

// Files contains a configuration and a cluster of ten Services, each of which shows one feature,
// and the smaller cluster of the live demo.
//
//go:embed config.yaml cluster.yaml live.yaml
var Files embed.FS

// ErrDiffers is the error if some connections differ from their traces.
var ErrDiffers = errors.New("some connections differ from their traces")
