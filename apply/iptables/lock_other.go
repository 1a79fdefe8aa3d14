//go:build !linux

package iptables

func holderOf(string) string { return "" }
