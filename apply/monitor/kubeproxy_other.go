//go:build !linux

package monitor

// KubeProxy returns nothing: only Linux has such rules.
func KubeProxy() (objects []string, err error) { return nil, nil }

// KubeProxyDigest returns a constant, since there are no rules.
func KubeProxyDigest(bool) uint64 { return 0 }

// KubeProxyProcess returns no process.
func KubeProxyProcess() string { return "" }

// HasDevice reports no device.
func HasDevice(string) bool { return false }
