//go:build !linux

package monitor

// KubeProxy returns nothing: elsewhere than on Linux there are no such rules.
func KubeProxy() (objects []string, err error) { return nil, nil }

// KubeProxyDigest returns the same at all times, as there are no rules.
func KubeProxyDigest(bool) uint64 { return 0 }

// KubeProxyProcess returns no process.
func KubeProxyProcess() string { return "" }

// HasDevice reports no device.
func HasDevice(string) bool { return false }
