//go:build !linux

package main

import "errors"

func enter(string) error { return errors.New("--netns: only on Linux") }
