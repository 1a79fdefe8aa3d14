package config

import (
	_ "embed"

	"go.yaml.in/yaml/v3"
)

// Field describes a value of the configuration file, for the reference manual and
// for diagnostics. Its type and its default are derived from the code.
type Field struct {
	Path    string
	Depends string // what the default depends on; optional
	Allowed string
	Modes   string // the modes that use it: I iptables, P ipvs, N nftables, W kernelspace, U userspace
	Since   string // first release; "" for the first v1alpha1
	Until   string // the release that removed its effect
	Instead string // the replacement
	Means   string
}

// isRemoved reports whether kube-proxy no longer recognizes a field, so that it
// accepts any value.
func isRemoved(path string) bool {
	return path == "udpIdleTimeout" || path == "resourceContainer" || path == "conntrack.max"
}

// fieldsText is a list of Field.
//
//go:embed fields.yaml
var fieldsText []byte

// Fields returns all values, in the order of Config.
func Fields() (all []Field) {
	if err := yaml.Unmarshal(fieldsText, &all); err != nil {
		panic(err) // the tests read the same text
	}
	return all
}
