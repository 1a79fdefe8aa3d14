//go:build !linux

package main

import "errors"

func needRoot(string) error {
	return errors.New("needs Linux: elsewhere proxyc compiles, traces and explains only")
}
