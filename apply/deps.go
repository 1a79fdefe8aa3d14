//go:build deps

// Package apply keeps the module requirements while the rooms that use them are being built.
package apply

import (
	_ "github.com/alecthomas/kong"
	_ "github.com/coreos/go-iptables/iptables"
	_ "github.com/google/go-cmp/cmp"
	_ "github.com/google/nftables"
	_ "github.com/google/nftables/expr"
	_ "github.com/mdlayher/netlink"
	_ "github.com/moby/ipvs"
	_ "github.com/rogpeppe/go-internal/testscript"
	_ "github.com/rogpeppe/go-internal/txtar"
	_ "github.com/vishvananda/netlink"
	_ "github.com/vishvananda/netns"
	_ "go.yaml.in/yaml/v3"
	_ "golang.org/x/sys/unix"
	_ "k8s.io/api/core/v1"
	_ "k8s.io/api/discovery/v1"
	_ "k8s.io/api/discovery/v1beta1"
	_ "k8s.io/api/networking/v1"
	_ "k8s.io/apimachinery/pkg/apis/meta/v1"
	_ "sigs.k8s.io/json"
	_ "sigs.k8s.io/yaml"
)
