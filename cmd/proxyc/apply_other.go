//go:build !linux && !windows

package main

import "errors"

func needRoot(string) error {
	return errors.New("needs Linux or Windows: elsewhere proxyc compiles, traces and explains only")
}
