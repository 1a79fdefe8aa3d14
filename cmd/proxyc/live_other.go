//go:build !linux

package main

import "errors"

var errLive = errors.New("--live: only on Linux, which has network namespaces")

func (*demoCmd) live(*env) error { return errLive }
func (*demoCmd) play(*env) error { return errLive }
