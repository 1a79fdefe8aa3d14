package main

import (
	"cmp"
	"fmt"
	"os"

	"golang.org/x/sys/windows"

	"github.com/proxyc/proxyc/compiler/config"
	"github.com/proxyc/proxyc/compiler/diag"
	"github.com/proxyc/proxyc/ir"
)

// needRoot returns an error for who may not change the node's network.
func needRoot(verb string) error {
	if !windows.GetCurrentProcessToken().IsElevated() {
		return fmt.Errorf("%s: needs an administrator's rights, to read and write what HNS has", verb)
	}
	return nil
}

// resolveHere resolves the flags with kube-proxy.exe's defaults, which are not
// those of Linux: mode kernelspace, the network that the environment names (WIN-2),
// and cbr0 for the root endpoint.
func resolveHere(f *config.Flags, read func(string) ([]byte, error), strict bool) (*config.Resolved, diag.List) {
	r, diags := f.Resolve(read, strict)
	if r != nil && r.ModeDefaulted() {
		with, mode := *f, string(ir.ModeKernelspace)
		with.Mode = &mode
		r, diags = with.Resolve(read, strict)
	}
	if r != nil && r.Config.ProxyMode() == ir.ModeKernelspace {
		w := &r.Config.Winkernel
		w.NetworkName = cmp.Or(w.NetworkName, os.Getenv("KUBE_NETWORK"))
		w.RootHnsEndpointName = cmp.Or(w.RootHnsEndpointName, "cbr0")
	}
	return r, diags
}

// priorityClasses are those of Windows, by the names that kubelet's flag has for them.
var priorityClasses = map[string]uint32{
	"IDLE_PRIORITY_CLASS":         windows.IDLE_PRIORITY_CLASS,
	"BELOW_NORMAL_PRIORITY_CLASS": windows.BELOW_NORMAL_PRIORITY_CLASS,
	"NORMAL_PRIORITY_CLASS":       windows.NORMAL_PRIORITY_CLASS,
	"ABOVE_NORMAL_PRIORITY_CLASS": windows.ABOVE_NORMAL_PRIORITY_CLASS,
	"HIGH_PRIORITY_CLASS":         windows.HIGH_PRIORITY_CLASS,
	"REALTIME_PRIORITY_CLASS":     windows.REALTIME_PRIORITY_CLASS,
}

// setPriority gives the process a class of priority; "" leaves it as it is.
func setPriority(class string) error {
	if class == "" {
		return nil
	}
	if err := windows.SetPriorityClass(windows.CurrentProcess(), priorityClasses[class]); err != nil {
		return fmt.Errorf("--windows-priorityclass: %s: %w", class, err)
	}
	return nil
}
